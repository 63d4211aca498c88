"""Checkpointing: recompute instead of keep.

A mark belongs to a use of a value: *start* if the value enters a recomputed segment, *end* if it
leaves one. The graph's inputs and constants and every start-marked value are kept. The results of a
binding are kept if each of its operands is either kept and read without a start mark, or read
through an end mark. All other values are recomputed at most once, when the backward part needs
them. Random draws are always kept, because a second draw would differ.

A kept result is recomputed too if a rule compares it with an operand that is not kept. onnxruntime
may fuse the two computations of the operand differently, and then no element equals its own
maximum.

onnxruntime merges equal bindings and may run recomputation early, which would undo it. So a
recomputed segment reads its operands through `Where(c, x, x)`, whose condition depends on the
adjoint that arrives there. The result is x for every c, NaN and Inf included, but it cannot be
computed before that adjoint. (If the adjoint is a constant, as next to a loss that is a plain sum,
waiting has no effect, and folding may undo the segment.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import rule_of
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType
from onnxgrad.ir.var import Var

# a value's name: all its uses; (value, result): its use by the binding that defines `result`
Use: TypeAlias = "str | tuple[str, str]"


@frozen
class Checkpoint:
    """The starts and ends of recomputed segments, as marks on uses of values."""

    start: Sequence[Use] = ()
    end: Sequence[Use] = ()


@frozen
class Marks:
    """Resolved marks: pairs of a value and the binding that reads it."""

    start: frozenset[tuple[Var, Binding]]
    end: frozenset[tuple[Var, Binding]]

    def of(self, block: BindingBlock, *, nested: bool = False) -> Marks:
        """Returns the marks at bindings of this block, or of blocks nested in it."""
        start, end = (
            frozenset(use for use in uses if (use[1].block is not block) == nested)
            for uses in (self.start, self.end)
        )
        return Marks(start, end)


def resolve(block: BindingBlock, marks: Checkpoint) -> Marks:
    """Returns the marked uses, of values of nested graphs too. Raises InputError for an unknown
    value, and for a use that does not exist.
    """
    inner = [nested for b in block.walk() for nested in b.blocks.values()]
    values = {v.name: v for b in (*reversed(inner), block) for v in b.vars()}
    return Marks(frozenset(_uses(marks.start, values)), frozenset(_uses(marks.end, values)))


def _uses(marks: Iterable[Use], values: dict[str, Var]) -> list[tuple[Var, Binding]]:
    found = []
    for mark in marks:
        name, reader = (mark, None) if isinstance(mark, str) else mark
        if name not in values:
            raise InputError(f"checkpoint '{name}' is not a value of the model")
        v = values[name]
        readers = [outermost(b, v) for b in v.users]
        if reader is not None:
            by = values[reader].definition if reader in values else None
            if by not in readers:
                raise InputError(
                    f"checkpoint ('{name}', '{reader}'): no binding that defines '{reader}' reads "
                    f"'{name}'"
                )
            readers = [b for b in readers if b is by]
        found += [(v, b) for b in readers]
    return found


def outermost(reader: Binding, v: Var) -> Binding:
    """Returns the binding in the value's own block that reads it. A use inside a nested block
    counts as a use by the block's owner.
    """
    while reader.block is not v.block and reader.block.owner is not None:
        reader = reader.block.owner
    return reader


class Recomputation:
    """The view of the backward walk with checkpointing: it recomputes values that are not kept."""

    def __init__(self, block: BindingBlock, marks: Marks) -> None:
        block.schedule()
        self._marks = marks
        inside, self._lost = _recomputed(block, marks)
        self._segments = _segments(inside, self._lost)
        self._values: dict[Var, Var] = {}
        self._conditions: dict[int, Var | None] = {}
        self._barriers: dict[tuple[int, Var], Var] = {}
        self._originals: dict[Var, Var] = {}
        self._arrived: Mapping[Var, Sequence[Any]] = {}
        # determined now, because the backward part adds readers
        self._shared = {v for v in block.vars() if _is_shared(v)}
        self._awaited: set[Var] = set()

    def begin(self, arrived: Mapping[Var, Sequence[Any]]) -> None:
        """Remembers the mapping of partials: segments wait for those of weights."""
        self._arrived = arrived

    @property
    def originals(self) -> Mapping[Var, Var]:
        """The original values of copies and of barriers."""
        return self._originals

    def __call__(self, b: Binding, g: Sequence[Any]) -> Binding:
        """Returns `b` itself if all its operands and results are kept, else a stand-in whose
        operands and results are available.
        """
        if not any(v in self._lost for v in b.outputs):
            if not any(v in self._lost for v in b.reads()):
                return b
            rule = rule_of(b)
            if b.blocks or (rule is not None and rule.compares):
                return self._copy(b, g)
            # the list of outputs is shared, so an optional output that is added later is added to
            # `b` too
            return Binding(b.node, b.block, [v and self._value(v, g) for v in b.inputs], b.outputs)
        self._recompute(b, g)
        copy = next(self._values[v].definition for v in b.outputs if v in self._values)
        return b if copy is None else copy

    def _value(self, v: Var, g: Sequence[Any]) -> Var:
        if v in self._lost and v not in self._values and v.definition is not None:
            self._recompute(v.definition, g)
        return self._values.get(v, v) if v in self._lost else v

    def _recompute(self, binding: Binding, g: Sequence[Any]) -> None:
        """Copies `binding` and the bindings that it needs, operands first."""
        work = [binding]
        while work:
            b = work[-1]
            if any(v in self._values for v in b.outputs):
                work.pop()
                continue
            missing = [
                v.definition
                for v in b.reads()
                if v in self._lost
                and v not in self._values
                and v.definition is not None
                and v.definition is not b
            ]
            if missing:
                work.extend(missing)
                continue
            work.pop()
            self._copy(b, g)

    def _copy(self, b: Binding, g: Sequence[Any]) -> Binding:
        mapping: dict[Var, Var | None] = {v: self._operand(v, b, g) for v in b.reads()}
        (copy,) = clone_bindings([b], b.block, mapping, prefix="again_")
        for old, new in zip(b.outputs, copy.outputs, strict=True):
            if old is not None and new is not None:
                new.type = old.type
                self._values[old] = new
                self._originals[new] = old
        for old, stand_in in mapping.items():
            if stand_in is not None and stand_in is not old:
                self._originals.setdefault(stand_in, old)
        return copy

    def _operand(self, v: Var, b: Binding, g: Sequence[Any]) -> Var:
        if v in self._lost:
            return self._value(v, g)
        return self._barrier(v, b, g) if (v, b) in self._marks.start else v

    def _partials(self) -> list[Var]:
        """Returns partials of weights that several bindings read, each partial once. Their sum is
        computed last, and until then onnxruntime would keep the operands of each partial.
        """
        shared = [v for v in self._arrived if v in self._shared]
        new = [p for v in shared for p in self._arrived[v] if isinstance(p, Var)]
        new = [p for p in dict.fromkeys(new) if p not in self._awaited and p.definition is not None]
        self._awaited.update(new)
        return new

    def _barrier(self, v: Var, b: Binding, g: Sequence[Any]) -> Var:
        """Returns the barrier, waiting for the adjoint, by which the segment of `b` reads `v`."""
        segment = self._segments[b]
        if segment not in self._conditions:
            self._conditions[segment] = _condition(g, self._partials())
        condition = self._conditions[segment]
        if condition is None or not isinstance(v.type, TensorType):
            return v
        key = (segment, v)
        if key not in self._barriers:
            self._barriers[key] = barrier = _held(v, condition)
            barrier.type = v.type
        return self._barriers[key]


def _is_shared(v: Var) -> bool:
    """Whether several bindings read this weight or input, or the one of which it is an Identity."""
    b = v.definition
    weight = b.inputs[0] if b is not None and b.is_op("Identity") else v
    return weight is not None and weight.definition is None and len(weight.users) > 1


# the dtype to which a Where casts, because onnxruntime's CPU has kernels for some dtypes only; the
# casts are exact
_CARRIERS: dict[int, int] = {
    TensorProto.BFLOAT16: TensorProto.FLOAT,
    TensorProto.INT8: TensorProto.INT32,
    TensorProto.INT16: TensorProto.INT32,
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
}
_SELECTED = {
    *FLOAT_DTYPES,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT8,
    TensorProto.STRING,
}


def _held(v: Var, condition: Var) -> Var:
    """Emits a copy of `v` that waits for `condition`; returns `v` if its dtype prevents that."""
    if v.dtype == TensorProto.BOOL:
        return op.And(v, op.Or(v, condition))
    if v.dtype in _CARRIERS:
        carried = op.Cast(v, to=_CARRIERS[v.dtype])
        return op.Cast(op.Where(condition, carried, carried), to=v.dtype)
    return op.Where(condition, v, v) if v.dtype in _SELECTED else v


def _condition(g: Sequence[Any], partials: Sequence[Var]) -> Var | None:
    """Emits a bool that can be computed only after the adjoint and the partials: whether one of
    their first elements is NaN (false if there are none).
    """
    for adjoint in g:
        if isinstance(adjoint, Var) and adjoint.dtype in FLOAT_DTYPES:
            awaited = [adjoint, *(p for p in partials if p.dtype == adjoint.dtype)]
            firsts = [op.Slice(op.Reshape(v, [-1]), [0], [1]) for v in awaited]
            first = firsts[0] if len(firsts) == 1 else op.Concat(*firsts, axis=0)
            return op.IsNaN(op.ReduceSum(first, keepdims=0))
    return None


def _recomputed(block: BindingBlock, marks: Marks) -> tuple[dict[Binding, None], dict[Var, None]]:
    """Returns the bindings inside segments, and their results that are not kept.

    A use with both marks leaves one segment and enters the next.
    """
    started = {v for v, _ in marks.start}
    inside: dict[Binding, None] = {}
    lost: dict[Var, None] = {}
    for b in block.bindings:
        if draws(b) or not b.inputs:
            continue
        if all(
            (v, b) not in marks.start and (v not in lost or (v, b) in marks.end) for v in b.reads()
        ):
            continue
        inside[b] = None
        lost.update((v, None) for v in b.outputs if v is not None and v not in started)
    return inside, lost


def _segments(inside: Iterable[Binding], lost: dict[Var, None]) -> dict[Binding, int]:
    """Returns the number of each binding's segment. Segments are connected by values that are not
    kept, and separated by kept ones.
    """
    number: dict[Binding, int] = {}
    members: dict[int, list[Binding]] = {}
    for i, b in enumerate(inside):
        joined = {number[v.definition] for v in b.reads() if v in lost and v.definition in number}
        mine = min(joined, default=i)
        group = members.setdefault(mine, [])
        for other in joined - {mine}:
            for m in members.pop(other):
                number[m] = mine
                group.append(m)
        number[b] = mine
        group.append(b)
    return number
