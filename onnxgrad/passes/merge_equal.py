"""Merges common subexpressions and equal initializers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache, lru_cache
from typing import ClassVar

from onnx import AttributeProto, FunctionProto, TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import SYMMETRIC
from onnxgrad.ir.emission.emitter import merged_metadata
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.origins import note_equal
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import FLOAT_DTYPES, byte_count
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.passes.sink_constants import LARGEST_SUNK, NESTED_WEIGHTS
from onnxgrad.rewrite.trace import Trace


@register
@frozen
class MergeEqual(Pass):
    """f(x), f(x) = y, y: equal bindings become one, initializers with equal bytes become one.

    Random draws, operators of unknown domains, calls (they may draw too), control flow, and values
    that differ in a bit (+0.0 and -0.0) are never merged. `floats=false` leaves floating-point
    constants alone: weights that start out equal, such as biases of zeros, differ after a step of
    training. Equal constants of branches, loop bodies and the graphs around them become one if they
    are larger than those that `sink-constants` moves; `small=true` merges the others as well, for
    fewer bytes: a branch is then passed them at each run.
    """

    name: ClassVar[str] = "merge-equal"
    floats: bool = True
    small: bool = False

    def run(self, program: Program, trace: Trace) -> None:
        """Merges within each block, then the constants of different blocks. A binding of a nested
        block is never merged with one of an enclosing block.
        """
        for root in roots(program):
            for block in blocks_in(root):
                _merge_initializers(block, self.floats, trace)
                merge_bindings(block, trace, floats=self.floats)
            if program.ir_version >= NESTED_WEIGHTS:
                _merge_across(root, self.floats, self.small, trace)


def _merge_initializers(block: BindingBlock, floats: bool, trace: Trace) -> None:
    by_kind: dict[Hashable, list[Var]] = {}
    for v in block.initializers.values():
        tensor = v.initializer
        if tensor is None or v.is_input or v.returned:
            continue
        if tensor.data_location == TensorProto.EXTERNAL:
            continue
        if not floats and tensor.data_type in FLOAT_DTYPES:
            continue
        by_kind.setdefault((tensor.data_type, tuple(tensor.dims)), []).append(v)
    for kind in by_kind.values():
        if len(kind) < 2:
            continue
        first: dict[bytes, Var] = {}
        for v in kind:
            kept = first.setdefault(_content(v.initializer), v)
            if kept is not v and not trace.stopped:
                note_equal(kept, v)
                trace.fired("equal_initializers", f"{v.name} = {kept.name}")
                block.replace(v, kept)
                block.remove_initializer(v)


def _merge_across(root: BindingBlock, floats: bool, small: bool, trace: Trace) -> None:
    """Merges equal constants of several blocks in `root` into one of the innermost block around
    them.
    """
    blocks = blocks_in(root)
    by_kind: dict[Hashable, list[tuple[Var, TensorProto]]] = {}
    for block in blocks if len(blocks) > 1 else ():
        for v, tensor in _constants(block):
            size = byte_count(v.type)
            large = size is not None and size > LARGEST_SUNK
            if (small or large) and (floats or tensor.data_type not in FLOAT_DTYPES):
                by_kind.setdefault((tensor.data_type, tuple(tensor.dims)), []).append((v, tensor))
    for kind in by_kind.values():
        equal: dict[bytes, list[tuple[Var, TensorProto]]] = {}
        for v, tensor in kind if len(kind) > 1 else ():
            equal.setdefault(_content(tensor), []).append((v, tensor))
        for members in equal.values():
            if len(members) > 1 and not trace.stopped:
                _merge_constants(dict(members), trace)


def _constants(block: BindingBlock) -> Iterator[tuple[Var, TensorProto]]:
    """The initializers and Constants of a block whose readers may read another value instead."""
    found = [(v, v.initializer) for v in block.initializers.values() if not v.is_input]
    for b in block.bindings:
        value = b.attrs.get("value") if b.is_op("Constant") else None
        if isinstance(value, TensorProto):
            found.append((b.out, value))
    for v, tensor in found:
        if tensor is None or v.returned or tensor.data_location == TensorProto.EXTERNAL:
            continue
        yield v, tensor


def _merge_constants(members: Mapping[Var, TensorProto], trace: Trace) -> None:
    """Makes the readers of all members read one value, in the innermost block around them."""
    around = [[*_outwards(v.block)] for v in members]
    above = next(block for block in around[0] if all(block in others for others in around))
    kept = next((v for v in members if v.block is above), None)
    if kept is None:
        if isinstance(above.proto, FunctionProto):
            return  # a function has no initializers
        kept = above.add_initializer(_renamed(members, above), next(iter(members)))
    others = [v for v in members if v is not kept]
    names = ", ".join(v.name for v in others)
    trace.fired("equal_constants_of_blocks", f"{names} = {kept.name}")
    for v in others:
        note_equal(kept, v)
        v.block.replace(v, kept)
        if v.definition is not None:
            v.block.remove(v.definition)
        else:
            v.block.remove_initializer(v)


def _outwards(block: BindingBlock) -> Iterator[BindingBlock]:
    """The block and those around it."""
    yield block
    while block.owner is not None:
        block = block.owner.block
        yield block


def _renamed(members: Mapping[Var, TensorProto], above: BindingBlock) -> TensorProto:
    """The tensor of the first member, under its name, or a new one if another value has it."""
    first = next(iter(members))
    tensor = copy_of(members[first])
    beside = (v for block in blocks_in(above.root) for v in block.vars() if v not in members)
    is_taken = any(v.name == first.name for v in beside)
    tensor.name = above.program.names.fresh(first.name) if is_taken else first.name
    return tensor


def _content(tensor: TensorProto | None) -> bytes:
    """The bytes of a tensor's elements, whichever field holds them."""
    if tensor is None:
        return b""
    if tensor.HasField("raw_data"):
        return b"r" + tensor.raw_data
    bare = copy_of(tensor)
    bare.ClearField("name")
    bare.ClearField("doc_string")
    serialized: bytes = bare.SerializeToString(deterministic=True)
    return b"f" + serialized


