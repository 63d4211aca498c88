"""The base of steps, and the values that they hand on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.options import Declared, check_fields

Kind = Literal["image", "tokens", "head"]
HEIGHT, WIDTH = 2, 3


@dataclass(frozen=True)
class Frame:
    """Where an image lies in the caller's image of `height` and `width`: y' = scale_y * y + top,
    x' = scale_x * x + left. The numbers are float64 scalars, of a graph or of NumPy.
    """

    height: Any
    width: Any
    scale_y: Any
    scale_x: Any
    top: Any
    left: Any

    def scaled(self, y: Any, x: Any) -> Frame:
        """Returns the frame after a resize by these factors."""
        return replace(
            self,
            scale_y=self.scale_y * y,
            scale_x=self.scale_x * x,
            top=self.top * y,
            left=self.left * x,
        )

    def moved(self, y: Any, x: Any) -> Frame:
        """Returns the frame after a move by these numbers of pixels."""
        return replace(self, top=self.top + y, left=self.left + x)


@dataclass(frozen=True)
class Prepared:
    """A value on its way to the model, a Var or an array: an image [N, C, H, W], uint8 or float32,
    with its frame, or tokens [N, T] without one.
    """

    value: Any
    frame: Frame | None = None


# values on their way out of the model, by name: Vars or arrays
Values = Mapping[str, Any]


class Step(metaclass=Declared):
    """A step before an input or after outputs. The fields of a subclass are its options; `name` is
    its name in text, `kind` what it works on.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[Kind] = "image"

    def __post_init__(self) -> None:
        step: Any = self
        if is_dataclass(step):
            check_fields(step, self.name)


class Before(Step):
    """A step before an input. `resizes`: whether its result has another size than its operand."""

    resizes: ClassVar[bool] = False

    @abstractmethod
    def emit(self, at: Prepared) -> Prepared:
        """Emits the step. Raises InputError if the value does not fit."""

    @abstractmethod
    def compute(self, at: Prepared) -> Prepared:
        """Computes the step in NumPy."""


class Source(Before):
    """The first step: the input that the caller feeds."""

    @abstractmethod
    def type_for(self, own: Var, sizes: tuple[Any, Any], batch: Any) -> TensorType:
        """Returns the type of the new input; `sizes` are the sizes of an image, or the size of the
        batch and the number of tokens.
        """


class Head(Step):
    """A step after outputs. `frame` is that of the image, if the model has one."""

    kind: ClassVar[Kind] = "head"

    @abstractmethod
    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Emits the step. Raises InputError if the values do not fit."""

    @abstractmethod
    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Computes the step in NumPy."""

    def doubt(self, values: Values) -> str:
        """Returns why rounding decides the results of these arrays, empty if it does not."""
        return ""


def real(size: Any) -> Var:
    """Returns a size, an int or a scalar int64 Var, in float64."""
    if isinstance(size, int):
        return constant(np.float64(size))
    return op.Cast(size, to=TensorProto.DOUBLE)


def whole(number: Var) -> Var:
    """Returns a number without a fraction as int64."""
    return op.Cast(number, to=TensorProto.INT64)


def vector(*numbers: Any) -> Var:
    """Returns scalars, ints or int64 Vars, as one vector."""
    parts = [
        constant(np.array([n], np.int64)) if isinstance(n, int) else op.Unsqueeze(n, [0])
        for n in numbers
    ]
    return op.Concat(*parts, axis=0)
