"""Connectionist temporal classification: a loss for labels whose positions in time are unknown.

Source: Graves et al., "Connectionist temporal classification: labelling unsegmented sequence data
with recurrent neural networks", 2006. The forward recursion is a Scan in log space; its gradient,
the posterior of the positions, is derived by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, emitting, nested_block
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import (
    Index,
    OfExamples,
    OverBatch,
    Reduction,
    reduced,
)
from onnxgrad.train.losses.place import Place

# log 0: so small that it never counts beside a probability, finite so that its exponential has a
# derivative
_NEVER = -1e30


@dataclass(frozen=True)
class CTC(OfExamples):
    """-log p(labels), summed over all their positions in time: torch.nn.CTCLoss.

    output: scores or log-probabilities, (T, N, C), or (N, T, C) with `batch_first`. labels: (N, S);
    elements beyond the length of a row are not read. input_lengths, target_lengths: (N);
    input_lengths=None means that all inputs have length T. The mean is over the batch, of losses
    divided by the length of their target. Labels that do not fit into their input have an infinite
    loss (0 with `zero_infinity`) and a gradient of 0. Labels or lengths out of range make the whole
    loss NaN.
    """

    name: ClassVar[str] = "ctc"
    output: str | None = None
    target: str = "labels"
    input_lengths: str | None = "input_lengths"
    target_lengths: str = "target_lengths"
    blank: Index = 0
    reduction: Reduction = "mean"
    zero_infinity: bool = False
    batch_first: bool = False

    @property
    def over_batch(self) -> OverBatch | None:
        """As `reduction`, over sequences."""
        return self.reduction

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError for scores without these three axes, or without the
        class `blank`.
        """
        z = self._scores(place)
        shape = z.shape or ()
        names = place.block.program.names
        width = names.fresh(f"{self.target}_length")
        labels = self._integers(place, self.target, (shape[1], width))
        ends = None
        if self.input_lengths is not None:
            ends = self._integers(place, self.input_lengths, shape[1:2])
        lengths = self._integers(place, self.target_lengths, shape[1:2])

        steps, classes, room = _count(z, 0), _count(z, 2), _count(labels, 1)
        used = op.Less(op.Range(np.int64(0), room, np.int64(1)), op.Unsqueeze(lengths, [1]))
        wrong = [_outside(lengths, 0, room + 1), op.And(used, _outside(labels, 0, classes))]
        if ends is not None:
            wrong.append(_outside(ends, 0, steps + 1))
        used = op.And(used, op.Not(wrong[1]))
        lengths = op.Where(wrong[0], np.int64(0), lengths)

        path = _with_blanks(op.Where(used, labels, np.int64(self.blank)), self.blank)
        alpha = _forward(op.LogSoftmax(z, axis=2), path, steps, ends)
        each = self._each(-_at_the_end(alpha, lengths), lengths)
        loss = reduced(place, self.weighted(place, each), self.reduction)
        some = [
            op.Greater(op.ReduceSum(op.Cast(w, to=TensorProto.INT32), keepdims=0), 0) for w in wrong
        ]
        divisor = place.divisors.get(loss)
        for found in some:
            loss = op.Where(found, constant(np.nan, z.dtype), loss)
        return loss if divisor is None else place.mean(loss, divisor)

    def _scores(self, place: Place) -> Var:
        z = place.prediction(self.output)
        if z.rank != 3:
            raise InputError(f"{self.name} of '{z.name}', {z.type}: it needs scores (T, N, C)")
        classes = (z.shape or ())[2]
        if self.blank < 0 or (isinstance(classes, int) and self.blank >= classes):
            raise InputError(
                f"{self.name} of '{z.name}', {z.type}: there is no class blank={self.blank}"
            )
        return op.Transpose(z, perm=[1, 0, 2]) if self.batch_first else z

    def _integers(self, place: Place, name: str, shape: tuple[int | str | None, ...]) -> Var:
        found = place.labels(name, TensorProto.INT64, shape, self.name)
        return found if found.dtype == TensorProto.INT64 else op.Cast(found, to=TensorProto.INT64)

    def _each(self, each: Var, lengths: Var) -> Var:
        impossible = op.Greater(each, -0.5 * _NEVER)
        each = op.Where(
            impossible, constant(0.0 if self.zero_infinity else np.inf, each.dtype), each
        )
        if self.reduction == "mean":
            each = each / op.Cast(op.Max(lengths, np.int64(1)), to=each.dtype)
        return each


