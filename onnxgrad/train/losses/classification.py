"""Losses of class scores: cross entropy with the index of the right class, with probabilities,
along a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, Shape
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Reduced, known, size
from onnxgrad.train.losses.checks import (
    Numbers,
    check_choice,
    check_flag,
    check_integer,
    check_numbers,
    check_within,
)
from onnxgrad.train.losses.likelihood import negative_log_likelihood
from onnxgrad.train.losses.place import Place


@dataclass(frozen=True)
class _OfClasses(Reduced):
    """What the losses of class scores share. target_dtype: of the labels' input (JavaScript has
    int32 arrays).
    """

    target: str = "labels"
    weight: Numbers = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    target_dtype: Literal["int64", "int32"] = "int64"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "target_dtype", self.target_dtype, ("int64", "int32"))
        check_numbers(self.name, weight=self.weight)
        check_integer(self.name, ignore_index=self.ignore_index)
        check_within(self.name, 0.0, 1.0, label_smoothing=self.label_smoothing)

    def _weight(self, z: Var, classes: Dim) -> Var | None:
        """The weight of each class. InputError unless there is one for each."""
        if self.weight is None:
            return None
        shape = np.shape(self.weight)
        if len(shape) != 1 or (isinstance(classes, int) and shape[0] != classes):
            raise InputError(
                f"{self.name}: weight is one number per class, {classes or '?'} of them, not an "
                f"array {shape}"
            )
        return known(self.weight, z)

    def _labels(self, place: Place, classes: Dim, shape: Shape) -> Var:
        """The labels' input; their range is known where the number of classes is."""
        known_classes = classes if isinstance(classes, int) else None
        place.classes.setdefault(self.target, (known_classes, self.ignore_index))
        dtype = TensorProto.INT32 if self.target_dtype == "int32" else TensorProto.INT64
        return place.labels(self.target, dtype, shape, self.name)

    def _of_indices(self, z: Var, labels: Var, weight: Var | None) -> Var:
        return negative_log_likelihood(
            z,
            labels,
            weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class CrossEntropy(_OfClasses):
    """-w_t log softmax(z)_t, t the index of the right class along `axis`:
    torch.nn.CrossEntropyLoss.

    The mean is over the weights w_t of the labels that are not `ignore_index`: NaN, with a gradient
    of 0, where there is none. label_smoothing s: the target is (1 - s) onehot(t) + s / C. With
    `probabilities` the target is a distribution over the classes, of the scores' shape, and the
    mean is over the distributions. axis: where the classes are; 1 as in PyTorch, 0 for a single
    vector of scores. A label that is no class makes the loss NaN and the gradient 0, in every
    runtime.
    """

    name: ClassVar[str] = "cross_entropy"
    axis: int = 1
    probabilities: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, axis=self.axis)
        check_flag(self.name, probabilities=self.probabilities)

    def emit(self, place: Place) -> Var:
        """The loss. Raises InputError for scores without that axis, and for a weight that is not
        one per class.
        """
        z = place.prediction(self.output)
        shape, axis = z.shape or (), self._axis(z)
        weight = self._weight(z, shape[axis])
        if self.probabilities:
            target = place.labels(self.target, z.dtype, shape, self.name)
            return self._of_distributions(z, target, weight, axis)
        rest = (*shape[:axis], *shape[axis + 1 :])
        labels = self._labels(place, shape[axis], rest)
        if axis != 1:
            z, labels = in_rows(z, axis), op.Reshape(labels, [-1])
        return self._of_indices(z, labels, weight)

    def _axis(self, z: Var) -> int:
        rank = z.rank or 0
        axis = 0 if rank == 1 and self.axis == 1 else self.axis
        if not -rank <= axis < rank:
            raise InputError(
                f"cross_entropy of '{z.name}', {z.type}: it needs scores (N, C, ...) "
                f"with an axis {axis}"
            )
        return axis % rank

    def _of_distributions(self, z: Var, p: Var, weight: Var | None, axis: int) -> Var:
        """-sum p w log softmax(z), over the number of distributions."""
        classes = size(z, axis)
        if s := self.label_smoothing:
            p = (1.0 - s) * p + s / classes
        terms = p * op.LogSoftmax(z, axis=axis)
        if weight is not None:
            terms = terms * op.Reshape(weight, [-1 if i == axis else 1 for i in range(z.rank or 0)])
        total = -op.ReduceSum(terms, keepdims=0)
        return (
            total
            if self.reduction == "sum"
            else total / (op.Cast(op.Size(z), to=z.dtype) / classes)
        )


@dataclass(frozen=True)
class SequenceCrossEntropy(_OfClasses):
    """Cross entropy of a language model: the scores at place i are of the label at place i + shift.

    logits (..., S, V), labels (..., S); the last `shift` scores have no label, the first `shift`
    labels no score. The labels of a causal model are its tokens, with `ignore_index` where there is
    padding. For labels that a data set has moved already: shift=0.
    """

    name: ClassVar[str] = "sequence_cross_entropy"
    shift: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, shift=self.shift)
        if self.shift < 0:
            raise InputError(f"{self.name}: shift must be 0 or more, not {self.shift}")

    def emit(self, place: Place) -> Var:
        """The loss. Raises InputError for scores without a sequence."""
        z = place.prediction(self.output)
        shape: Shape = z.shape or ()
        if len(shape) < 2:
            raise InputError(f"{self.name} of '{z.name}', {z.type}: it needs scores (B, S, V)")
        weight = self._weight(z, shape[-1])
        labels = self._labels(place, shape[-1], shape[:-1])
        if self.shift:
            place.unread[self.target] = self.shift
            # the labels move, not the scores, which are V times as large
            rank = len(shape) - 1
            moved = op.Slice(labels, [self.shift], [(1 << 31) - 1], [rank - 1])
            filled = op.Expand(_label(self.ignore_index, labels), op.Shape(labels))
            unlabelled = op.Slice(filled, [-self.shift], [(1 << 31) - 1], [rank - 1])
            labels = op.Concat(moved, unlabelled, axis=rank - 1)
        return self._of_indices(in_rows(z, len(shape) - 1), op.Reshape(labels, [-1]), weight)


def in_rows(z: Var, axis: int) -> Var:
    """Scores as a matrix with the classes in its columns."""
    rank = z.rank or 0
    if axis != rank - 1:
        z = op.Transpose(z, perm=[*(i for i in range(rank) if i != axis), axis])
    return z if rank == 2 else op.Flatten(z, axis=rank - 1)


def _label(index: int, labels: Var) -> np.generic:
    return np.int32(index) if labels.dtype == TensorProto.INT32 else np.int64(index)
