"""What a loss is: a scalar that is emitted behind a model's outputs, with the labels that it needs as new inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType, Type
from onnxgrad.ir.var import Var

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Place:
    """Where a loss is emitted: a block whose values it may read, and to which it may add inputs."""

    block: BindingBlock

    def value(self, name: str | None) -> Var:
        """The value of that name; None: the only floating-point output. Raises InputError where there is none."""
        outputs = [v for v in self.block.outputs if isinstance(v.type, TensorType) and v.dtype in FLOAT_DTYPES]
        if name is None:
            if len(outputs) != 1:
                listed = ", ".join(f"{v.name}: {v.type or '?'}" for v in self.block.outputs)
                raise InputError(f"the loss must name the output that it is of: the model has {listed}")
            return outputs[0]
        found = next((v for v in self.block.vars() if v.name == name), None)
        if found is None:
            listed = ", ".join(v.name for v in self.block.outputs)
            raise InputError(f"the loss is of '{name}', which is no value of the model; its outputs are {listed}")
        if not isinstance(found.type, TensorType) or found.dtype not in FLOAT_DTYPES:
            raise InputError(f"the loss is of '{name}', {found.type or 'of unknown type'}, not a floating-point tensor")
        return found

    def labels(self, name: str, type_: Type) -> Var:
        """The graph input of that name, a new one where there is none yet. InputError where it is of another type."""
        found = next((v for v in self.block.inputs if v.name == name), None)
        if found is None:
            if any(v.name == name for v in self.block.vars()):
                raise InputError(f"the labels '{name}' are a value of the model already: choose another name")
            return self.block.add_input(name, type_)
        if isinstance(found.type, TensorType) and isinstance(type_, TensorType) and found.dtype != type_.dtype:
            raise InputError(f"the labels '{name}' are {found.type} in the model, the loss wants {type_}")
        return found


class Loss(ABC):
    """Something to make small. `a + b` and `0.5 * a` are losses again."""

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
    """w1 L1 + w2 L2 + ..."""

    terms: tuple[tuple[float, Loss], ...]

    def emit(self, place: Place) -> Var:
        """The weighted sum."""
        parts = [(weight, loss.emit(place)) for weight, loss in self.terms]
        total = None
        for weight, value in parts:
            term = value if weight == 1.0 else weight * value
            total = term if total is None else total + term
        if total is None:
            raise InputError("a sum of no losses")
        return total


@dataclass(frozen=True)
class Output(Loss):
    """A scalar that the model computes itself; None: its only floating-point output."""

    name: str | None = None

    def emit(self, place: Place) -> Var:
        """The value. Raises InputError for one that is no scalar."""
        value = place.value(self.name)
        if value.shape != ():
            raise InputError(f"the loss '{value.name}' is {value.type}, not a scalar: reduce it, or choose a loss")
        return value


@dataclass(frozen=True)
class Custom(Loss):
    """A user's own: a function of the model's outputs by name, written with `onnxgrad.op`, that returns a scalar."""

    function: Callable[[dict[str, Var]], Var]

    def emit(self, place: Place) -> Var:
        """What the function returns. Raises InputError when that is no scalar."""
        value = self.function({v.name: v for v in place.block.vars()})
        if not isinstance(value, Var) or value.shape != () or value.dtype not in FLOAT_DTYPES:
            raise InputError(f"the loss function returned {value!r}, not a floating-point scalar of the graph")
        return value


def reduced(values: Var, reduction: Reduction) -> Var:
    """The mean or sum of all elements, a scalar."""
    return op.ReduceMean(values, keepdims=0) if reduction == "mean" else op.ReduceSum(values, keepdims=0)