def _with_blanks(labels: Var, blank: int) -> Var:
    """Returns blank, l1, blank, l2, ..., blank, of shape (N, 2S + 1)."""
    pairs = op.Unsqueeze(labels, [2])
    blanks = op.Expand(np.int64(blank), op.Shape(pairs))
    body = op.Flatten(op.Concat(blanks, pairs, axis=2), axis=1)
    return op.Pad(body, [0, 0, 0, 1], np.int64(blank))


def _forward(log_p: Var, path: Var, steps: Var, ends: Var | None) -> Var:
    """Returns log alpha(s), the probability to reach position s of the path at the end of each
    input, of shape (N, 2S + 1).

    alpha_t(s) = p_t(path_s) (alpha(s) + alpha(s - 1) + alpha(s - 2) if path_s differs from
    path_(s-2)).
    """
    places = op.Expand(op.Unsqueeze(path, [0]), op.Concat(op.Reshape(steps, [1]), [1, 1], axis=0))
    emitted = op.GatherElements(log_p, places, axis=2)
    other = op.Equal(path, op.Pad(path, [0, 2, 0, -2], np.int64(-1)))
    leap = op.Where(
        op.Or(other, op.Less(_positions(path), 2)),
        constant(_NEVER, log_p.dtype),
        constant(0.0, log_p.dtype),
    )
    start = op.Where(
        op.Equal(_positions(path), 0), constant(0.0, log_p.dtype), constant(_NEVER, log_p.dtype)
    )
    start = op.Expand(start, op.Shape(path))
    scans = [emitted]
    if ends is not None:
        now = op.Range(np.int64(0), steps, np.int64(1))
        scans.append(op.Less(op.Unsqueeze(now, [1, 2]), op.Unsqueeze(ends, [0, 2])))

    at = emitter()
    block = nested_block("ctc")
    with emitting(block, share=True, sources=at.sources, made_by=at.made_by):
        state = TensorType(log_p.dtype, (*(log_p.shape or (None, None))[1:2], None))
        alpha = block.add_input(block.program.names.fresh("alpha"), state)
        here = block.add_input(block.program.names.fresh("log_p"), state)
        never = constant(_NEVER, log_p.dtype)
        ways = [
            alpha,
            op.Pad(alpha, [0, 1, 0, -1], never),
            op.Pad(alpha, [0, 2, 0, -2], never) + leap,
        ]
        come = op.ReduceLogSumExp(
            op.Concat(*[op.Unsqueeze(w, [0]) for w in ways], axis=0), [0], keepdims=0
        )
        new = come + here
        if ends is not None:
            active = block.add_input(
                block.program.names.fresh("active"), TensorType(TensorProto.BOOL, (None, 1))
            )
            new = op.Where(active, new, alpha)
        new.type = state
        block.add_output(new)
    (last,) = emit_with_blocks(
        "Scan", [start, *scans], {"body": block}, [state], num_scan_inputs=len(scans)
    )
    return last


def _at_the_end(alpha: Var, lengths: Var) -> Var:
    """Returns log(alpha(2 L) + alpha(2 L - 1)), at or after the last label, of shape (N,)."""
    last = op.Unsqueeze(2 * lengths, [1])
    before = op.GatherElements(alpha, op.Max(last - 1, np.int64(0)), axis=1)
    before = op.Where(op.Greater(last, 0), before, constant(_NEVER, alpha.dtype))
    both = op.Concat(op.GatherElements(alpha, last, axis=1), before, axis=1)
    return op.ReduceLogSumExp(both, [1], keepdims=0)


def _positions(path: Var) -> Var:
    return op.Range(np.int64(0), _count(path, 1), np.int64(1))


def _count(v: Var, axis: int) -> Var:
    return op.Gather(op.Shape(v), np.int64(axis))


def _outside(v: Var, low: int, high: Var) -> Var:
    return op.Or(op.Less(v, low), op.GreaterOrEqual(v, high))
