"""Steps after the outputs of classifiers: probabilities, and classes with their labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing.pixels import Array
from onnxgrad.transform.preprocessing.steps import Frame, Head, Values
from onnxgrad.wording import counted

Axis = Annotated[int, Range(-64, 63)]
Several = Annotated[int, Range(1, 1 << 31)]


@dataclass(frozen=True)
class Softmax(Head):
    """exp(x) / sum(exp(x)) along an axis, of the scores if there are boxes."""

    name: ClassVar[str] = "softmax"
    axis: Axis = -1

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns probabilities."""
        x = _class_scores(values, self.name)
        _check_axis(x, self.axis, self.name)
        return _with_probabilities(values, op.Softmax(x, axis=self.axis))

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns probabilities."""
        x = _class_scores(values, self.name)
        e = np.exp(x - x.max(self.axis, keepdims=True))
        return _with_probabilities(values, e / e.sum(self.axis, keepdims=True))


@dataclass(frozen=True)
class Sigmoid(Head):
    """1 / (1 + exp(-x)), of the scores if there are boxes."""

    name: ClassVar[str] = "sigmoid"

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns probabilities."""
        return _with_probabilities(values, op.Sigmoid(_class_scores(values, self.name)))

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns probabilities."""
        return _with_probabilities(values, sigmoid(_class_scores(values, self.name)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without an overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, np.ones_like(e)) / (1 + e))


@dataclass(frozen=True)
class ArgMax(Head):
    """The class with the largest value along an axis, the first of equal ones, and its label: a
    line of the file `labels`.
    """

    name: ClassVar[str] = "argmax"
    axis: Axis = -1
    labels: str = ""

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns classes, and labels if there is a file of them."""
        x = only(values, self.name)
        size = _check_axis(x, self.axis, self.name)
        classes = op.ArgMax(x, axis=self.axis, keepdims=0)
        return {"classes": classes, **emit_labels(self.labels, size, classes)}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns classes, and labels if there is a file of them."""
        classes = only(values, self.name).argmax(self.axis)
        return {"classes": classes, **labels_at(self.labels, classes)}


@dataclass(frozen=True)
class TopK(Head):
    """The k largest values along the last axis, the largest first, their classes, and their labels:
    lines of the file `labels`.
    """

    name: ClassVar[str] = "top-k"
    k: Several = 5
    labels: str = ""

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns scores and classes [..., k], and labels if there is a file of them."""
        x = only(values, self.name)
        size = _check_axis(x, -1, self.name)
        if isinstance(size, int) and size < self.k:
            raise InputError(
                f"top-k: k is {self.k}, but '{x.name}' has {counted(size, 'class', 'classes')}"
            )
        scores, classes = op.TopK(x, np.array([self.k]), axis=-1, outputs=2)
        return {"scores": scores, "classes": classes, **emit_labels(self.labels, size, classes)}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns scores and classes [..., k], and labels if there is a file of them."""
        x = only(values, self.name)
        classes = np.argsort(-x, -1, kind="stable")[..., : self.k]
        scores = np.take_along_axis(x, classes, -1)
        return {"scores": scores, "classes": classes, **labels_at(self.labels, classes)}


def only(values: Values, name: str) -> Any:
    """Returns the only value. Raises InputError if there are several."""
    if len(values) != 1:
        raise InputError(f"{name} works on one value, but there are {', '.join(values)}")
    return next(iter(values.values()))


def _class_scores(values: Values, name: str) -> Any:
    """Returns the scores beside boxes, or the only value."""
    return values["scores"] if _detected(values) else only(values, name)


def _with_probabilities(values: Values, made: Any) -> dict[str, Any]:
    """Returns the values with others in place of `_class_scores`."""
    return {**values, "scores": made} if _detected(values) else {"probabilities": made}


def _detected(values: Values) -> bool:
    return {"boxes", "scores"} <= values.keys()


def _check_axis(x: Var, axis: int, name: str) -> Any:
    """Returns the size of an axis. Raises InputError if there is no such axis, or no floats."""
    if x.dtype not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
        raise InputError(f"{name} needs floating-point numbers, but '{x.name}' is {x.type}")
    if x.shape is None:
        return None
    if not -len(x.shape) <= axis < len(x.shape):
        raise InputError(f"{name}: '{x.name}' is {x.type}, without an axis {axis}")
    return x.shape[axis]


def labels_in(path: str) -> list[str]:
    """Returns the lines of a file. Raises InputError if it cannot be read, or has none."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"labels: cannot read {path}: {error}") from None
    if not lines:
        raise InputError(f"labels: {path} is empty: write one label a line")
    return lines


def emit_labels(path: str, size: Any, classes: Var) -> dict[str, Any]:
    """Returns the labels of classes by name, nothing without a file. Raises InputError if the file
    has another number of lines than there are classes.
    """
    if not path:
        return {}
    lines = labels_in(path)
    if isinstance(size, int) and size != len(lines):
        raise InputError(
            f"labels: {path} has {counted(len(lines), 'line')} for "
            f"{counted(size, 'class', 'classes')}"
        )
    texts = constant(np.array(lines, object), TensorProto.STRING, "texts")
    return {"labels": op.Gather(texts, classes, axis=0)}


def labels_at(path: str, classes: Array) -> dict[str, Any]:
    """Returns the labels of classes by name, in NumPy."""
    return {"labels": np.array(labels_in(path), object)[classes]} if path else {}
