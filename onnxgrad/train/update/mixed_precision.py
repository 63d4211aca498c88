"""Dynamic loss scaling: float16 gradients do not vanish, and an update whose gradients overflow is
skipped.

A training step of a float16 model uses it as follows; `s` is its state, inputs of the graph:

1. differentiate `scaled(loss, s)` in place of the loss, which stays an output as it is;
2. `gs = unscaled(gs, s)` in float32, and `finite = all_finite(gs)`; then clip;
3. update with the optimiser over `Master` weights, at the moment whose step is `step -
   s["skipped"]`: skipped updates do not count;
4. each new parameter, state and average is `kept(finite, new, old)`;
5. `update(s, finite)` is the next state of the scaling.

Source: Micikevicius et al., "Mixed Precision Training", 2018; the rule is that of
torch.amp.GradScaler.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.options import Count, Positive, Range, check_fields
from onnxgrad.results import Plain
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor
from onnxgrad.train.update.clipping import in_dtype, widest

# the state of a narrow parameter that is the parameter in float32
MASTER = "master"
_ABOVE_1 = Range(math.nextafter(1, 2), sys.float_info.max, words="a finite number above 1")
_BETWEEN = Range(math.ulp(0.0), math.nextafter(1, 0), words="between 0 and 1")


@dataclass(frozen=True)
class LossScaling(Plain):
    """A scale that grows after growth_interval updates in a row without overflow, and shrinks after
    each overflow.

    Names and defaults are PyTorch's. Every function accepts Vars, or arrays with
    `math=train.array_math`. dynamic: False keeps the scale constant. Raises InputError for invalid
    numbers.
    """

    init_scale: Positive = 65536.0
    growth_factor: Annotated[float, _ABOVE_1] = 2.0
    backoff_factor: Annotated[float, _BETWEEN] = 0.5
    growth_interval: Count = 2000
    dynamic: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "loss scaling")

    def state(self) -> dict[str, Array]:
        """Returns the scalars of the state: the scale in float32, and in int64 the updates since
        its last change and the skipped updates.
        """
        zero = np.zeros((), np.int64)
        return {
            "scale": np.array(self.init_scale, np.float32),
            "growth_tracker": zero,
            "skipped": zero.copy(),
        }

    def scaled(self, loss: Any, s: State, math: Any = op) -> Any:
        """Returns loss * scale in float32, or in float64 if the loss is float64."""
        dtype = widest([loss])
        return in_dtype(loss, dtype, math) * in_dtype(s["scale"], dtype, math)

    def unscaled(self, gs: Sequence[Any], s: State, math: Any = op) -> list[Any]:
        """Returns each gradient / scale in float32, or in float64 if the gradient is float64."""
        inverse = 1.0 / s["scale"]
        return [in_dtype(g, widest([g]), math) * in_dtype(inverse, widest([g]), math) for g in gs]

    def update(self, s: State, finite: Any, math: Any = op) -> dict[str, Any]:
        """Returns the state after a step whose gradients were all finite, or not. A scale never
        grows to Inf.
        """
        none, one = np.int64(0), np.int64(1)
        skipped = s["skipped"] + math.Where(finite, none, one)
        if not self.dynamic:
            return {**s, "skipped": skipped}
        scale, count = s["scale"], s["growth_tracker"] + 1
        due = math.Equal(count, self.growth_interval)
        larger = scale * self.growth_factor
        grown = math.Where(math.And(due, math.Less(larger, np.float32(np.inf))), larger, scale)
        return {
            "scale": math.Where(finite, grown, scale * self.backoff_factor),
            "growth_tracker": math.Where(finite, math.Where(due, none, count), none),
            "skipped": skipped,
        }


def all_finite(gs: Sequence[Any], math: Any = op) -> Any:
    """Returns a bool scalar: whether no element is Inf or NaN. 0 times a finite number is 0, 0
    times any other is NaN.
    """
    dtype = widest(gs)
    total = None
    for g in gs:
        part = in_dtype(math.ReduceSum(0.0 * g, keepdims=0), dtype, math)
        total = part if total is None else total + part
    return math.Equal(total, 0.0)


def kept(finite: Any, new: Any, old: Any, math: Any = op) -> Any:
    """Returns the new value if all gradients of the step were finite, else the old one."""
    return math.Where(finite, new, old)


@dataclass(frozen=True)
class Master(Optimizer):
    """An optimiser that updates a float32 copy of each parameter; the parameter is the copy,
    rounded to its dtype.

    It is for float16 parameters, which do not change by an update below 1/2048 of their size. The
    gradient may be float16 or, unscaled (`LossScaling`), float32. The optimiser's states are
    float32, too. Source: Micikevicius et al., "Mixed Precision Training", 2018.
    """

    optimizer: Optimizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", self.optimizer.lr)
        object.__setattr__(self, "maximize", self.optimizer.maximize)

    @property
    def name(self) -> str:
        """The name of the optimiser."""
        return self.optimizer.name

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """As the optimiser."""
        return self.optimizer.elementwise

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of the optimiser, with the dtype of its weights."""
        return {**self.optimizer.to_dict(), MASTER: "float32"}

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the parameter in float32 as `master`, and the optimiser's state of it."""
        master = parameter.astype(np.float32)
        return {MASTER: master, **self.optimizer.state(master)}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the parameter rounded from the master weights after one step, and the state."""
        master = s[MASTER]
        wide = at.of(TensorProto.FLOAT)
        if g.dtype != master.dtype:
            g = wide.number(g)
        own = {name: value for name, value in s.items() if name != MASTER}
        new, kept = self.optimizer.update(master, g, own, wide)
        return at.number(new), {"master": new, **kept}
