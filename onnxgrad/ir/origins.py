"""Which initializers may receive other values, and where the constants of a rewritten program come
from.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxgrad.errors import NotProved
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.derivations import LITERAL, Derivations, Node, Predicate, ReadWeights, Step
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var

# the model's metadata with the names of the numbers that were read, separated by line breaks
VALUES_USED = "onnxgrad.values_used"
# dtypes of sizes, indices and branches
_FIXED = (TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)
# operators that read int32 as a quantised bias or zero point
_QUANTISED = frozenset({"DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"})
# the first operand of an operator whose float elements decide sizes
_SIZING = {"Range": 0, "Resize": 1, "Upsample": 1, "OneHot": 1}


def record(program: Program) -> Derivations:
    """Begins to record what is computed from the weights of a program: its initializers, and
    Constant nodes as `weight_in` describes.
    """
    sizing = {v for block in program.blocks() for b in block.bindings for v in _sizing(b)}
    for v in weights_of(program):
        v.source = Step("fixed" if v in sizing or _decides(v) else "weight", v.name)
    for block in program.blocks():  # those of functions stay
        for v in _constants_in(block):
            v.source = v.source or LITERAL
    program.derivations = Derivations()
    return program.derivations


def weights_of(program: Program) -> list[Var]:
    """The initializers, and values of Constant nodes, that may receive other values."""
    inside = [v for block in blocks_in(program.main) for v in _constants_in(block)]
    return [v for block in program.blocks() for v in block.initializers.values()] + inside


def _constants_in(block: BindingBlock) -> list[Var]:
    return [b.out for b in block.bindings if b.is_op("Constant") and weight_in(b.node) is not None]


def weight_in(node: NodeProto) -> TensorProto | None:
    """The float tensor of several elements in a Constant node, as some exporters write weights."""
    if node.op_type != "Constant" or domains.canonical(node.domain):
        return None
    tensors = [a.t for a in node.attribute if a.name == "value" and a.HasField("t")]
    return next((t for t in tensors if t.data_type in FLOAT_DTYPES and prod(t.dims) > 1), None)


def _decides(v: Var) -> bool:
    """Whether integers or booleans are sizes, indices or conditions."""
    return v.dtype in _FIXED or (
        v.dtype == TensorProto.INT32 and not all(b.op in _QUANTISED for b in v.users)
    )


def _sizing(b: Binding) -> Iterator[Var]:
    """The constants from which an operator computes the sizes of its result."""
    if b.domain == "" and b.op in _SIZING:
        for v in b.inputs[_SIZING[b.op] :]:
            yield from (v and _constants(v, 0)) or ()


def _constants(v: Var, depth: int) -> list[Var] | None:
    """The constants that a value is computed from; None if it depends on other values, or by many
    operators.
    """
    if v.is_constant:
        return [v]
    if v.definition is None or depth > _REACH:
        return None
    parts = [_constants(u, depth + 1) for u in v.definition.reads()]
    return None if None in parts else [u for part in parts for u in part or ()]


_REACH = 20


def results(program: Program) -> dict[str, Step]:
    """Ends the recording. Returns the step of each constant of the program that depends on weights,
    by the name of its initializer or Constant node.

    Raises NotProved for an initializer of unknown origin.
    """
    found: dict[str, Step] = {}
    for block in program.blocks():
        constants = [
            b.out
            for b in block.bindings
            if b.is_op("Constant") and (b.out.source or weight_in(b.to_node()) is not None)
        ]
        for v in (*block.initializers.values(), *constants):
            step, v.source = v.source, None
            if step is None:
                raise NotProved(
                    f"not rebasable: '{v.name}' was made by a rewrite that records no origin"
                )
            if step.traced:
                found[v.name] = step
    program.derivations = None
    return found


def note_equal(a: Var, b: Var) -> None:
    """Records that two constants had equal elements, and that readers of `b` will read `a`."""
    a.block.program.stand_ins.add(a.name)
    kept = a.block.program.derivations
    if kept is None:
        return
    one, other = a.source or LITERAL, b.source or LITERAL
    if one is other or not (one.traced or other.traced):
        return
    if not one.traced:
        one, other, b = other, one, a
    kept.pending.append(Predicate(one, other if other.traced else b.const, same=True))


@contextmanager
def reading(program: Program) -> Iterator[ReadWeights]:
    """Within this context, the values of float weights that are read are pending names of what it
    yields.
    """
    found = ReadWeights()
    floats = [v for v in weights_of(program) if v.dtype in FLOAT_DTYPES]
    for v in floats:
        v.reads = found.pending
    try:
        yield found
    finally:
        for v in (*floats, *weights_of(program)):
            v.reads = None


def use_value(v: Var) -> None:
    """Records that something depends on every element of a value, if it is a weight."""
    if v.reads is not None:
        v.reads[v.name] = None
    if v.source is not None and v.source.traced:
        np.asarray(v.const)


def use_behind(b: Binding) -> None:
    """Records that the values of the weights behind a binding over constants are read."""
    found, work = {b}, [b]
    for behind in work:  # grows
        for v in behind.reads():
            if v.reads is not None:
                v.reads[v.name] = None
            if v.definition is not None and v.definition not in found:
                found.add(v.definition)
                work.append(v.definition)


def note_folded(b: Binding, made: Mapping[Var, Var]) -> None:
    """Records that onnxruntime computed the values of `made`: results of a binding over constants,
    or over values that are computed from constants.
    """
    known: dict[Binding, Sequence[Any]] = {}
    for old, new in made.items():
        operands = _operands(b, known)
        if any(isinstance(o, Step) for o in operands):
            new.source = _of_node(b, b.outputs.index(old), operands)


def _operands(b: Binding, known: dict[Binding, Sequence[Any]]) -> Sequence[Any]:
    if b not in known:
        known[b] = [None if v is None else _operand(v, known) for v in b.inputs]
    return known[b]


def _operand(v: Var, known: dict[Binding, Sequence[Any]]) -> Any:
    """A step, or the array of a value that does not depend on weights."""
    if v.source is not None and v.source.traced:
        return v.source
    if v.is_constant:
        return v.const
    b = v.definition
    if b is None:
        raise NotProved(f"not rebasable: '{v.name}' is no constant")
    return _of_node(b, b.outputs.index(v), _operands(b, known))


def _of_node(b: Binding, index: int, operands: Sequence[Any]) -> Step:
    node = NodeProto()
    node.CopyFrom(b.to_node())
    for name in ("metadata_props", "doc_string", "name"):
        node.ClearField(name)
    out = b.outputs[index]
    node.input[:] = [f"i{i}" if v is not None else "" for i, v in enumerate(b.inputs)]
    node.output[:] = [f"o{i}" if v is not None else "" for i, v in enumerate(b.outputs)]
    dtype, opset = 0 if out is None else out.dtype, b.block.opsets.get("", 0)
    return Step("node", Node(node, index, dtype, opset), operands)


def values_used(program: Program) -> list[str]:
    """Returns the names of the initializers whose values decided the form of this file."""
    names = program.metadata.get(VALUES_USED)
    return names.split("\n") if names else []


def use_values(program: Program, names: Iterable[str]) -> None:
    """Adds the names of initializers to those whose values decided the form of this file."""
    found = dict.fromkeys([*values_used(program), *names])
    if found:
        program.metadata[VALUES_USED] = "\n".join(found)


def forget_values(program: Program, names: Container[str]) -> None:
    """Takes names away again: the user was told what a derivative by them is."""
    left = [name for name in values_used(program) if name not in names]
    program.metadata.pop(VALUES_USED, None)
    use_values(program, left)
