"""Losses of class scores."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Loss, Place, Reduction


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """mean -log softmax(z)[t], t the index of the right class along axis 1; the labels are int64."""

    output: str | None = None
    target: str = "labels"
    ignore_index: int = -100
    reduction: Reduction = "mean"

    def emit(self, place: Place) -> Var:
        """The loss. Raises InputError for scores without a class axis."""
        z = place.value(self.output)
        if z.shape is None or len(z.shape) < 2:
            raise InputError(f"cross entropy of '{z.name}', {z.type}: it needs scores (N, C, ...)")
        labels = place.labels(self.target, TensorType(TensorProto.INT64, (z.shape[0], *z.shape[2:])))
        return op.SoftmaxCrossEntropyLoss(z, labels, ignore_index=self.ignore_index, reduction=self.reduction)
