"""Base classes of optimisers: a state per parameter, and one formula for graphs and arrays.

A formula is written once, with `+ - * /` and `at.math`. Over values of a graph it emits nodes, over
NumPy arrays it computes. The portable training step contains it as nodes; the blocks engine applies
it to blocks of memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from onnx import helper

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.named_options import name_of
from onnxgrad.options import Declared, NonNegative, check_fields
from onnxgrad.results import Plain
from onnxgrad.train import array_math
from onnxgrad.wording import shape_text

# a Var while a graph is built, an array while arrays are updated
Tensor = Any
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Moment:
    """The step number, learning rate and arithmetic of an update.

    learning_rate: a floating-point scalar. step: the number of this update from 1 on, a float64
    scalar: powers such as 0.999^t need its digits. math: `op`, or the same functions over arrays
    (`train.array_math`). dtype: the ONNX element type of the parameters.
    """

    learning_rate: Tensor
    step: Tensor
    math: Any
    dtype: int

    @cached_property
    def rate(self) -> Tensor:
        """The learning rate in the parameters' dtype."""
        return self.number(self.learning_rate)

    def number(self, value: Tensor) -> Tensor:
        """Returns a value, usually a float64 scalar, in the parameters' dtype."""
        return self.math.Cast(value, to=self.dtype)

    def correction(self, beta: float) -> Tensor:
        """Returns 1 - beta^t in float64, the correction of an average of t terms that began at
        0.
        """
        if beta not in self._corrections:  # a moment serves many blocks of memory
            self._corrections[beta] = 1.0 - self.math.Pow(np.float64(beta), self.step)
        return self._corrections[beta]

    @cached_property
    def _corrections(self) -> dict[float, Tensor]:
        return {}

    def of(self, dtype: int) -> Moment:
        """Returns the same moment for parameters of another dtype."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class Optimizer(Plain, metaclass=Declared):
    """An update rule. The fields of a subclass are its hyperparameters, with PyTorch's names and
    defaults.

    lr: the default learning rate, used when the step receives none; a formula reads `at.rate`.
    maximize: maximise instead of minimise. elementwise: each element is updated independently, so
    that a parameter, with its states of the same shape, may be updated in blocks; a state of shape
    () is then one number for all blocks. Raises InputError for a number out of its range.
    """

    json_keys = "name *"

    elementwise: ClassVar[bool] = True

    lr: NonNegative = field(default=1e-3, kw_only=True)
    maximize: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def name(self) -> str:
        """The name in files and in text; that of your own class begins with its module."""
        return name_of(type(self))

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the state of one parameter before the first step; empty by default. Shapes and
        dtypes may differ from the parameter's.
        """
        return {}

    @abstractmethod
    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the parameter and its state after one step. `g` has the shape of `p`; `s` has the
        entries of `state`.
        """

    def apply(
        self, p: Array, g: Array, s: Mapping[str, Array], *, step: int, rate: float | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Returns new arrays after one `update`, each with its dtype and shape. rate: `lr` by
        default.

        Overflow results in Inf and NaN without a warning, as in a graph.
        """
        dtype = helper.np_dtype_to_tensor_dtype(p.dtype)
        at = Moment(
            np.float64(self.lr if rate is None else rate), np.float64(step), array_math, dtype
        )
        with np.errstate(all="ignore"):
            new, kept = self.update(p, g, s, at)
        return np.asarray(new), {name: np.asarray(value) for name, value in kept.items()}

    def _downhill(self, p: Tensor, g: Tensor, weight_decay: float = 0.0) -> Tensor:
        """Returns the direction of the update: g, or -g to maximise, plus the gradient of
        weight_decay |p|^2 / 2.
        """
        g = -g if self.maximize else g
        return g + weight_decay * p if weight_decay else g


def zeros(parameter: Array, *names: str) -> dict[str, Array]:
    """Returns a state of zeros like the parameter under each name."""
    return {name: np.zeros(parameter.shape, parameter.dtype) for name in names}


def decayed(p: Tensor, weight_decay: float, at: Moment) -> Tensor:
    """Returns (1 - r weight_decay) p, a decay that is not part of the gradient.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """
    return p * (1.0 - at.rate * weight_decay) if weight_decay else p


Rule = Callable[[Any, Tensor, Tensor, State, Moment], tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Custom(Optimizer):
    """An optimiser whose formula is function(math, p, g, state, at) -> (new p, new state), called
    once for each parameter.

    The function uses + - * / and the operators of `math`, such as `math.Sqrt(v)` and
    `math.Where(c, a, b)`. `math` is `onnxgrad.op` while a graph is built, and its NumPy counterpart
    `onnxgrad.train.array_math` while arrays are updated. `at.rate` is the learning rate. `at.step`
    is the number of the update, from 1, in float64; `at.number(x)` casts x to the dtype of p.
    initial: the state of a parameter before the first step, or a function that computes it from the
    parameter's value; a number stands for an array of the parameter's shape. elementwise: see
    Optimizer; required for updates in blocks. Raises InputError if a result has another shape or
    dtype, or a state another name.

        def momentum(math, p, g, state, at):
            v = 0.9 * state["v"] + g
            return p - at.rate * v, {"v": v}

        training_step(model, optimizer=Custom(momentum, {"v": 0.0}))
    """

    json_keys = "name lr maximize"

    function: Rule
    initial: Mapping[str, float] | Callable[[Array], Mapping[str, Array]] = field(
        default_factory=dict
    )
    elementwise: bool = field(default=False, kw_only=True)  # type: ignore[misc]  # of each instance here

    @property
    def name(self) -> str:
        """The name of the function, marked as custom."""
        return f"custom:{getattr(self.function, '__name__', type(self.function).__name__)}"

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the state of `initial`. Raises InputError for values that are not arrays of
        numbers.
        """
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
        """Returns the function's parameter and state."""
        answer = self.function(at.math, p, self._downhill(p, g), s, at)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            raise InputError(
                f"{self.name} returned {answer!r}, not a pair of the new parameter "
                "and its state by name"
            )
        new, kept = answer
        if set(kept) != set(s):
            raise InputError(
                f"{self.name} returned the states {sorted(kept)}, but received {sorted(s)}"
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
    typed = hasattr(value, "dtype") and value.dtype == before.dtype
    return typed and (value.shape is None or tuple(value.shape) == tuple(before.shape))


def _type(value: Tensor) -> str:
    if not hasattr(value, "dtype"):
        return repr(value)
    return str(getattr(value, "type", None) or f"{value.dtype}{shape_text(value.shape)}")
