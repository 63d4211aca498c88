"""Float32 master weights: parameters of few digits whose updates are made, and kept, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor


@dataclass(frozen=True)
class Master(Optimizer):
    """An optimiser on a float32 copy of each parameter, of which the parameter is what its dtype
    can hold.

    For float16 parameters, which an update below 1/2048 of their size would leave as they are. The
    gradient may come in float16 or, unscaled (`train.loss_scaling`), in float32. The optimiser's
    own states are float32 too. Source: Micikevicius et al., "Mixed Precision Training", 2018.
    """

    optimizer: Optimizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", self.optimizer.lr)
        object.__setattr__(self, "maximize", self.optimizer.maximize)

    @property
    def name(self) -> str:
        """The optimiser's."""
        return self.optimizer.name

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """As the optimiser."""
        return self.optimizer.elementwise

    def to_dict(self) -> dict[str, Any]:
        """The optimiser's, and that its weights are float32."""
        return {**self.optimizer.to_dict(), "master": "float32"}

    def state(self, parameter: Array) -> dict[str, Array]:
        """The parameter in float32 as `master`, and what the optimiser keeps of that."""
        master = parameter.astype(np.float32)
        return {"master": master, **self.optimizer.state(master)}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of the master weights, and the parameter rounded from them."""
        master = s["master"]
        wide = at.of(TensorProto.FLOAT)
        if g.dtype != master.dtype:
            g = wide.number(g)
        own = {name: value for name, value in s.items() if name != "master"}
        new, kept = self.optimizer.update(master, g, own, wide)
        return at.number(new), {"master": new, **kept}


def in_float32(optimizer: Optimizer, dtype: int) -> Optimizer:
    """The optimiser for parameters of that dtype: itself, or with master weights where they are
    narrower.
    """
    return optimizer if dtype in (TensorProto.FLOAT, TensorProto.DOUBLE) else Master(optimizer)
