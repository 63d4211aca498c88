"""f(split(y)_1), f(split(y)_2), ... = split(f(y)): moves operators after a merged product above its
Split. The parts lie along an axis, are channels in any order, or are stacked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import ACTIVATIONS
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array, numpy_dtype, same_dim, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.merging import concat, stack
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Trace, decline_if


@frozen
class Parts(ABC):
    """The parts of `whole`: `outs` has one for each branch, computed by the bindings `made`."""

    whole: Var
    outs: tuple[Var, ...]
    made: tuple[Binding, ...]

    @abstractmethod
    def takes(self, operand: Var, out: Var) -> bool:
        """Whether `join` accepts `operand`, the other operand of an operator that reads `out`."""

    @abstractmethod
    def join(self, operands: Sequence[Var | None]) -> Var | None:
        """Joins the operands of the branches into one operand for `whole`. A branch without one
        gets -0.0, which changes no sum.

        Returns None if that requires an unknown size.
        """

    @abstractmethod
    def of(self, whole: Var) -> tuple[Var, ...]:
        """Emits the same parts of another value."""

    def again(self, whole: Var) -> Parts:
        """Returns the Parts of another value, divided in the same way."""
        outs = self.of(whole)
        made = tuple(dict.fromkeys(v.definition for v in outs if v.definition is not None))
        return replace(self, whole=whole, outs=outs, made=made)


@frozen
class _Channels(Parts):
    """Parts along one axis that is followed by `behind` others. An operand has one value for each
    channel of its branch.
    """

    behind: int

    def takes(self, operand: Var, out: Var) -> bool:
        """Accepts one value per channel, or one constant for all channels."""
        shape, n = operand.shape, self._channels(out)
        if shape is None or n is None or out.rank is None or len(shape) > out.rank:
            return False
        if operand.is_constant and isinstance(n, int) and all(d == 1 for d in shape):
            return True
        k = len(shape) - 1 - self.behind
        return (
            k >= 0 and same_dim(shape[k], n) and all(d == 1 for i, d in enumerate(shape) if i != k)
        )

    def join(self, operands: Sequence[Var | None]) -> Var | None:
        """(C1, 1, 1), (C2, 1, 1), ... become (C1 + C2 + ..., 1, 1)."""
        rows = [self._row(v, out) for v, out in zip(operands, self.outs, strict=True)]
        found = [v for v in rows if v is not None]
        return None if len(found) < len(rows) else self._joined(found)

    def _joined(self, rows: Sequence[Var]) -> Var:
        return concat(rows, axis=0)

    def _row(self, operand: Var | None, out: Var) -> Var | None:
        n, ones = self._channels(out), [1] * self.behind
        if operand is None:
            return _no_bias((n, *ones), out.dtype) if isinstance(n, int) else None
        if operand.const is not None and isinstance(n, int):
            full = np.broadcast_to(operand.const.reshape(-1, *ones), (n, *ones))
            return constant(full, name=f"{operand.name}_row")
        return operand if operand.rank == 1 + self.behind else op.Reshape(operand, [-1, *ones])

    def _channels(self, out: Var) -> Any:
        return None if out.shape is None else out.shape[len(out.shape) - 1 - self.behind]


@frozen
class SplitParts(_Channels):
    """The outputs of one Split."""

    axis: int

    @staticmethod
    def read(split: Binding) -> SplitParts | None:
        """The parts of `split`; None if an output is absent or the rank is unknown."""
        whole, outs = split.inputs[0], [v for v in split.outputs if v is not None]
        rank = next((v.rank for v in (*outs, whole) if v is not None and v.rank is not None), None)
        axis = split.attr("axis", 0)
        if (
            whole is None
            or len(outs) < len(split.outputs)
            or rank == 0
            or (rank is None and axis != -1)
        ):
            return None
        behind = 0 if rank is None else rank - 1 - axis % rank
        return SplitParts(whole, tuple(outs), (split,), behind, axis)

    def of(self, whole: Var) -> tuple[Var, ...]:
        """Emits a Split with the same sizes, as an operand or (before opset 13) an attribute."""
        split = self.made[0]
        sizes: Any = split.inputs[1] if len(split.inputs) > 1 else split.attr("split")
        return op.Split(whole, sizes, axis=self.axis, outputs=len(self.outs))


@frozen
class GatheredParts(_Channels):
    """Channels of a grouped Conv gathered along axis 1: `indices` of each branch."""

    indices: tuple[tuple[int, ...], ...]

    @staticmethod
    def read(whole: Var) -> GatheredParts | None:
        """The Gathers along axis 1 that read `whole`; None unless they take each channel once."""
        gathers = [
            b
            for b in whole.users
            if b.is_op("Gather") and b.inputs[0] is whole and b.attr("axis") == 1
        ]
        indices = [b.inputs[1].ints for b in gathers if b.inputs[1] is not None]
        known = [tuple(i) for i in indices if i is not None]
        channels = None if whole.shape is None else whole.shape[1]
        if len(known) < len(whole.users) or not isinstance(channels, int) or whole.returned:
            return None
        if sorted(i for part in known for i in part) != list(range(channels)):
            return None
        outs = tuple(b.out for b in gathers)
        return GatheredParts(whole, outs, tuple(gathers), (whole.rank or 2) - 2, tuple(known))

    def of(self, whole: Var) -> tuple[Var, ...]:
        """Emits the same Gathers."""
        return tuple(op.Gather(whole, np.array(i, np.int64), axis=1) for i in self.indices)

    def _joined(self, rows: Sequence[Var]) -> Var:
        place = np.argsort(np.concatenate(self.indices))
        joined = concat(rows, axis=0)
        if joined.const is not None:
            return constant(joined.const[place], name=joined.name)
        return op.Gather(joined, place, axis=0)


@frozen
class StackedParts(Parts):
    """Results of one shape, stacked along a new axis 0: Squeeze(Split(whole))."""

    @staticmethod
    def read(split: Binding) -> StackedParts | None:
        """The parts of `split`; None if anything but a Squeeze of axis 0 reads a part."""
        whole = split.inputs[0]
        readers = [None if v is None else v.sole_user() for v in split.outputs]
        squeezes = [b for b in readers if b is not None and b.is_op("Squeeze")]
        if whole is None or split.attr("axis", 0) != 0 or len(squeezes) < len(split.outputs):
            return None
        if any(_axes(b) != (0,) for b in squeezes):
            return None
        return StackedParts(whole, tuple(b.out for b in squeezes), (split, *squeezes))

    def takes(self, operand: Var, out: Var) -> bool:
        """Accepts any operand of known sizes that broadcasts to the branch."""
        shape = operand.shape
        return (
            shape is not None
            and out.rank is not None
            and len(shape) <= out.rank
            and None not in shape
        )

    def join(self, operands: Sequence[Var | None]) -> Var | None:
        """Stacks the operands, as the results are stacked, in one shape."""
        shape = next((v.shape for v in operands if v is not None), None)
        rank = self.outs[0].rank
        if (
            shape is None
            or rank is None
            or any(v is not None and not same_shape(v.shape, shape) for v in operands)
        ):
            return None
        known = [d for d in shape if isinstance(d, int)]
        if None in operands and len(known) < len(shape):
            return None
        full = [_no_bias(known, self.outs[0].dtype) if v is None else v for v in operands]
        return stack(full, rank)

    def of(self, whole: Var) -> tuple[Var, ...]:
        """Emits a Split into parts of length 1, and squeezes each part."""
        parts = op.Split(whole, [1] * len(self.outs), axis=0, outputs=len(self.outs))
        return tuple(op.Squeeze(part, [0]) for part in parts)


def _axes(squeeze: Binding) -> tuple[int, ...] | None:
    given = squeeze.operand(1)
    return squeeze.attr("axes") if given is None else given.ints


def _no_bias(shape: Sequence[int], dtype: int) -> Var:
    array: Array = np.full(tuple(shape), -0.0, numpy_dtype(dtype))
    return constant(array, name="no_bias")


# elementwise operators of two operands, and whether the branch may be the second operand
_BESIDE = {"Add": True, "Mul": True, "Sub": False, "Div": False, "PRelu": False}


def lift_above_split(emitted: Sequence[Binding], trace: Trace) -> None:
    """Moves the operators that read the parts in `emitted` above the Split, as long as all branches
    have the same operators.
    """
    for found in list(_parts(emitted)):
        parts: Parts | None = found
        while parts is not None and not trace.stopped:
            parts = _operation(parts, trace) or _activation(parts, trace)


def _parts(emitted: Sequence[Binding]) -> Iterable[Parts]:
    for b in emitted:
        found: Parts | None = None
        if b.is_op("Split") and b.is_live:
            found = StackedParts.read(b) or SplitParts.read(b)
        elif b.is_op("Conv") and b.is_live and b.attr("group") > 1:
            found = GatheredParts.read(b.out)
        if found is not None:
            yield found


def _operation(parts: Parts, trace: Trace) -> Parts | None:
    """split(y)_1 + c1, split(y)_2 + c2, ... = split(y + concat(c1, c2, ...)); a branch without bias
    adds -0.0.

    Sub, Mul, Div and PRelu too, where each branch has one.
    """
    found = [_beside(out, parts) for out in parts.outs]
    readers = [None if pair is None else pair[0] for pair in found]
    first = next((b for b in readers if b is not None), None)
    if first is None or any(first.op != "Add" if b is None else b.op != first.op for b in readers):
        return None
    operands = [None if pair is None else pair[1] for pair in found]
    # an operand that is computed from another branch would close a cycle
    if any(c is not None and _comes_from(c, parts) for c in operands):
        return None
    replaced = [out if b is None else b.out for out, b in zip(parts.outs, readers, strict=True)]

    def whole() -> Var:
        joined = parts.join(operands)
        decline_if(
            joined is None,
            f"the operands of {first.op} have different or unknown sizes",
        )
        moved: Var = getattr(op, first.op)(parts.whole, joined)
        return moved

    return _moved(f"{first.op.lower()}_of_split", parts, replaced, whole, trace)


def _beside(out: Var, parts: Parts) -> tuple[Binding, Var] | None:
    """The only reader of a branch, and its other operand; None if it cannot move above the
    Split.
    """
    user = out.sole_user()
    if user is None or user.block is not parts.whole.block:
        return None  # the reader is in a nested block
    # before opset 7 these operators broadcast by an attribute
    if user.domain != "" or user.op not in _BESIDE or user.version < 7:
        return None
    if out.rank is None or user.out.rank != out.rank:
        return None
    second = user.inputs[0] is not out
    other = user.inputs[0 if second else 1]
    if (
        other is None
        or other.dtype != out.dtype
        or (second and not _BESIDE[user.op])
        or not parts.takes(other, out)
    ):
        return None
    return user, other


def _moved(
    law: str,
    parts: Parts,
    replaced: Sequence[Var],
    whole: Callable[[], Var],
    trace: Trace,
) -> Parts | None:
    """Emits `whole` and replaces the results `replaced` of the branches by its parts. Returns the
    new parts; None if that was declined.
    """
    moved: list[Parts] = []

    def build() -> dict[Var, Var]:
        moved.append(parts.again(whole()))
        return dict(zip(replaced, moved[0].outs, strict=True))

    readers = [v.definition for v in replaced if v.definition is not None]
    sources = [*parts.made, *(b for b in readers if b not in parts.made)]
    touched = Attempt(law, str(parts.made[0]), parts.whole.block, sources)(trace, build)
    parts.whole.block.remove_unused(parts.made)
    return None if touched is None else moved[0]


def _comes_from(v: Var, parts: Parts) -> bool:
    b = v.definition
    beside = [
        operand.definition for operand in parts.made[0].reads() if operand.definition is not None
    ]
    return b is not None and (b in parts.made or b.depends_on(set(parts.made), beside))


def _activation(parts: Parts, trace: Trace) -> Parts | None:
    """f(split(y)_1), f(split(y)_2), ... = split(f(y)) for one elementwise f"""
    users = [v.sole_user() for v in parts.outs]
    first = users[0]
    if first is None or first.domain != "" or first.op not in ACTIVATIONS or first.has_refs:
        return None
    readers = [u for u in users if u is not None]
    if len(readers) < len(users) or not all(_same_function(u, first) for u in readers):
        return None
    if first.block is not parts.whole.block or any(
        u.inputs[0] is not out for u, out in zip(readers, parts.outs, strict=True)
    ):
        return None

    def whole() -> Var:
        activated: Var = getattr(op, first.op)(parts.whole, *first.inputs[1:], **first.attrs)
        return activated

    return _moved("activation_of_split", parts, [u.out for u in readers], whole, trace)


def _same_function(a: Binding, b: Binding) -> bool:
    """Whether both have the same operator, attributes and further operands (such as the bounds of
    Clip), which must be constants.
    """
    rest = a.inputs[1:]
    return (
        a.is_op(b.op, b.domain)
        and a.block is b.block
        and a.attrs == b.attrs
        and rest == b.inputs[1:]
        and all(v is None or v.is_constant for v in rest)
    )
