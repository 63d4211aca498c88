"""Losses of vectors: angles and distances. Components lie along the last axis, or along `dim`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.train.losses.base import (
    Finite,
    Index,
    OfExamples,
    OverBatch,
    Positive,
    Reduced,
    Reduction,
    reduced,
)
from onnxgrad.train.losses.place import Place, fits

# what PyTorch adds to the squared lengths in CosineEmbeddingLoss
_EPSILON = 1e-12


@dataclass(frozen=True)
class Cosine(Reduced):
    """1 - cos(y, t) of the vectors along `dim`: one minus torch.nn.CosineSimilarity.

    Lengths below eps are replaced by eps.
    """

    name: ClassVar[str] = "cosine"
    dim: Index = 1
    eps: Positive = 1e-8

    @property
    def over_batch(self) -> OverBatch | None:
        """As `reduction`, unless the vectors lie along the batch axis."""
        return self.reduction if self.dim > 0 or self.dim == -1 else None

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError for an output without that axis."""
        y = place.prediction(self.output)
        rank = y.rank or 0
        dim = 0 if rank == 1 and self.dim == 1 else self.dim
        if not -rank <= dim < rank:
            raise InputError(f"{self.name} of '{y.name}', {y.type}: it has no axis dim={self.dim}")
        t = place.labels(self.target, y.dtype, y.shape or (), self.name)
        cos = op.ReduceSum(self._unit(y, dim) * self._unit(t, dim), [dim], keepdims=0)
        if rank > 1 and dim % rank == 0 and self.sample_weight is not None:
            raise InputError(f"{self.name}: with dim=0 no vector belongs to one example alone")
        return reduced(place, self.weighted(place, 1.0 - cos), self.reduction)

    def _unit(self, x: Var, dim: int) -> Var:
        return x / op.Clip(op.ReduceL2(x, [dim], keepdims=1), self.eps)


@dataclass(frozen=True)
class CosineEmbedding(Reduced):
    """1 - cos(x1, x2) if the label is 1, max(0, cos - margin) if it is -1:
    torch.nn.CosineEmbeddingLoss.

    output: x1, of shape (N, D) or (D). other: x2, another value of the model with that shape; None:
    a new input "other".
    """

    name: ClassVar[str] = "cosine_embedding"
    target: str = "labels"
    other: str | None = None
    margin: Finite = 0.0

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError unless the values are two vectors, or two lists of
        vectors, of one shape.
        """
        x1 = place.prediction(self.output)
        shape = x1.shape or ()
        if len(shape) not in (1, 2):
            raise InputError(
                f"{self.name} of '{x1.name}', {x1.type}: it needs vectors, (N, D) or (D)"
            )
        if self.other is None:
            x2 = place.labels("other", x1.dtype, shape, self.name)
        else:
            x2 = place.prediction(self.other)
            check_alike(self.name, x1, x2)
        labels = place.labels(self.target, TensorProto.INT64, shape[:-1], self.name)
        cos = op.ReduceSum(x1 * x2, [-1], keepdims=0) / op.Sqrt(_square(x1) * _square(x2))
        same = op.Where(op.Equal(labels, 1), 1.0 - cos, 0.0)
        apart = op.Where(op.Equal(labels, -1), op.Clip(cos - self.margin, 0.0), 0.0)
        return reduced(place, self.weighted(place, same + apart), self.reduction)


@dataclass(frozen=True)
class TripletMargin(OfExamples):
    """max(0, |a - p| - |a - n| + margin) with norms of order p along the last axis:
    torch.nn.TripletMarginLoss.

    anchor, positive, negative: the names of a, p and n, values of the model. swap: use the distance
    of n from the positive if it is smaller than that from the anchor (Balntas et al., "Learning
    local feature descriptors with triplets", 2016).
    """

    name: ClassVar[str] = "triplet_margin"
    anchor: str = "anchor"
    positive: str = "positive"
    negative: str = "negative"
    margin: Positive = 1.0
    p: Annotated[float, Range(math.ulp(0.0), math.inf, words="a number above 0")] = 2.0
    eps: Finite = 1e-6
    swap: bool = False
    reduction: Reduction = "mean"

    @property
    def over_batch(self) -> OverBatch | None:
        """As `reduction`, over triplets."""
        return self.reduction

    def emit(self, place: Place) -> Var:
        """Emits the loss. Raises InputError unless the values are vectors of one shape."""
        a, p, n = (place.prediction(name) for name in (self.anchor, self.positive, self.negative))
        if not a.rank:
            raise InputError(
                f"{self.name} of '{a.name}', {a.type}: it needs vectors along the last axis"
            )
        check_alike(self.name, a, p)
        check_alike(self.name, a, n)
        near, far = self._distance(a, p), self._distance(a, n)
        if self.swap:
            far = op.Min(far, self._distance(p, n))
        each = self.weighted(place, op.Clip(near - far + self.margin, 0.0))
        return reduced(place, each, self.reduction)

    def _distance(self, x: Var, y: Var) -> Var:
        """Returns the norm of x - y + eps, as torch.nn.PairwiseDistance does."""
        return norm(x - y + self.eps, self.p)


def norm(x: Var, p: float) -> Var:
    """Returns (sum |x|^p)^(1/p) along the last axis; the largest |x| for p = inf."""
    if p == 1.0:
        return op.ReduceL1(x, [-1], keepdims=0)
    if p == 2.0:
        return op.ReduceL2(x, [-1], keepdims=0)
    if p == math.inf:
        return op.ReduceMax(op.Abs(x), [-1], keepdims=0)
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(x), p), [-1], keepdims=0), 1.0 / p)


def check_alike(loss: str, x: Var, y: Var) -> None:
    """Raises InputError for two values of different shapes or dtypes."""
    if x.dtype != y.dtype or not fits(x.shape, y.shape or ()):
        raise InputError(
            f"{loss}: '{x.name}' is {x.type} and '{y.name}' is {y.type}: they must be alike"
        )


def _square(x: Var) -> Var:
    return op.ReduceSum(x * x, [-1], keepdims=0) + _EPSILON
