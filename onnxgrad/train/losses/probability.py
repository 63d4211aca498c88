"""Losses of probabilities: of one each, and of whole distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Loss, known, reduced, size
from onnxgrad.train.losses.checks import Numbers, check_choice, check_flag, check_numbers
from onnxgrad.train.losses.place import Place
from onnxgrad.train.losses.regression import Elementwise


@dataclass(frozen=True)
class BCEWithLogits(Elementwise):
    """-w (p t log s(z) + (1 - t) log (1 - s(z))), s the logistic function:
    torch.nn.BCEWithLogitsLoss.

    weight w and pos_weight p: numbers that broadcast to the scores' shape, pos_weight usually one
    per class.
    """

    name: ClassVar[str] = "bce_with_logits"
    target: str = "labels"
    weight: Numbers = None
    pos_weight: Numbers = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self.name, weight=self.weight, pos_weight=self.pos_weight)

    def of(self, y: Var, t: Var) -> Var:
        """w (p t softplus(-z) + (1 - t) softplus(z)): no difference of large numbers for what is
        nearly right
        """
        positive = t if self.pos_weight is None else self._factor(y, "pos_weight") * t
        each = positive * softplus(-y) + (1.0 - t) * softplus(y)
        return each if self.weight is None else self._factor(y, "weight") * each

    def _factor(self, z: Var, name: str) -> Var:
        """An option as a constant. InputError where it does not broadcast to the scores."""
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
class KLDiv(Loss):
    """t (log t - y), y the output as log-probabilities: torch.nn.KLDivLoss; with log_target t is
    log t as well.

    reduction "batchmean" is the divergence as mathematics has it, over the size of the first axis;
    "mean", PyTorch's default, divides by the number of elements.
    """

    name: ClassVar[str] = "kl_div"
    output: str | None = None
    target: str = "target"
    reduction: Literal["mean", "sum", "batchmean"] = "mean"
    log_target: bool = False

    def __post_init__(self) -> None:
        check_choice(self.name, "reduction", self.reduction, ("mean", "sum", "batchmean"))
        check_flag(self.name, log_target=self.log_target)

    def emit(self, place: Place) -> Var:
        """The loss. Raises InputError for a mean over the batch of a scalar."""
        y = place.prediction(self.output)
        t = place.labels(self.target, y.dtype, y.shape or (), self.name)
        if self.log_target:
            terms = op.Exp(t) * (t - y)
        else:
            # 0 log 0 is 0
            terms = t * op.Log(op.Where(op.Equal(t, 0.0), 1.0, t)) - t * y
        if self.reduction != "batchmean":
            return reduced(terms, self.reduction)
        if not y.rank:
            raise InputError(f"{self.name} of '{y.name}', {y.type}: a batchmean needs a batch")
        return reduced(terms, "sum") / size(y, 0)


def softplus(x: Var) -> Var:
    """log(1 + exp(x)) without overflow, with a derivative at 0 as well.

    onnxruntime's Softplus is exact to the last digit in float32, and in float64 absent or infinite
    from 710 on.
    """
    if x.dtype == TensorProto.FLOAT:
        return op.Softplus(x)
    positive = op.Greater(x, 0.0)
    away = op.Where(positive, -x, x)
    return op.Where(positive, x, 0.0) + op.Log(1.0 + op.Exp(away))
