"""Base classes of losses: scalars emitted after a model's outputs, with labels as new inputs."""

from __future__ import annotations

import hashlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, element_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.options import Declared, Range, check_fields, checked
from onnxgrad.train.losses.place import Place, wide
from onnxgrad.wording import option, perhaps

# an option that is numbers per class or element: one number, lists of them, an array; None: all 1
Numbers = Any
# the range of float32, in which most models compute
_LEAST, _LARGEST = math.ulp(0.0), float(np.finfo(np.float32).max)
Finite = Annotated[float, Range(-_LARGEST, _LARGEST, words="a finite number")]
NonNegative = Annotated[float, Range(0, _LARGEST, words="a finite number, at least 0")]
Positive = Annotated[float, Range(_LEAST, _LARGEST, words="a finite number above 0")]
# labels may be of either width
Index = Annotated[int, Range(-(1 << 31), (1 << 31) - 1, words="an integer of 32 bits")]


def check_numbers(loss: str, **arrays: Numbers) -> None:
    """Raises InputError if one of the arrays has an element that is not a finite number."""
    for name, value in arrays.items():
        try:
            fine = value is None or bool((np.abs(np.asarray(value, np.float64)) <= _LARGEST).all())
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise InputError(f"{loss}: {name} must be finite numbers, not {value!r}")


Reduction = Literal["mean", "sum"]
# how the loss of a batch follows from those of its parts: their mean by examples ("mean") or by
# labels that count ("labels"), which agree as long as no label is ignored ("mixed"), or their sum;
# a "constant" is the same for every part
OverBatch = Literal["mean", "labels", "mixed", "sum", "constant"]
# begins the text of a loss that a function computes
FUNCTION = "function "
_LONGEST_TEXT = 200  # characters of an option in the text of a loss
# the first in which the operators of the losses mean what they do today (LogSoftmax's axis)
OLDEST_OPSET = 13


class Loss(metaclass=Declared):
    """A quantity to minimise. `a + b` and `0.5 * a` are losses, too.

    The fields of a subclass are its options, with declared types and PyTorch's names and defaults;
    `name` is its name in text. Data-parallel training needs `over_batch`. Raises InputError for an
    option of another type or out of its range.
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        loss: Any = self
        if is_dataclass(loss):
            check_fields(loss, self.name or type(self).__name__)

    @property
    def over_batch(self) -> OverBatch | None:
        """How the loss of a batch follows from the losses of its parts; None if it does not."""
        return None

    @property
    def uneven(self) -> bool:
        """Whether batches of one size may count differently in the mean over all of them: labels
        are ignored, or have weights.
        """
        return False

    @abstractmethod
    def emit(self, place: Place) -> Var:
        """Emits the scalar after the model's values. Raises InputError if the values do not fit."""

    def __str__(self) -> str:
        """Returns the text of the loss: its name and the options that differ from their
        defaults.
        """
        loss: Any = self
        if not is_dataclass(loss):
            return type(self).__name__
        given = [(f.name, _text(getattr(self, f.name)), _text(f.default)) for f in fields(loss)]
        options = ",".join(f"{key}={text}" for key, text, default in given if text != default)
        name = self.name or type(self).__name__
        return f"{name}{{{options}}}" if options else name

    def __add__(self, other: Loss) -> Loss:
        return Sum(((1.0, self), (1.0, other)))

    def __mul__(self, factor: float) -> Loss:
        return Sum(((factor, self),))

    __rmul__ = __mul__


def _text(value: Any) -> str:
    """Returns the text of an option; of many numbers a digest."""
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Sum(Loss):
    """w1 L1 + w2 L2 + ..., in the widest precision of the terms.

    Raises InputError for a weight that is not finite, and for a term that is not a Loss.
    """

    terms: tuple[tuple[Any, Loss], ...]

    def __post_init__(self) -> None:
        for weight, loss in self.terms:
            checked(Finite, weight, "a sum of losses: weight")
            if not isinstance(loss, Loss):
                raise InputError(f"a sum of losses cannot have {loss!r}, which is not a Loss")

    def __str__(self) -> str:
        """Returns the terms with their weights."""
        parts = [f"{loss}" if weight == 1 else f"{weight:g}*{loss}" for weight, loss in self.terms]
        return " + ".join(parts)

    @property
    def over_batch(self) -> OverBatch | None:
        """The common value of all terms except constants; "mixed" for means over examples and over
        labels.
        """
        kinds = [loss.over_batch for _, loss in self.terms]
        varying = [kind for kind in kinds if kind != "constant"]
        if None in kinds or ("sum" in kinds and set(kinds) != {"sum"}):
            return None
        if varying == ["labels"] or (len(set(varying)) < 2 and "labels" not in varying):
            return varying[0] if varying else "constant"
        return "mixed"

    @property
    def uneven(self) -> bool:
        """Whether this holds for a term."""
        return any(loss.uneven for _, loss in self.terms)

    def emit(self, place: Place) -> Var:
        """Emits the weighted sum."""
        if not self.terms:
            raise InputError("a sum of losses needs at least one term")
        values = [loss.emit(place) for _, loss in self.terms]
        place.terms[id(self)] = values
        return weighted_sum([(w, v) for (w, _), v in zip(self.terms, values, strict=True)])


