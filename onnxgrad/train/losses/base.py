"""What a loss is: a scalar emitted behind a model's outputs, with the labels that it needs as new inputs.

Numbers of half precision are computed with in float32, as PyTorch's autocast does: a mean over a batch has no place in
eight bits of mantissa. The loss of such a model is a float32 scalar, and so are the targets that it asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, TensorType, element_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.checks import check_choice, check_finite

Reduction = Literal["mean", "sum"]
# the first in which the operators of the losses mean what they do today (LogSoftmax's axis)
OLDEST_OPSET = 13
INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Place:
    """Where losses are emitted: a block whose values they may read, and to which they may add inputs.

    own: the model's values by name, without what losses add.
    """

    block: BindingBlock
    own: Mapping[str, Var] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", {v.name: v for v in self.block.vars()})

    def value(self, name: str | None) -> Var:
        """The value of that name; None: the only floating-point output. Raises InputError where there is none."""
        if name is None:
            floats = [v for v in self.block.outputs if is_float(v)]
            if len(floats) != 1:
                raise InputError(f"the loss must name the output that it is of: the model has {self._listed()}")
            return floats[0]
        found = self.own.get(name)
        if found is None:
            raise InputError(
                f"the loss is of '{name}', which is no value of the model; its outputs are {self._listed()}"
            )
        if not is_float(found):
            raise InputError(f"the loss is of '{name}', {found.type or 'of unknown type'}, not a floating-point tensor")
        return found

    def prediction(self, name: str | None) -> Var:
        """`value` in the precision that losses compute in. Raises InputError where its rank is not known."""
        found = self.value(name)
        if found.shape is None:
            raise InputError(f"the loss is of '{found.name}', whose rank is not known: declare its shape in the model")
        return wide(found)

    def labels(self, name: str, dtype: int, shape: Shape, of: str = "") -> Var:
        """The graph input of that name; a new one of that type where there is none.

        One that is there may be an integer of another width, and a float of another precision, which is cast.
        Raises InputError where it is of another kind or cannot have that shape.
        """
        wanted = TensorType(dtype, shape)
        found = next((v for v in self.block.inputs if v.name == name), None)
        if found is None:
            if any(v.name == name for v in self.block.vars()):
                raise InputError(f"the labels '{name}' are a value of the model already: choose another name (target=)")
            return self.block.add_input(name, wanted)
        alike = FLOAT_DTYPES if dtype in FLOAT_DTYPES else INTEGERS
        if found.dtype not in alike or not fits(found.shape, shape):
            raise InputError(
                f"the labels '{name}' are {found.type or 'of unknown type'} already, the loss{of and ' of ' + of} "
                f"wants {wanted}: choose another name (target=)"
            )
        return op.Cast(found, to=dtype) if dtype in FLOAT_DTYPES and found.dtype != dtype else found

    def _listed(self) -> str:
        return ", ".join(f"{v.name}: {v.type or '?'}" for v in self.block.outputs)


class Loss(ABC):
    """Something to make small. `a + b` and `0.5 * a` are losses again.

    A subclass has its options as fields, with PyTorch's names and defaults; `name` is what the command line calls it.
    """

    name: ClassVar[str] = ""

    @abstractmethod
    def emit(self, place: Place) -> Var:
        """The scalar, emitted behind the model's values. Raises InputError where those do not fit."""

    def __add__(self, other: Loss) -> Loss:
        return Sum(((1.0, self), (1.0, other)))

    def __mul__(self, factor: float) -> Loss:
        return Sum(((float(factor), self),))

    __rmul__ = __mul__


@dataclass(frozen=True)
class Sum(Loss):
    """w1 L1 + w2 L2 + ..., in the widest precision among the terms. Raises InputError for a weight not finite."""

    terms: tuple[tuple[float, Loss], ...]

    def __post_init__(self) -> None:
        for weight, _ in self.terms:
            check_finite("a loss", weight=weight)

    def emit(self, place: Place) -> Var:
        """The weighted sum."""
        if not self.terms:
            raise InputError("a sum of no losses")
        return weighted_sum([(weight, loss.emit(place)) for weight, loss in self.terms])


