"""Simplifies arithmetic on sizes, and declares shapes as expressions of the inputs' sizes."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import ClassVar

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, numpy_helper

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import ELEMENTWISE
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.sizes import Dim, symbols
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import (
    TensorType,
    Type,
    numpy_dtype,
    same_shape,
    type_from_proto,
    type_to_proto,
)
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace

# Shape has `start` and `end` from here on, and Constant holds integers
_PARTS, _INTEGERS = 15, 9
# operators whose first result has the shape of their first operand
_SAME = frozenset({
    *ELEMENTWISE, "BatchNormalization", "CumSum", "Dropout", "GroupNormalization", "Hardmax",
    "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization",
    "MeanVarianceNormalization", "QuantizeLinear", "RMSNormalization", "ScatterElements",
    "ScatterND", "Softmax", "Trilu",
})  # fmt: skip


@register
@frozen
class SimplifySizes(Pass):
    """Shape(f(x)) = Shape(x) for elementwise f; equal sizes are computed once, and read from a
    graph input that has them.

    Sizes are compared as expressions of the inputs' sizes, so the results are equal at every size.
    If anything was rewritten, numbers that the file declares of open sizes become the expressions.
    """

    name: ClassVar[str] = "simplify-sizes"

    def run(self, program: Program, trace: Trace) -> None:
        """Simplifies the sizes of each block, reusing values of enclosing blocks."""
        known = KnownElements()
        for root in roots(program):
            for block in blocks_in(root):
                _Sizes(
                    block, known, trace, program.main.inputs if root is program.main else []
                ).run()
        for block in blocks_in(program.main):
            if block.changed and not trace.stopped:
                _open_sizes(block, trace)


class _Sizes:
    """The size arithmetic of one block."""

    def __init__(
        self, block: BindingBlock, known: KnownElements, trace: Trace, inputs: list[Var]
    ) -> None:
        self.block, self.known, self.trace = block, known, trace
        self.inputs = [v for v in inputs if v.shape and any(isinstance(d, str) for d in v.shape)]
        self.first: dict[Hashable, Var] = {}

    def run(self) -> None:
        self.block.schedule()
        for b in list(self.block.bindings):
            if self.trace.stopped:
                return
            if b.domain or b.has_refs or b not in self.block.bindings:
                continue
            if len(b.outputs) == 1 and _is_vector(b.out):
                self._simplify(b)

    def _simplify(self, b: Binding) -> None:
        """Replaces a computed vector of sizes by an earlier equal one, or by a part of an input's
        shape.
        """
        if b.op == "Shape":
            self._read_earlier(b)
        found = sizes(b.out, self.known)
        if not found or None in found:
            return
        if all(isinstance(d, int) for d in found):
            self._fix(b, found)
            return
        key = b.out.dtype, b.out.rank, found
        kept = self.first.get(key)
        if kept is None or kept.definition not in self.block.bindings:
            kept = self.first[key] = b.out
        if kept is not b.out:
            if not (kept.returned and b.out.returned):
                self._replace(b, kept, "equal_sizes")
            return
        made = self._of_input(b, found)
        if made is not None:
            self.first[key] = made
            self._replace(b, made, "size_of_input")

    def _fix(self, b: Binding, found: tuple[Dim, ...]) -> None:
        """Replaces an output of known value by a Constant. `fold-constant` folds the others."""
        if not b.out.returned or b.op == "Constant" or self.block.opsets.get("", 0) < _INTEGERS:
            return
        array = np.array(found, numpy_dtype(b.out.dtype)).reshape([len(found)] * (b.out.rank or 0))
        with emitting(self.block, sources=[b], made_by="fixed_size"):
            made = op.Constant(value=numpy_helper.from_array(array))
        self._replace(b, made, "fixed_size")

    def _read_earlier(self, b: Binding) -> None:
        """Shape(f(x)) = Shape(x)"""
        source = _unchanged(b.inputs[0])
        if source is None or source is b.inputs[0]:
            return
        self.trace.fired("shape_of_unchanged", str(b), [b.out.name])
        old = b.inputs[0]
        self.block.set_operand(b, 0, source)
        if old is not None and old.definition is not None:
            old.definition.block.remove_unused([old.definition])

    def _of_input(self, b: Binding, found: tuple[Dim, ...]) -> Var | None:
        """The sizes as a part of the shape of a graph input, if that needs no more bindings."""
        if b.out.dtype != TensorProto.INT64 or _reads_input(b):
            return None
        place = self._place(found)
        if place is None:
            return None
        source, start = place
        whole = len(found) == len(source.shape or ())
        with emitting(self.block, sources=[b], made_by="size_of_input"):
            if b.out.rank == 0:
                return op.Gather(op.Shape(source), start) if self._frees_shape(b) else None
            if whole:
                return op.Shape(source)
            if self.block.opsets.get("", 0) < _PARTS:
                return None
            return op.Shape(source, start=start, end=start + len(found))

    def _place(self, found: tuple[Dim, ...]) -> tuple[Var, int] | None:
        for v in self.inputs:
            shape = v.shape or ()
            for start in range(len(shape) - len(found) + 1):
                if shape[start : start + len(found)] == found:
                    return v, start
        return None

    def _frees_shape(self, b: Binding) -> bool:
        """Whether the Shape that a Gather reads would become unused if all its readers read an
        input's shape.
        """
        shape = None if b.op != "Gather" or b.inputs[0] is None else b.inputs[0].definition
        if shape is None or not shape.is_op("Shape") or shape.out.returned:
            return False
        for user in shape.out.users:
            element = sizes(user.out, self.known) if user.is_op("Gather") else None
            if element is None or None in element or self._place(element) is None:
                return False
        return True

    def _replace(self, b: Binding, new: Var, law: str) -> None:
        self.trace.fired(law, str(b), [b.out.name])
        self.block.replace(b.out, new)
        self.block.remove_unused([b])


def _is_vector(v: Var | None) -> bool:
    return v is not None and v.dtype in (TensorProto.INT64, TensorProto.INT32) and v.rank in (0, 1)


def _reads_input(b: Binding) -> bool:
    """Whether `b` is a Shape of a graph input, or an element of one, in the shortest form."""
    source = b.inputs[0]
    if b.op == "Gather" and source is not None and source.definition is not None:
        if b.out.rank == 1 and source.sole_user() is not None:
            return False
        b = source.definition
        source = b.inputs[0] if b.inputs else None
    return b.is_op("Shape") and source is not None and source.is_interface


def _unchanged(v: Var | None) -> Var | None:
    """The first value in the chain that computes `v` which has the same shape and several readers,
    or none before it.

    A Shape beside the only reader of a value would keep the two bindings from being fused, here and
    in onnxruntime: Conv and BatchNormalization.
    """
    unused, kept = None, None
    while v is not None:
        readers = [b for b in v.users if b.op != "Shape" and b is not unused]
        if v.definition is None or len(readers) + v.returned > 1:
            return v
        unused = None if readers or v.returned else v.definition
        if unused is None and kept is None:
            kept = v
        before = _before(v.definition, v)
        if before is None:
            return kept or v
        v = before
    return kept


def _before(b: Binding, v: Var) -> Var | None:
    """The operand of `b` which has the shape of its result `v`."""
    if b.domain or b.outputs[0] is not v or not b.inputs:
        return None
    if b.op in _SAME and b.inputs[0] is not None:
        return b.inputs[0]
    same = next((u for u in b.inputs if u is not None and _is_as_large(u, v)), None)
    return None if b.blocks else same


def _is_as_large(u: Var, v: Var) -> bool:
    return not u.is_constant and same_shape(u.shape, v.shape)


def _open_sizes(block: BindingBlock, trace: Trace) -> None:
    """Declares open sizes as expressions where the file declares numbers.

    TorchScript declares the sizes of its trace. onnxruntime trusts these numbers once the sizes in
    a node are constants.
    """
    computed = {v.name: v for b in block.bindings for v in b.outputs if v is not None}
    between, returned = block.file_types
    opened = {
        v: axes
        for name, said in {**between, **returned}.items()
        if (v := computed.get(name)) is not None
        and v not in block.declared
        and (axes := _opened(said, v.type))
    }
    if not opened:
        return
    proto = block.proto
    outputs = proto.output if isinstance(proto, GraphProto) else ()
    infos = {info.name: info for info in (*proto.value_info, *outputs)}
    for v, axes in opened.items():
        corrected = copy_of(infos[v.name])
        dims = corrected.type.tensor_type.shape.dim
        numbers = [(dims[i], d) for i, d in axes if dims[i].HasField("dim_value")]
        if not numbers:
            continue
        for dim, d in numbers:
            dim.dim_param = d
        block.declared[v] = corrected
        block.touch()
        trace.fired("declared_numbers", str(v), [v.name])


@lru_cache(maxsize=4096)
def _opened(said: Type, known: Type | None) -> tuple[tuple[int, str], ...]:
    """The axes whose sizes are open but declared as numbers, with these sizes. A declared -1 means
    unknown.
    """
    if not isinstance(said, TensorType) or not isinstance(known, TensorType):
        return ()
    if said.shape is None or known.shape is None or len(said.shape) != len(known.shape):
        return ()
    return tuple(
        (i, d)
        for i, (s, d) in enumerate(zip(said.shape, known.shape, strict=True))
        if not isinstance(s, str) and isinstance(d, str) and not _is_invented(d)
    )


@register
@frozen
class InferShapes(Pass):
    """Declares the type and shape of every known value in `value_info`; an open size is an
    expression of the inputs' sizes, such as batch*seq.

    Inputs and outputs keep their declarations. Values in functions have none.
    """

    name: ClassVar[str] = "infer-shapes"

    def run(self, program: Program, trace: Trace) -> None:
        """Declares the values of the main graph and of the graphs nested in it."""
        for block in blocks_in(program.main):
            if trace.stopped:
                return
            declared = {v.name: v for v in block.proto.value_info}
            found = 0
            for v in [v for b in block.bindings for v in b.outputs if v is not None]:
                before = block.declared.get(v) or declared.get(v.name)
                info = None if v.returned else _declaration(v, before)
                if info is None or (before is not None and before.type == info.type):
                    continue
                block.declared[v] = info
                found += 1
            if found:
                block.touch()
                where = f"{found} of {block.name}"
                trace.fired("declared_shapes", where, count=found)


def _declaration(v: Var, before: ValueInfoProto | None) -> ValueInfoProto | None:
    """The declaration of a value, with the sizes of `before` where they are unknown; None if its
    rank is unknown.
    """
    type_ = v.type
    if not isinstance(type_, TensorType) or not type_.dtype or type_.shape is None:
        return None
    known = [None if _is_invented(d) else d for d in type_.shape]
    said = None if before is None else type_from_proto(before.type)
    shape = said.shape if isinstance(said, TensorType) else None
    if shape is not None and len(shape) == len(known):
        known = [s if d is None else d for s, d in zip(shape, known, strict=True)]
    proto = type_to_proto(TensorType(type_.dtype, tuple(known)))
    return ValueInfoProto(name=v.name, type=proto)


def _is_invented(d: Dim) -> bool:
    """Whether the size contains a name that onnx invented, which means nothing to a reader."""
    return any(map(is_invented, symbols(d)))
