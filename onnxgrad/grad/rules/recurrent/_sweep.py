"""The parts that RNN, GRU and LSTM share: operands by direction, states before each step, and a
sweep over time by Scan.

Gates are stored by a Scan that replaces the operator (see `take_place`), or computed again from the
forward states Y for all steps at once. Only the adjoint of the state passes from step to step. Each
cell's sweep is linear in it, with coefficients that are known beforehand. Rows past their sequence
length keep their state, so both directions run in the order of X and no row is reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import plus
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, nested
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var

Step = Callable[[Sequence[Var], Sequence[Var]], tuple[Sequence[Var], Sequence[Var]]]


@frozen
class Direction:
    """One direction of a recurrent operator. Its `mask` (T, B, 1) is true at steps within the
    length of each row; time is the first axis.
    """

    index: int
    reverse: bool
    mask: Var | None

    def masked(self, v: Var, otherwise: float = 0.0) -> Var:
        """Returns `v` (T, B, H) with a number at the steps past the length of a row."""
        return v if self.mask is None else op.Where(self.mask, v, otherwise)


class Recurrent:
    """The operands of a binding in one layout: time, batch, direction, features."""

    def __init__(self, binding: Binding, y: Sequence[Var], gate_count: int) -> None:
        self.binding = binding
        x, w, r = binding.inputs[:3]
        if x is None or w is None or r is None:
            raise InputError(f"'{binding}' lacks one of its inputs X, W, R")
        kind = binding.attr("direction", "forward")
        self.reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
            str(kind)
        ]
        hidden = binding.attr("hidden_size", None) or (r.shape[2] if r.shape is not None else None)
        if not isinstance(hidden, int):
            raise InputError(
                f"the gradient of '{binding}' needs hidden_size, but neither "
                "the attribute nor the shape of R states it"
            )
        self.hidden = hidden
        self.width = gate_count * hidden
        self.layout = int(binding.attr("layout", 0))
        self.x = op.Transpose(x, perm=[1, 0, 2]) if self.layout else x
        self.flat_x = op.Flatten(self.x, axis=2)
        self.w, self.r = w, r
        self.steps, self.batch = self.x.shape[:2] if self.x.shape is not None else (None, None)
        self._y = y
        mask = self._mask(binding.operand(4))
        self.directions = [Direction(d, reverse, mask) for d, reverse in enumerate(self.reverse)]

    def _mask(self, lengths: Var | None) -> Var | None:
        if lengths is None:
            return None
        if isinstance(self.steps, int):
            times: Any = constant(np.arange(self.steps, dtype=np.int64).reshape(-1, 1))
        else:
            end = op.Squeeze(op.Shape(self.x, start=0, end=1), [0])
            times = op.Unsqueeze(op.Range(constant(np.int64(0)), end, constant(np.int64(1))), [1])
        return op.Unsqueeze(op.Less(times, op.Cast(lengths, to=TensorProto.INT64)), [2])

    # ---- operands of one direction ---------------------------------------------------------------

    def of_direction(self, v: Var, d: Direction, axis: int = 0) -> Var:
        """Removes the direction axis of `v`."""
        if len(self.reverse) == 1:
            return op.Squeeze(v, [axis])
        return op.Gather(v, constant(np.int64(d.index)), axis=axis)

    def state(self, v: Var | None, d: Direction) -> Var:
        """Returns an initial state, or the adjoint of a final one, as (B, H).

        Returns zeros if `v` is None.
        """
        if v is not None:
            return self.of_direction(v, d, 1 if self.layout else 0)
        size: Any = (
            np.array([self.batch, self.hidden], np.int64)
            if isinstance(self.batch, int)
            else op.Concat(op.Shape(self.x, start=1, end=2), [self.hidden], axis=0)
        )
        zero = (
            constant(0.0, self.x.dtype)
            if self.x.dtype
            else zeros_like(op.Slice(op.Reshape(self.x, [-1]), [0], [1], [0]))
        )
        return op.Expand(zero, size)

    def series(self, v: Var, d: Direction) -> Var:
        """Returns (T, B, H) of Y or its adjoint."""
        if not self.layout:
            return self.of_direction(v, d, 1)
        return op.Transpose(self.of_direction(v, d, 2), perm=[1, 0, 2])

    def before(self, series: Var, initial: Var, d: Direction) -> Var:
        """Returns the state before each step, given the state after each and the initial one."""
        first = op.Unsqueeze(initial, [0])
        if self.steps == 1:
            return first
        if not d.reverse:
            return op.Concat(first, op.Slice(series, [0], [-1], [0]), axis=0)
        later = op.Slice(series, [1], [np.iinfo(np.int64).max], [0])
        if d.mask is not None:  # a reversed row starts from the initial state at its end
            later = op.Where(op.Slice(d.mask, [1], [np.iinfo(np.int64).max], [0]), later, first)
        return op.Concat(later, first, axis=0)

    def after(self, d: Direction) -> Var:
        """Returns the hidden state after each step, (T, B, H); 0 past the length of a row."""
        return self.series(self._y[0], d)

    def h_before(self, d: Direction) -> Var:
        """Returns the hidden state before each step, (T, B, H)."""
        return self.before(self.after(d), self.state(self.binding.operand(5), d), d)

    # ---- sums for all steps at once --------------------------------------------------------------

    def bias(self, d: Direction, part: int, start: int = 0, stop: int | None = None) -> Var | None:
        """Returns the bias of the input (part 0) or recurrence (1), features start to stop."""
        b = self.binding.operand(3)
        if b is None:
            return None
        stop = self.width if stop is None else stop
        low = part * self.width
        return op.Slice(self.of_direction(b, d), [low + start], [low + stop], [0])

    def weight(self, v: Var, d: Direction, start: int = 0, stop: int | None = None) -> Var:
        """Returns the rows start to stop of W or R, (rows, features)."""
        rows = self.of_direction(v, d)
        if stop is None or (start == 0 and stop == self.width):
            return rows
        return op.Slice(rows, [start], [stop], [0])

    def of_x(self, d: Direction) -> Var:
        """Returns X W^T + Wb + Rb, (T * B, width)."""
        bias = plus(self.bias(d, 0), self.bias(d, 1))
        return op.Gemm(self.flat_x, self.weight(self.w, d), bias, transB=1)

    def in_time(self, flat: Var, width: int) -> Var:
        """Reshapes (T * B, width) to (T, B, width)."""
        sizes = (self.steps, self.batch)
        if all(isinstance(n, int) for n in sizes):
            target: Any = np.array([*sizes, width], np.int64)
        elif isinstance(self.steps, int) and self.steps:
            target = np.array([self.steps, -1, width], np.int64)
        elif isinstance(self.batch, int) and self.batch:
            target = np.array([-1, self.batch, width], np.int64)
        else:
            target = op.Concat(op.Shape(self.x, start=0, end=2), [width], axis=0)
        return op.Reshape(flat, target)

    def seed(self, g: Sequence[Var | None], d: Direction) -> list[Var]:
        """Returns the adjoint of each step's output to scan over; empty if Y has no adjoint."""
        return [] if not g or g[0] is None else [d.masked(self.series(g[0], d))]

    def final(self, g: Sequence[Var | None], index: int, d: Direction) -> Var:
        """Returns the adjoint of the final state Y_h (1) or Y_c (2)."""
        return self.state(g[index] if len(g) > index else None, d)

    def carry(self, d: Direction) -> list[Var]:
        """Returns (T, B, 1) to scan over: 1 at steps past the length of a row, which pass their
        adjoint on. Empty without a mask.
        """
        return [] if d.mask is None else [op.Cast(op.Not(d.mask), to=self.x.dtype)]

    def sweep(
        self, step: Step, states: Sequence[Var], scans: Sequence[Var], reverse: bool
    ) -> tuple[list[Var], ...]:
        """Runs `step` over the first axis of `scans`. Returns final states and stacked results."""
        if self.steps == 1:
            after, outs = step(states, [op.Squeeze(v, [0]) for v in scans])
            return list(after), [op.Unsqueeze(v, [0]) for v in outs]
        with nested("sweep") as block:
            inputs = [
                block.add_input(block.program.names.fresh("state"), _matrix(v.type)) for v in states
            ]
            elements = [
                block.add_input(
                    block.program.names.fresh("element"),
                    _matrix(TensorType(v.dtype, v.shape[1:] if v.shape is not None else None)),
                )
                for v in scans
            ]
            after, outs = step(inputs, elements)
            for v in (*after, *outs):
                is_new = v.block is block and v.definition is not None and not v.returned
                result = v if is_new else op.Identity(v)
                result.type = _matrix(result.type)
                block.add_output(result)
        types: list[Type | None] = [v.type for v in inputs]
        types += [
            TensorType(v.dtype, (self.steps, *(v.shape or (None, None))))
            for v in block.outputs[len(states) :]
        ]
        results = emit_with_blocks(
            "Scan",
            [*states, *scans],
            {"body": block},
            types,
            num_scan_inputs=len(scans),
            scan_input_directions=[1] * len(scans) if reverse else None,
            scan_output_directions=[1] * len(outs) if reverse and outs else None,
        )
        return list(results[: len(states)]), list(results[len(states) :])

    # ---- the adjoints of the operands ------------------------------------------------------------

    def partials(
        self,
        wanted: Sequence[bool],
        *,
        x: Sequence[Var],
        h: Sequence[Var],
        r: Sequence[Var],
        initial_h: Sequence[Var],
        initial_c: Sequence[Var] = (),
        p: Sequence[Var] = (),
    ) -> list[Any]:
        """Returns the partials of X, W, R, B, sequence_lens, initial_h, initial_c and P, given
        those of each direction.

        x, h: the adjoints of the products W X and R H, (T, B, width) each; they differ if a gate
        resets R H.
        """
        partials: list[Callable[[], Var] | None] = [
            lambda: self.x_partial(x),
            lambda: reshape_like(
                op.Gemm(op.Flatten(self.joined(x), axis=2), self.flat_x, transA=1), self.w
            ),
            lambda: self.stacked(r),
            lambda: self.b_partial(x, h),
            None,
            lambda: self.stacked(initial_h, state=True),
            lambda: self.stacked(initial_c, state=True),
            lambda: self.stacked(p),
        ]
        return [
            emit() if needed and emit is not None else None
            for needed, emit in zip(wanted, partials)
        ]

    def x_partial(self, by_direction: Sequence[Var]) -> Var:
        """Returns the adjoint of X, given the adjoints of W X, (T, B, width) each."""
        flat = op.Flatten(self.joined(by_direction), axis=2)
        weight = op.Reshape(self.w, np.array([len(by_direction) * self.width, -1], np.int64))
        dx = reshape_like(op.MatMul(flat, weight), self.x)
        return op.Transpose(dx, perm=[1, 0, 2]) if self.layout else dx

    def b_partial(self, of_x: Sequence[Var], of_h: Sequence[Var]) -> Var:
        """Returns the adjoint of B: for each direction the input's bias, then the recurrence's."""
        sums = [
            op.ReduceSum(v, [0, 1], keepdims=0)
            for pair in zip(of_x, of_h, strict=True)
            for v in pair
        ]
        return reshape_like(op.Concat(*sums, axis=0), cast(Var, self.binding.operand(3)))

    def joined(self, by_direction: Sequence[Var]) -> Var:
        """Concatenates the directions along the features."""
        return by_direction[0] if len(by_direction) == 1 else op.Concat(*by_direction, axis=2)

    def stacked(self, by_direction: Sequence[Var], state: bool = False) -> Var:
        """Stacks the directions along the direction axis of weights, or of states if `state`."""
        axis = 1 if state and self.layout else 0
        parts = [op.Unsqueeze(v, [axis]) for v in by_direction]
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def flat_product(a: Var, b: Var) -> Var:
    """Returns the sum over steps and batch of a^T b, (features of a, features of b)."""
    return op.Gemm(op.Flatten(a, axis=2), op.Flatten(b, axis=2), transA=1)


def _matrix(type_: Type | None) -> Type | None:
    """Returns (batch, features) if the shape is unknown, since a Scan's body needs known ranks."""
    if isinstance(type_, TensorType) and type_.shape is None:
        return TensorType(type_.dtype, (None, None))
    return type_
