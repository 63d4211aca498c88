"""Where a loss is emitted: what it may read of a model, and the labels that it may ask for.

Numbers of half precision are computed with in float32, as PyTorch's autocast does: a mean over a
batch has no place in eight bits of mantissa. The loss of such a model is a float32 scalar, and so
are the targets that it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, TensorType
from onnxgrad.ir.var import Var

_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# default names of labels: a value of the model that has such a name by chance, such as the answer
# of a classifier, is no label
_BY_DEFAULT = frozenset({"target", "labels", "other", "input_lengths", "target_lengths"})


@dataclass(frozen=True)
class Place:
    """Where losses are emitted: a block whose values they may read, and to which they may add
    inputs.

    own: the model's values by name, without what losses add. classes: labels' input -> how many
    classes there are, None where the model does not say, and the label that is ignored. unread:
    labels' input -> how many labels at the beginning of a sequence belong to no score. detached:
    names of values at which gradients stop, each a copy of one of the model's that is a target.
    """

    block: BindingBlock
    own: Mapping[str, Var] = field(init=False)
    classes: dict[str, tuple[int | None, int]] = field(init=False, default_factory=dict)
    unread: dict[str, int] = field(init=False, default_factory=dict)
    detached: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", {v.name: v for v in self.block.vars()})

    def value(self, name: str | None) -> Var:
        """The value of that name; None: the only floating-point output. Raises InputError where
        there is none.
        """
        if name is None:
            floats = [v for v in self.block.outputs if is_float(v)]
            if len(floats) != 1:
                raise InputError(
                    f"the loss must name the output that it is of: the model has {self._listed()}"
                )
            return floats[0]
        found = self.own.get(name)
        if found is None:
            raise InputError(
                f"the loss is of '{name}', which is no value of the model; its outputs are "
                f"{self._listed()}"
            )
        if not is_float(found):
            raise InputError(
                f"the loss is of '{name}', {found.type or 'of unknown type'}, not a "
                "floating-point tensor"
            )
        return found

    def prediction(self, name: str | None) -> Var:
        """`value` in the precision that losses compute in. Raises InputError where its rank is
        not known.
        """
        found = self.value(name)
        if found.shape is None:
            raise InputError(
                f"the loss is of '{found.name}', whose rank is not known: declare its "
                "shape in the model"
            )
        return wide(found)

    def labels(self, name: str, dtype: int, shape: Shape, of: str = "") -> Var:
        """The graph input of that name; the model's value of that name, through which no gradient
        flows; a new input of that type where there is neither.

        One that is there may be an integer of another width, and a float of another precision,
        which is cast. Raises InputError where it is of another kind or cannot have that shape.
        """
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
                f"loss{of and ' of ' + of} wants {wanted}: choose another name (target=)"
            )
        if dtype not in FLOAT_DTYPES:
            return found
        if not found.is_input:  # gradients stop at a copy: the value's other readers keep theirs
            found = op.Identity(found)
            self.detached.append(found.name)
        return op.Cast(found, to=dtype) if found.dtype != dtype else found

    def _listed(self) -> str:
        return ", ".join(f"{v.name}: {v.type or '?'}" for v in self.block.outputs)


def is_float(v: Var) -> bool:
    """Whether it is a floating-point tensor."""
    return isinstance(v.type, TensorType) and v.dtype in FLOAT_DTYPES


def wide(v: Var) -> Var:
    """Half precision in float32; the others as they are."""
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype in _HALVES else v


def _may_be(v: Var, wanted: Shape) -> bool:
    """Whether labels can have that shape. A value of the model must also not be broadcast along an
    axis, because no check follows at run time.
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
