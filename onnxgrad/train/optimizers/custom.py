"""A user's own update rule, as one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor

Rule = Callable[[Any, Tensor, Tensor, State, Moment], tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Custom(Optimizer):
    """function(math, p, g, state, at) -> (the new p, the new state), once for each parameter.

    It is written with + - * / and the operators of `math`, which is `onnxgrad.op` while a graph is
    built and numpy's counterpart (`onnxgrad.train.array_math`) where arrays are updated:
    `math.Sqrt(v)`, `math.Where(c, a, b)`. `at.rate` is the learning rate and `at.step` the number
    of the update from 1 on, in float64: `at.number(x)` brings what is computed of it to the dtype
    of p. initial: what is kept of a parameter, as it is before the first step, from its value; a
    number stands for an array of it like the parameter. elementwise: see Optimizer; only who says
    so is updated in blocks. Raises InputError when a result has another shape or dtype, or a state
    another name.

        def momentum(math, p, g, state, at):
            v = 0.9 * state["v"] + g
            return p - at.rate * v, {"v": v}

        training_step(model, optimizer=Custom(momentum, {"v": 0.0}))
    """

    function: Rule
    initial: Mapping[str, float] | Callable[[Array], Mapping[str, Array]] = field(
        default_factory=dict
    )
    elementwise: bool = field(default=False, kw_only=True)  # type: ignore[misc]  # of each instance here

    @property
    def name(self) -> str:
        """The function's, as none of our own."""
        return f"custom:{getattr(self.function, '__name__', type(self.function).__name__)}"

    def to_dict(self) -> dict[str, Any]:
        """The function's name and the learning rate: code is no part of a file."""
        return {"name": self.name, "lr": self.lr, "maximize": self.maximize}

    def state(self, parameter: Array) -> dict[str, Array]:
        """What `initial` says. Raises InputError for what is no array of numbers."""
        if not callable(self.initial):
            return {name: np.full_like(parameter, value) for name, value in self.initial.items()}
        found = {name: np.asarray(value) for name, value in self.initial(parameter).items()}
        for name, value in found.items():
            if value.dtype.kind not in "biuf":
                raise InputError(
                    f"{self.name}: the state '{name}' is {value.dtype}, not an array of numbers"
                )
        return found

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the function says."""
        answer = self.function(at.math, p, self._downhill(p, g), s, at)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            raise InputError(
                f"{self.name} returned {answer!r}, not a pair of the new parameter "
                "and its state by name"
            )
        new, kept = answer
        if set(kept) != set(s):
            raise InputError(
                f"{self.name} returned the states {sorted(kept)}, it was given {sorted(s)}"
            )
        for what, value, before in (
            ("parameter", new, p),
            *((f"state '{k}'", kept[k], s[k]) for k in s),
        ):
            if not _alike(value, before):
                raise InputError(
                    f"{self.name}: the new {what} is {_type(value)}, the old one {_type(before)}"
                )
        return new, dict(kept)


def _alike(value: Tensor, before: Tensor) -> bool:
    if not hasattr(value, "dtype") or value.dtype != before.dtype:
        return False
    return value.shape is None or tuple(value.shape) == tuple(before.shape)


def _type(value: Tensor) -> str:
    if not hasattr(value, "dtype"):
        return repr(value)
    return str(getattr(value, "type", None) or f"{value.dtype}{list(value.shape)}")