@dataclass(frozen=True)
class Output(Loss):
    """A scalar that the model computes; None: its only floating-point output.

    over_batch: "mean" or "sum", if the scalar is the mean or sum over the examples of the batch.
    """

    name: ClassVar[str] = "output"
    output: str | None = None
    over_batch: Reduction | None = None

    def emit(self, place: Place) -> Var:
        """Returns the value as a scalar. Raises InputError if it may have several elements."""
        value = place.value(self.output)
        if value.shape == ():
            return value
        if element_count(value.shape) == 1:
            return op.Reshape(value, np.zeros(0, np.int64))
        example = option("--loss cross_entropy", 'loss="cross_entropy"')
        raise InputError(
            f"the loss '{value.name}' is {value.type}, not a scalar: choose a loss of it, such as "
            f"{example}, or reduce it"
        )


@dataclass(frozen=True)
class Custom(Loss):
    """A loss written with `onnxgrad.op`: a function that receives the model's values by name and
    returns a scalar.

    If the function has two parameters without defaults, it also receives the `Place`, whose
    `labels(name, dtype, shape)` are new inputs of the step:

        def absolute(values, place):
            truth = place.labels("truth", np.float32, values["y"].shape)
            return op.ReduceMean(op.Abs(values["y"] - truth), keepdims=0)

    over_batch: "mean" or "sum", if the scalar is the mean or sum over examples that are treated
    independently.
    """

    function: Callable[..., Var]
    over_batch: Reduction | None = None

    def __str__(self) -> str:
        """Returns the name of the function."""
        return f"{FUNCTION}{getattr(self.function, '__qualname__', type(self.function).__name__)}"

    def emit(self, place: Place) -> Var:
        """Returns the value of the function. Raises InputError if it is not a scalar."""
        more = [place] if _parameters(self.function) > 1 else []
        value: object = self.function(_Values(place.own), *more)
        if not isinstance(value, Var) or value.shape != () or value.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"the loss function returned {repr(value)[:80]}, not a floating-point scalar of "
                "the graph"
            )
        return value


class _Values(dict[str, Var]):
    """The values of a model. Raises InputError for an unknown name."""

    def __missing__(self, name: str) -> Var:
        raise InputError(
            f"the loss function reads '{name}', which is not a value of the model"
            f"{perhaps(name, self)}: for its own labels, give it a second parameter, such as "
            f"place, and read place.labels('{name}', dtype, shape)"
        )


def _parameters(function: Callable[..., Any]) -> int:
    """Returns the number of positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        given = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return 1
    return sum(p.kind in kinds and p.default is p.empty for p in given)


@dataclass(frozen=True)
class OfExamples(Loss):
    """A loss of terms that belong to examples. sample_weight: a new input with a factor for
    each example.
    """

    sample_weight: str | None = field(default=None, kw_only=True)

    def weighted(self, place: Place, terms: Var) -> Var:
        """Returns the terms, examples along their first axis, times the factors of the examples.
        Raises InputError for a scalar.
        """
        factors = self.factors(place, terms.dtype, terms.shape or ())
        return terms if factors is None else terms * factors

    def factors(self, place: Place, dtype: int, shape: Shape, axis: int = 0) -> Var | None:
        """Returns the factors of the examples along `axis` of a shape, which broadcast to it; None
        without any. Raises InputError for a shape without that axis.
        """
        rank = len(shape)
        if self.sample_weight is None:
            return None
        if not -rank <= axis < rank:
            raise InputError(
                f"{self.name}: sample_weight needs several examples, but there is only one"
            )
        weights = place.labels(self.sample_weight, dtype, (shape[axis],), self.name)
        return op.Reshape(weights, [-1 if i == axis % rank else 1 for i in range(rank)])


@dataclass(frozen=True)
class Reduced(OfExamples):
    """A loss of many terms, reduced by their mean or sum.

    output: the value that the loss reads, by default the only floating-point output. target: the
    name of the input for labels, or of a value of the model, which is then held fixed.
    """

    output: str | None = None
    target: str = "target"
    reduction: Reduction = "mean"

    @property
    def over_batch(self) -> OverBatch | None:
        """As `reduction`, over examples."""
        return self.reduction


def weighted_sum(parts: Sequence[tuple[float, Var]]) -> Var:
    """Returns w1 v1 + w2 v2 + ... of scalars, in the widest precision among them."""
    if len({v.dtype for _, v in parts}) > 1:
        parts = [(weight, wide(v)) for weight, v in parts]
    if len({v.dtype for _, v in parts}) > 1:
        parts = [(weight, op.Cast(v, to=TensorProto.DOUBLE)) for weight, v in parts]
    first, *others = [v if weight == 1.0 else float(weight) * v for weight, v in parts]
    for term in others:
        first = first + term
    return first


def reduced(place: Place, values: Var, reduction: str) -> Var:
    """Returns the mean or sum of all elements, a scalar. The mean of no elements is NaN, as in
    PyTorch.
    """
    if reduction == "sum":
        return op.ReduceSum(values, keepdims=0)
    count = element_count(values.shape) if is_static(values.shape) else None
    if count:
        loss = op.ReduceMean(values, keepdims=0)
        return place.mean(loss, lambda: constant(count, values.dtype))
    # onnxruntime's ReduceMean of nothing is 0
    divisor = op.Cast(op.Size(values), to=values.dtype)
    return place.mean(op.ReduceSum(values, keepdims=0) / divisor, lambda: divisor)


def known(value: Any, like: Var) -> Var:
    """Returns an option's numbers as a constant with the dtype of a value."""
    return constant(np.asarray(value, np.float64), like.dtype)


def size(v: Var, axis: int) -> float | Var:
    """Returns the size of an axis: a number, or a scalar of the value's dtype."""
    known_size = None if v.shape is None else v.shape[axis]
    if isinstance(known_size, int):
        return float(known_size)
    return op.Cast(op.Gather(op.Shape(v), np.int64(axis % len(v.shape or ()))), to=v.dtype)