def merge_bindings(
    block: BindingBlock,
    trace: Trace,
    *,
    floats: bool = True,
    where: Callable[[Binding], bool] = lambda b: True,
) -> None:
    """Merges equal bindings among those for which `where` returns true."""
    block.schedule()
    first: dict[Hashable, Binding] = {}
    known: dict[Hashable, Binding] = {}
    merged: dict[Binding, list[Binding]] = {}
    call = cache(_call)  # rarely called: only for bindings with equal operators and operands
    for b in list(block.bindings):
        if (
            not where(b)
            or not _pure(b)
            or (not floats and b.is_op("Constant") and b.out.dtype in FLOAT_DTYPES)
        ):
            continue
        key = (b.domain, b.op, _operands(b))
        other = first.setdefault(key, b)
        if other is b:
            continue
        known.setdefault((key, call(other)), other)
        kept = known.setdefault((key, call(b)), b)
        if kept is b or trace.stopped or _both_returned(b, kept):
            continue
        pairs = [(o, n) for o, n in zip(b.outputs, kept.outputs, strict=True) if o and n]
        for old, new in pairs:
            note_equal(new, old)
        trace.fired("equal_bindings", str(b), [b.out.name])
        merged.setdefault(kept, []).append(b)
        for old, new in pairs:
            block.replace(old, new)
        block.remove(b)
    # at the end: otherwise a binding that replaces many would read its metadata again for each
    for kept, others in merged.items():
        metadata = merged_metadata([kept, *others])
        if metadata != {entry.key: entry.value for entry in kept.node.metadata_props}:
            kept.set_metadata(metadata)


def _both_returned(b: Binding, kept: Binding) -> bool:
    """Whether both bindings return graph outputs: two outputs cannot become one value."""
    pairs = zip(b.outputs, kept.outputs, strict=True)
    return any(p is not None and q is not None and p.returned and q.returned for p, q in pairs)


def _pure(b: Binding) -> bool:
    """Whether the binding is known to return equal results for equal operands."""
    return b.domain in ("", "ai.onnx.ml") and not draws(b) and not b.blocks and not b.has_refs


def _call(b: Binding) -> Hashable:
    """A key that distinguishes bindings of one operator with equal operands: the attributes, and
    which results are present.
    """
    return tuple(o is not None for o in b.outputs), _attributes(b)


def _operands(b: Binding) -> Hashable:
    """The operands without trailing absent ones; as a set if their order does not matter."""
    if b.op in SYMMETRIC and b.domain == "" and len(b.inputs) == 2:
        return frozenset(b.inputs)
    operands = tuple(b.inputs)
    while operands and operands[-1] is None:
        operands = operands[:-1]
    return operands


def _attributes(b: Binding) -> Hashable:
    """The attributes whose values differ from the defaults."""
    if b.is_op("Transpose"):
        return tuple(b.attr("perm") or ())
    return frozenset(map(_content_of, b.node.attribute)) - _defaults(b.op, b.version, b.domain)


@lru_cache(maxsize=1024)
def _defaults(op: str, version: int, domain: str) -> frozenset[bytes]:
    schema = attributes.schema(op, version, domain)
    return frozenset(
        () if schema is None else (_content_of(a.default_value) for a in schema.attributes.values())
    )


def _content_of(attribute: AttributeProto) -> bytes:
    bare = copy_of(attribute)
    bare.ClearField("doc_string")
    serialized: bytes = bare.SerializeToString(deterministic=True)
    return serialized
