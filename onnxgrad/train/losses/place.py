"""The place where a loss is emitted: the values that it may read, and its labels.

Losses compute in float32 with values of half precision, as PyTorch's autocast does, because a
mantissa of eight bits is too short for the mean over a batch. The loss of such a model is a float32
scalar, and its targets are float32, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, TensorType
from onnxgrad.ir.var import Var

_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# default names of labels: a value of the model that has such a name by chance, such as the answer
# of a classifier, is not a label
_BY_DEFAULT = frozenset({"target", "labels", "other", "input_lengths", "target_lengths"})


@dataclass(frozen=True)
class Place:
    """A block in which losses are emitted. They may read its values and add inputs to it.

    own: the model's values by name, without those that losses add. classes: for each labels' input
    the number of classes (None if unknown) and the label that is ignored. unread: for each labels'
    input the number of labels at the beginning of a sequence without a score. weights: for each
    labels' input the weights of the classes. detached: names of values at which gradients stop;
    each is a copy of a value of the model that is a target.
    anchors: for each input with an earlier value of a weight the name of the weight. divisors: for
    each mean, the function that emits the number by which it divides. terms: the values of the
    terms of each sum of losses, by its id.
    """

    block: BindingBlock
    own: Mapping[str, Var] = field(init=False)
    classes: dict[str, tuple[int | None, int]] = field(init=False, default_factory=dict)
    unread: dict[str, int] = field(init=False, default_factory=dict)
    weights: dict[str, tuple[float, ...]] = field(init=False, default_factory=dict)
    detached: list[str] = field(init=False, default_factory=list)
    anchors: dict[str, str] = field(init=False, default_factory=dict)
    divisors: dict[Var, Callable[[], Var]] = field(init=False, default_factory=dict)
    terms: dict[int, list[Var]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", {v.name: v for v in self.block.vars()})

    def mean(self, loss: Var, divisor: Callable[[], Var]) -> Var:
        """Returns the loss, a mean, and notes how to emit the number by which it divides."""
        self.divisors[loss] = divisor
        return loss

    def value(self, name: str | None) -> Var:
        """Returns the value with this name, or for None the only floating-point output. Raises
        InputError if there is none.
        """
        if name is None:
            floats = [v for v in self.block.outputs if is_float(v)]
            if len(floats) != 1:
                raise InputError(
                    f"the loss must name the output that it reads: the model has {self._listed()}"
                )
            return floats[0]
        found = self.own.get(name)
        if found is None:
            raise InputError(
                f"the loss reads '{name}', which is not a value of the model; its outputs are "
                f"{self._listed()}"
            )
        if not is_float(found):
            raise InputError(
                f"the loss reads '{name}', {found.type or 'of unknown type'}, not a "
                "floating-point tensor"
            )
        return found

    def prediction(self, name: str | None) -> Var:
        """Returns `value` in the precision of losses. Raises InputError if its rank is unknown."""
        found = self.value(name)
        if found.shape is None:
            raise InputError(
                f"the loss reads '{found.name}', whose rank is not known: declare its "
                "shape in the model"
            )
        return wide(found)

    def labels(self, name: str, dtype: int | DTypeLike, shape: Shape, of: str = "") -> Var:
        """Returns the graph input with this name, or the model's value with this name, through
        which no gradient flows, or a new input of this type. dtype: NumPy's, or an element type of
        ONNX.

        An existing integer may have another width and a float another precision; it is cast. Raises
        InputError if it has another kind or cannot have that shape.
        """
        dtype = dtype if isinstance(dtype, int) else _element_type(name, dtype)
        wanted = TensorType(dtype, shape)
        found = next((v for v in self.block.inputs if v.name == name), self.own.get(name))
        if found is None and all(v.name != name for v in self.block.vars()):
            return self.block.add_input(name, wanted)
        if found is None or (name in _BY_DEFAULT and not found.is_input):
            raise InputError(
                f"the labels '{name}' are a value of the model already: choose "
                "another name (target=)"
            )
        alike = FLOAT_DTYPES if dtype in FLOAT_DTYPES else _INTEGERS
        if found.dtype not in alike or not _may_be(found, shape):
            raise InputError(
                f"the labels '{name}' are {found.type or 'of unknown type'} already, the "
                f"loss{of and ' of ' + of} requires {wanted}: choose another name (target=)"
            )
        if dtype not in FLOAT_DTYPES:
            return found
        if not found.is_input:  # gradients stop at a copy: the value's other readers keep theirs
            found = op.Identity(found)
            self.detached.append(found.name)
        return op.Cast(found, to=dtype) if found.dtype != dtype else found

    def _listed(self) -> str:
        return ", ".join(f"{v.name}: {v.type or '?'}" for v in self.block.outputs)


def _element_type(name: str, dtype: DTypeLike) -> int:
    """Returns ONNX's element type of a dtype. Raises InputError if there is none."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (TypeError, ValueError, KeyError):
        raise InputError(f"the labels '{name}' cannot be of dtype {dtype!r:.80}") from None


def is_float(v: Var) -> bool:
    """Whether this is a floating-point tensor."""
    return isinstance(v.type, TensorType) and v.dtype in FLOAT_DTYPES


def wide(v: Var) -> Var:
    """Returns half precision as float32, other values unchanged."""
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype in _HALVES else v


def _may_be(v: Var, wanted: Shape) -> bool:
    """Whether labels can have that shape. A value of the model must not be broadcast along an axis,
    because nothing checks it at run time.
    """
    known = v.is_input or v.shape is not None
    repeats = any((a == 1) is not (b == 1) for a, b in zip(v.shape or (), wanted))
    return known and fits(v.shape, wanted) and (v.is_input or not repeats)


def fits(found: Shape | None, wanted: Shape) -> bool:
    """Whether a value of one shape can have the other: no two known sizes differ."""
    if found is None:
        return True
    sizes = [(a, b) for a, b in zip(found, wanted) if isinstance(a, int) and isinstance(b, int)]
    return len(found) == len(wanted) and all(a == b for a, b in sizes)