@dataclass(frozen=True)
class Output(Loss):
    """A scalar that the model computes itself; None: its only floating-point output."""

    name: ClassVar[str] = "output"
    output: str | None = None

    def emit(self, place: Place) -> Var:
        """The value. Raises InputError for one that is no scalar."""
        value = place.value(self.output)
        if value.shape != ():
            raise InputError(f"the loss '{value.name}' is {value.type}, not a scalar: reduce it, or choose a loss")
        return value


@dataclass(frozen=True)
class Custom(Loss):
    """A user's own: a function of the model's values by name, written with `onnxgrad.op`, that returns a scalar."""

    function: Callable[[dict[str, Var]], Var]

    def emit(self, place: Place) -> Var:
        """What the function returns. Raises InputError when that is no scalar."""
        value = self.function(dict(place.own))
        if not isinstance(value, Var) or value.shape != () or value.dtype not in FLOAT_DTYPES:
            raise InputError(f"the loss function returned {value!r}, not a floating-point scalar of the graph")
        return value


@dataclass(frozen=True)
class Reduced(Loss):
    """A loss of many terms, of which the mean or the sum is taken.

    output: the value that it is of, by default the only floating-point output. target: the name of the labels' input.
    """

    output: str | None = None
    target: str = "target"
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        check_choice(self.name, "reduction", self.reduction, ("mean", "sum"))


def is_float(v: Var) -> bool:
    """Whether it is a floating-point tensor."""
    return isinstance(v.type, TensorType) and v.dtype in FLOAT_DTYPES


def wide(v: Var) -> Var:
    """Half precision in float32; the others as they are."""
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype in _HALVES else v


def weighted_sum(parts: Sequence[tuple[float, Var]]) -> Var:
    """w1 v1 + w2 v2 + ... of scalars, in the widest precision among them where they differ."""
    if len({v.dtype for _, v in parts}) > 1:
        parts = [(weight, wide(v)) for weight, v in parts]
    if len({v.dtype for _, v in parts}) > 1:
        parts = [(weight, op.Cast(v, to=TensorProto.DOUBLE)) for weight, v in parts]
    first, *others = [v if weight == 1.0 else weight * v for weight, v in parts]
    for term in others:
        first = first + term
    return first


def fits(found: Shape | None, wanted: Shape) -> bool:
    """Whether a value of one shape can have the other: no two known sizes differ."""
    if found is None:
        return True
    sizes = [(a, b) for a, b in zip(found, wanted) if isinstance(a, int) and isinstance(b, int)]
    return len(found) == len(wanted) and all(a == b for a, b in sizes)


def reduced(values: Var, reduction: str) -> Var:
    """The mean or sum of all elements, a scalar; the mean of none is NaN, as in PyTorch."""
    if reduction == "mean" and is_static(values.shape) and element_count(values.shape):
        return op.ReduceMean(values, keepdims=0)
    total = op.ReduceSum(values, keepdims=0)
    # onnxruntime's ReduceMean of nothing is 0
    return total if reduction == "sum" else total / op.Cast(op.Size(values), to=values.dtype)


def known(value: Any, like: Var) -> Var:
    """Numbers of the user's as a constant of a value's dtype."""
    return constant(np.asarray(value, np.float64), like.dtype)


def size(v: Var, axis: int) -> float | Var:
    """How many there are along an axis: a number, or a scalar of the value's dtype."""
    known_size = None if v.shape is None else v.shape[axis]
    if isinstance(known_size, int):
        return float(known_size)
    return op.Cast(op.Gather(op.Shape(v), np.int64(axis % len(v.shape or ()))), to=v.dtype)
