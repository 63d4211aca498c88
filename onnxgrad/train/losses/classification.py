"""Losses of classes: cross entropy of class indices or probabilities, of sequences, of single
probabilities, and between distributions.

Cross entropy is ONNX's SoftmaxCrossEntropyLoss if that operator has the options: its gradient
(softmax - onehot) is the cheapest, and it subtracts the maximum before the exponential. Label
smoothing needs the log-probabilities, which are its second result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, Shape, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.options import Range, Share
from onnxgrad.train.losses.base import (
    Index,
    Numbers,
    OfExamples,
    OverBatch,
    Reduced,
    check_numbers,
    known,
    reduced,
    size,
)
from onnxgrad.train.losses.place import Place
from onnxgrad.train.losses.regression import Elementwise
from onnxgrad.train.losses.weighting import Balanced, is_balanced
from onnxgrad.wording import option, shape_text


def negative_log_likelihood(
    place: Place,
    z: Var,
    labels: Var,
    weight: Var | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    examples: Var | None = None,
) -> Var:
    """Returns -w_t log softmax(z)_t over all labels t that are not ignored, for scores (N, C, ...)
    and labels (N, ...). examples: factors that broadcast to the labels.

    The mean divides by the sum of w_t. The result is NaN if a label is not a class: onnxruntime
    would count negative labels from the end, and other runtimes read memory out of range.
    """
    labels, outside = _checked(z, labels, ignore_index)
    wrong = outside
    wanted = 2 if label_smoothing else 1
    loss, *more = op.SoftmaxCrossEntropyLoss(
        z,
        labels,
        weight,
        ignore_index=ignore_index,
        outputs=wanted,
        reduction=reduction if examples is None else "none",
    )
    if examples is not None:
        kept = op.Not(op.Equal(labels, ignore_index))
        if more:
            each = op.Where(kept, -op.ReduceSum(_weighted(more[0], weight), [1], keepdims=0), 0.0)
            loss = (1.0 - label_smoothing) * loss + (label_smoothing / size(z, 1)) * each
        loss = op.ReduceSum(examples * loss, keepdims=0)
        if reduction == "mean":
            share = _share(labels, weight, kept, z.dtype)
            none = op.Equal(share, 0.0)
            wrong, loss = op.Or(wrong, none), loss / op.Where(none, 1.0, share)
    elif more:
        kept = op.Not(op.Equal(labels, ignore_index))
        uniform = _uniform(more[0], weight, kept)
        if reduction == "mean":
            uniform = uniform / _share(labels, weight, kept, z.dtype)
        loss = (1.0 - label_smoothing) * loss + (label_smoothing / size(z, 1)) * uniform
    loss = op.Where(wrong, constant(np.nan, z.dtype), loss)
    if reduction == "sum":
        return loss

    def divisor() -> Var:
        kept = op.Not(op.Equal(labels, ignore_index))
        return op.Where(outside, constant(np.nan, z.dtype), _share(labels, weight, kept, z.dtype))

    return place.mean(loss, divisor)


def _checked(z: Var, labels: Var, ignore_index: int) -> tuple[Var, Var]:
    """Returns the labels with those out of range ignored, and whether a label was out of range."""
    classes = None if z.shape is None else z.shape[1]
    count = (
        classes
        if isinstance(classes, int)
        else op.Cast(op.Gather(op.Shape(z), np.int64(1)), to=labels.dtype)
    )
    outside = op.Or(op.Less(labels, 0), op.GreaterOrEqual(labels, count))
    wrong = op.And(outside, op.Not(op.Equal(labels, ignore_index)))
    some = op.Greater(op.ReduceSum(op.Cast(wrong, to=TensorProto.INT32), keepdims=0), 0)
    return op.Where(wrong, ignore_index, labels), some


def _uniform(log_p: Var, weight: Var | None, kept: Var) -> Var:
    """Returns -sum w_c log p_c over all classes and the samples that count."""
    log_p = _weighted(log_p, weight)
    return op.ReduceSum(op.Where(kept, -op.ReduceSum(log_p, [1], keepdims=0), 0.0), keepdims=0)


def _weighted(log_p: Var, weight: Var | None) -> Var:
    """Returns w_c log p_c, the classes along axis 1."""
    if weight is None:
        return log_p
    return log_p * op.Reshape(weight, [-1, *[1] * ((log_p.rank or 2) - 2)])


def _share(labels: Var, weight: Var | None, kept: Var, dtype: int) -> Var:
    """Returns the divisor of a mean: the number of labels that count, or the sum of their
    weights.
    """
    if weight is None:
        return op.ReduceSum(op.Cast(kept, to=dtype), keepdims=0)
    class_ = op.Where(kept, labels, 0)
    return op.ReduceSum(op.Where(kept, op.Gather(weight, class_), 0.0), keepdims=0)


@dataclass(frozen=True)
class _OfClasses(Reduced):
    """Base class of losses of class scores. weight: one number per class, or "balanced", which
    `fit` counts in its data. target_dtype: dtype of the labels' input (JavaScript has int32
    arrays).
    """

    target: str = "labels"
    weight: Numbers = None
    ignore_index: Index = -100
    label_smoothing: Share = 0.0
    target_dtype: Literal["int64", "int32"] = "int64"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_balanced(self) and not isinstance(self.weight, Balanced):
            check_numbers(self.name, weight=self.weight)

    @property
    def over_batch(self) -> OverBatch | None:
        """A mean over the labels that count, by the weights of their classes."""
        return "sum" if self.reduction == "sum" else "labels"

    @property
    def uneven(self) -> bool:
        """Whether ignore_index, weight or sample_weight is set."""
        return (
            self.weight is not None
            or self.sample_weight is not None
            or self.ignore_index != _OfClasses.ignore_index
        )

    def _weight(self, place: Place, z: Var, classes: Dim) -> Var | None:
        """Returns the weight of each class. Raises InputError unless there is one per class."""
        value = self.weight
        if value is None:
            return None
        if is_balanced(self):
            numbers = "weight=[NUMBER,...], such as the numbers that `onnxgrad fit` prints"
            raise InputError(
                f"{self.name}: weight=balanced counts the labels of the data, which only `fit` of "
                f"a model has: pass {option(numbers, 'weight=train.class_weights(labels)')}"
            )
        if isinstance(value, Balanced):
            value = value.numbers(classes if isinstance(classes, int) else None)
        shape = np.shape(value)
        if len(shape) != 1 or (isinstance(classes, int) and shape[0] != classes):
            raise InputError(
                f"{self.name}: weight is one number per class, {classes or '?'} of them, not an "
                f"array {shape_text(shape)}"
            )
        if not np.any(value):
            raise InputError(f"{self.name}: the weight of each class is 0: no label counts")
        place.weights[self.target] = tuple(np.asarray(value, np.float64).tolist())
        return known(value, z)

    def _labels(self, place: Place, classes: Dim, shape: Shape) -> Var:
        """Returns the labels' input, with its range if the number of classes is known."""
        known_classes = classes if isinstance(classes, int) else None
        place.classes.setdefault(self.target, (known_classes, self.ignore_index))
        dtype = TensorProto.INT32 if self.target_dtype == "int32" else TensorProto.INT64
        return place.labels(self.target, dtype, shape, self.name)

    def _examples(self, place: Place, labels: Var, z: Var) -> Var | None:
        """Returns the factor of each label, in the shape of the labels; None without any."""
        found = self.factors(place, z.dtype, labels.shape or ())
        return None if found is None else op.Expand(found, op.Shape(labels))

    def _of_indices(
        self, place: Place, z: Var, labels: Var, weight: Var | None, examples: Var | None
    ) -> Var:
        return negative_log_likelihood(
            place,
            z,
            labels,
            weight,
            examples=examples,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class CrossEntropy(_OfClasses):
    """-w_t log softmax(z)_t, t the index of the right class along `axis`:
    torch.nn.CrossEntropyLoss.

    The mean is over the weights w_t of the labels that are not `ignore_index`; without such labels
    it is NaN, with a gradient of 0. label_smoothing s: the target is (1 - s) onehot(t) + s / C.
    probabilities: the target is a distribution over the classes, with the shape of the scores, and
    the mean is over the distributions. axis: the axis of the classes, 1 as in PyTorch, 0 for a
    single vector of scores. A label that is not a class makes the loss NaN and the gradient 0 on
    every runtime.
    """

    name: ClassVar[str] = "cross_entropy"
    axis: Index = 1
    probabilities: bool = False

    @property
    def over_batch(self) -> OverBatch | None:
        """A mean over distributions, with any weights of classes, or as for other labels."""
        return self.reduction if self.probabilities else super().over_batch

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError for scores without that axis, and for a weight without
        one number per class.
        """
        z = place.prediction(self.output)
        shape, axis = z.shape or (), self._axis(z)
        weight = self._weight(place, z, shape[axis])
        if self.probabilities:
            target = place.labels(self.target, z.dtype, shape, self.name)
            first = 0 if axis else -1
            examples = self.factors(place, z.dtype, shape, first)
            return self._of_distributions(place, z, target, weight, examples, axis)
        rest = (*shape[:axis], *shape[axis + 1 :])
        labels = self._labels(place, shape[axis], rest)
        examples = self._examples(place, labels, z)
        if axis != 1:
            z, labels = in_rows(z, axis), op.Reshape(labels, [-1])
            examples = None if examples is None else op.Reshape(examples, [-1])
        return self._of_indices(place, z, labels, weight, examples)

    def _axis(self, z: Var) -> int:
        rank = z.rank or 0
        axis = 0 if rank == 1 and self.axis == 1 else self.axis
        if not -rank <= axis < rank:
            raise InputError(
                f"cross_entropy of '{z.name}', {z.type}: it needs scores (N, C, ...) "
                f"with an axis {axis}"
            )
        sizes = z.shape or ()
        if axis == 1 and rank > 2 and isinstance(sizes[-1], int) and not isinstance(sizes[1], int):
            last = option("--loss 'cross_entropy{axis=-1}'", "train.CrossEntropy(axis=-1)")
            raise InputError(
                f"cross_entropy of '{z.name}', {z.type}: the size of axis 1 is open, and classes "
                f"have a fixed number: if they are the last axis, pass {last} (axis={1 - rank}: "
                "axis 1 in spite of this)"
            )
        return axis % rank

    def _of_distributions(
        self,
        place: Place,
        z: Var,
        p: Var,
        weight: Var | None,
        examples: Var | None,
        axis: int,
    ) -> Var:
        """Returns -sum p w log softmax(z), divided by the number of distributions."""
        classes = size(z, axis)
        if s := self.label_smoothing:
            p = (1.0 - s) * p + s / classes
        terms = p * op.LogSoftmax(z, axis=axis)
        if weight is not None:
            terms = terms * op.Reshape(weight, [-1 if i == axis else 1 for i in range(z.rank or 0)])
        terms = terms if examples is None else terms * examples
        total = -op.ReduceSum(terms, keepdims=0)
        if self.reduction == "sum":
            return total
        divisor = op.Cast(op.Size(z), to=z.dtype) / classes
        return place.mean(total / divisor, lambda: divisor)


@dataclass(frozen=True)
class SequenceCrossEntropy(_OfClasses):
    """Cross entropy of a language model, shifted: scores at i predict the label at i + shift (1).

    logits have shape (..., S, V), labels (..., S). The last `shift` scores have no label, the first
    `shift` labels no score. The labels of a causal model are its tokens, with `ignore_index` for
    padding. If the data set has shifted its labels already, use shift=0.
    """

    name: ClassVar[str] = "sequence_cross_entropy"
    shift: Annotated[int, Range(0, (1 << 31) - 1)] = 1

    @property
    def uneven(self) -> bool:
        """True: sequences are padded with labels that are ignored."""
        return True

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError for scores without a sequence axis."""
        z = place.prediction(self.output)
        shape: Shape = z.shape or ()
        if len(shape) < 2:
            raise InputError(f"{self.name} of '{z.name}', {z.type}: it needs scores (B, S, V)")
        weight = self._weight(place, z, shape[-1])
        labels = self._labels(place, shape[-1], shape[:-1])
        examples = self._examples(place, labels, z)
        examples = None if examples is None else op.Reshape(examples, [-1])
        if self.shift:
            place.unread[self.target] = self.shift
            # the labels move, not the scores, which are V times as large
            rank = len(shape) - 1
            moved = op.Slice(labels, [self.shift], [(1 << 31) - 1], [rank - 1])
            ignored = np.array(self.ignore_index, numpy_dtype(labels.dtype))
            filled = op.Expand(ignored, op.Shape(labels))
            unlabelled = op.Slice(filled, [-self.shift], [(1 << 31) - 1], [rank - 1])
            labels = op.Concat(moved, unlabelled, axis=rank - 1)
        rows = in_rows(z, len(shape) - 1)
        return self._of_indices(place, rows, op.Reshape(labels, [-1]), weight, examples)


def in_rows(z: Var, axis: int) -> Var:
    """Returns scores as a matrix with one column per class."""
    rank = z.rank or 0
    if axis != rank - 1:
        z = op.Transpose(z, perm=[*(i for i in range(rank) if i != axis), axis])
    return z if rank == 2 else op.Flatten(z, axis=rank - 1)


@dataclass(frozen=True)
class BCEWithLogits(Elementwise):
    """-w (p t log s(z) + (1 - t) log (1 - s(z))), s the logistic function:
    torch.nn.BCEWithLogitsLoss.

    weight w and pos_weight p are numbers that broadcast to the shape of the scores; pos_weight
    usually has one per class, or is "balanced": the number of labels 0 over that of labels 1, which
    `fit` counts in its data.
    """

    name: ClassVar[str] = "bce_with_logits"
    target: str = "labels"
    weight: Numbers = None
    pos_weight: Numbers = None

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = None if is_balanced(self) else self.pos_weight
        check_numbers(self.name, weight=self.weight, pos_weight=numbers)

    def of(self, y: Var, t: Var) -> Var:
        """Returns w (p t softplus(-z) + (1 - t) softplus(z)), without cancellation for scores that
        are nearly right.
        """
        positive = t if self.pos_weight is None else self._factor(y, "pos_weight") * t
        each = positive * softplus(-y) + (1.0 - t) * softplus(y)
        return each if self.weight is None else self._factor(y, "weight") * each

    def _factor(self, z: Var, name: str) -> Var:
        """Returns an option as a constant. Raises InputError if it does not broadcast to
        the scores.
        """
        if is_balanced(self):
            raise InputError(
                f"{self.name}: pos_weight=balanced counts the labels of the data, which only `fit` "
                "of a model has: pass the numbers, (1 - labels).sum(0) / labels.sum(0)"
            )
        value = getattr(self, name)
        own, wanted = np.shape(value), z.shape or ()
        sizes = list(zip(own[::-1], wanted[::-1]))
        if len(own) > len(wanted) or any(a not in (1, b) for a, b in sizes if isinstance(b, int)):
            raise InputError(
                f"{self.name}: {name} is an array {own}, which does not broadcast to "
                f"'{z.name}', {z.type}"
            )
        return known(value, z)


@dataclass(frozen=True)
class KLDiv(OfExamples):
    """t (log t - y) for an output y of log-probabilities: torch.nn.KLDivLoss. With log_target, the
    target is log t.

    reduction "batchmean" divides by the size of the first axis and is the mathematical divergence;
    "mean", PyTorch's default, divides by the number of elements.
    """

    name: ClassVar[str] = "kl_div"
    output: str | None = None
    target: str = "target"
    reduction: Literal["mean", "sum", "batchmean"] = "mean"
    log_target: bool = False

    @property
    def over_batch(self) -> OverBatch | None:
        """As `reduction`, over examples."""
        return "sum" if self.reduction == "sum" else "mean"

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError for a batchmean of a scalar."""
        y = place.prediction(self.output)
        t = place.labels(self.target, y.dtype, y.shape or (), self.name)
        if self.log_target:
            terms = op.Exp(t) * (t - y)
        else:
            # 0 log 0 is 0
            terms = t * op.Log(op.Where(op.Equal(t, 0.0), 1.0, t)) - t * y
        terms = self.weighted(place, terms)
        if self.reduction != "batchmean":
            return reduced(place, terms, self.reduction)
        if not y.rank:
            raise InputError(f"{self.name} of '{y.name}', {y.type}: a batchmean needs a batch")
        count = size(y, 0)
        divisor = constant(count, y.dtype) if isinstance(count, float) else count
        return place.mean(reduced(place, terms, "sum") / count, lambda: divisor)


def softplus(x: Var) -> Var:
    """Returns log(1 + exp(x)) without overflow, and with a derivative at 0.

    onnxruntime's Softplus is exact to the last digit in float32; in float64 it is missing, or
    infinite from 710 on.
    """
    if x.dtype == TensorProto.FLOAT:
        return op.Softplus(x)
    positive = op.Greater(x, 0.0)
    away = op.Where(positive, -x, x)
    return op.Where(positive, x, 0.0) + op.Log(1.0 + op.Exp(away))
