"""The parts that RNN, GRU and LSTM share: operands by direction, states before each step, and a
sweep over time by Scan.

Gates are kept by a Scan in the operator's place (see `take_place`), or computed again from the
forward states Y, for all steps at once. Only the adjoint of the state passes from step to step, and
each cell's sweep is linear in it with coefficients known beforehand. Rows past their sequence
length keep their state, so both directions run in the order of X and nothing is reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.rules._common import plus
from onnxgrad.grad.sequences import nested
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant, emit_with_blocks
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var

Step = Callable[[Sequence[Var], Sequence[Var]], tuple[Sequence[Var], Sequence[Var]]]


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent operator; time-major, `mask` (T, B, 1) marks the steps that
    count.
    """

    index: int
    reverse: bool
    mask: Var | None

    def masked(self, v: Var, otherwise: float = 0.0) -> Var:
        """`v` (T, B, H) where a step counts, else a number."""
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
                f"the gradient of '{binding}' needs its hidden_size: neither "
                "attribute nor R's shape says"
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
        """`v` without its direction axis."""
        if len(self.reverse) == 1:
            return op.Squeeze(v, [axis])
        return op.Gather(v, constant(np.int64(d.index)), axis=axis)

    def state(self, v: Var | None, d: Direction) -> Var:
        """(B, H) of an initial state, or of the adjoint of a final one; zeros when there is
        none.
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
        """(T, B, H) of Y or its adjoint."""
        if not self.layout:
            return self.of_direction(v, d, 1)
        return op.Transpose(self.of_direction(v, d, 2), perm=[1, 0, 2])

    def before(self, series: Var, initial: Var, d: Direction) -> Var:
        """The state before each step, from that after each and the initial one."""
        first = op.Unsqueeze(initial, [0])
        if self.steps == 1:
            return first
        if not d.reverse:
            return op.Concat(first, op.Slice(series, [0], [-1], [0]), axis=0)
        later = op.Slice(series, [1], [np.iinfo(np.int64).max], [0])
        if d.mask is not None:  # what a row starts from at its own end
            later = op.Where(op.Slice(d.mask, [1], [np.iinfo(np.int64).max], [0]), later, first)
        return op.Concat(later, first, axis=0)

    def after(self, d: Direction) -> Var:
        """The hidden state after each step, (T, B, H); 0 where a step does not count."""
        return self.series(self._y[0], d)

    def h_before(self, d: Direction) -> Var:
        """The hidden state before each step, (T, B, H)."""
        return self.before(self.after(d), self.state(self.binding.operand(5), d), d)

    # ---- sums for all steps at once --------------------------------------------------------------

    def bias(self, d: Direction, part: int, start: int = 0, stop: int | None = None) -> Var | None:
        """The bias of the input (part 0) or of the recurrence (1), features start to stop."""
        b = self.binding.operand(3)
        if b is None:
            return None
        stop = self.width if stop is None else stop
        low = part * self.width
        return op.Slice(self.of_direction(b, d), [low + start], [low + stop], [0])

    def weight(self, v: Var, d: Direction, start: int = 0, stop: int | None = None) -> Var:
        """Rows start to stop of W or R, (rows, features)."""
        rows = self.of_direction(v, d)
        if stop is None or (start == 0 and stop == self.width):
            return rows
        return op.Slice(rows, [start], [stop], [0])

    def of_x(self, d: Direction) -> Var:
        """X W^T + Wb + Rb, (T * B, width)."""
        bias = plus(self.bias(d, 0), self.bias(d, 1))
        return op.Gemm(self.flat_x, self.weight(self.w, d), bias, transB=1)

    def in_time(self, flat: Var, width: int) -> Var:
        """(T * B, width) as (T, B, width)."""
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
        """The adjoint of each step's output, as one scanned operand; none when Y has no adjoint."""
        return [] if not g or g[0] is None else [d.masked(self.series(g[0], d))]

    def final(self, g: Sequence[Var | None], index: int, d: Direction) -> Var:
        """The adjoint of the final state Y_h (1) or Y_c (2)."""
        return self.state(g[index] if len(g) > index else None, d)

    def carry(self, d: Direction) -> list[Var]:
        """(T, B, 1), 1 where a step does not count and passes its adjoint on, as one scanned
        operand.
        """
        return [] if d.mask is None else [op.Cast(op.Not(d.mask), to=self.x.dtype)]

    def sweep(
        self, step: Step, states: Sequence[Var], scans: Sequence[Var], reverse: bool
    ) -> tuple[list[Var], ...]:
        """Run `step` over the first axis of `scans`; the final states and the stacked results."""
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
        """The partials of X, W, R, B, sequence_lens, initial_h, initial_c and P, from those of each
        direction.

        x, h: the adjoints of what W X and R H amount to, (T, B, width) each; they differ where a
        gate resets R H.
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
        """The adjoint of X, from that of what W X amounts to, (T, B, width) each."""
        flat = op.Flatten(self.joined(by_direction), axis=2)
        weight = op.Reshape(self.w, np.array([len(by_direction) * self.width, -1], np.int64))
        dx = reshape_like(op.MatMul(flat, weight), self.x)
        return op.Transpose(dx, perm=[1, 0, 2]) if self.layout else dx

    def b_partial(self, of_x: Sequence[Var], of_h: Sequence[Var]) -> Var:
        """The adjoint of B: of the input's bias, then of the recurrence's, for each direction."""
        sums = [
            op.ReduceSum(v, [0, 1], keepdims=0)
            for pair in zip(of_x, of_h, strict=True)
            for v in pair
        ]
        return reshape_like(op.Concat(*sums, axis=0), cast(Var, self.binding.operand(3)))

    def joined(self, by_direction: Sequence[Var]) -> Var:
        """Side by side along the features."""
        return by_direction[0] if len(by_direction) == 1 else op.Concat(*by_direction, axis=2)

    def stacked(self, by_direction: Sequence[Var], state: bool = False) -> Var:
        """With the direction axis back, where it belongs in weights or states."""
        axis = 1 if state and self.layout else 0
        parts = [op.Unsqueeze(v, [axis]) for v in by_direction]
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def flat_product(a: Var, b: Var) -> Var:
    """The sum over steps and batch of a^T b, (features of a, features of b)."""
    return op.Gemm(op.Flatten(a, axis=2), op.Flatten(b, axis=2), transA=1)


def _matrix(type_: Type | None) -> Type | None:
    """(batch, features) if the shape is unknown: onnxruntime needs the ranks in a Scan's body."""
    if isinstance(type_, TensorType) and type_.shape is None:
        return TensorType(type_.dtype, (None, None))
    return type_
