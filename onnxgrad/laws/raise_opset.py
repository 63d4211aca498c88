"""Operators whose form a version of the opset changed, rewritten in the new form.

An adapter gets the binding, in a block that has the new opset already, and the attributes as the
old version understood them; it changes the binding in place, so that names and metadata stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import numpy as np

from onnxgrad.errors import UnknownDtype
from onnxgrad.ir.attributes import GRID_MODES
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import REDUCTIONS
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value

Attributes = Mapping[str, Any]
Adapter = Callable[[Binding, Attributes], None]


class Refused(Exception):
    """Why a binding cannot be converted."""


def refuse_if(holds: object, reason: str) -> None:
    """Raises Refused with this reason if `holds` is true."""
    if holds:
        raise Refused(reason)


Maker = Callable[[Binding, Attributes, str], Var | None]


def _vector(b: Binding, was: Attributes, name: str) -> Var | None:
    """The attribute as an int64 vector, the dtype of axes, sizes and pads; None if it is absent."""
    value = was.get(name)
    return None if value is None else constant(np.array(value, np.int64).reshape(-1))


def _floats(b: Binding, was: Attributes, name: str) -> Var:
    return constant(np.array(was[name], np.float32))


def _number(b: Binding, was: Attributes, name: str) -> Var | None:
    """The attribute as a number in the dtype of the first operand, which may be known at run time
    only; None if it is absent.
    """
    value, like = b.attrs.get(name), b.operand(0)
    if value is None or like is None:
        return None
    if like.dtype:
        with np.errstate(over="ignore"):
            return constant(np.array(value, np.float32).astype(numpy_dtype(like.dtype)))
    if like.block.opsets.get("", 0) < 15:
        raise UnknownDtype(f"the dtype of '{like.name}' is not known, and a number must have it")
    return op.CastLike(constant(np.array(value, np.float32)), like)


def _as_operands(index: int, **makers: Maker) -> Adapter:
    """f<a = v>(x) = f(x, v): attributes that became operands, from operand `index` on."""

    def adapt(b: Binding, was: Attributes) -> None:
        new = [make(b, was, name) for name, make in makers.items()]
        for name in [name for name in makers if name in b.attrs]:
            b.drop_attribute(name)
        kept = [*b.inputs, *[None] * (index - len(b.inputs))][:index]
        b.block.set_operands(b, [*kept, *new])

    return adapt


_AXES = _as_operands(1, axes=_vector)
# by operator and the first version that requires the new form
ADAPTERS: dict[tuple[str, int], Adapter] = {
    **{(name, 18): _AXES for name in REDUCTIONS if name != "ReduceSum"},
    **{(name, 13): _AXES for name in ("Squeeze", "Unsqueeze", "ReduceSum")},
    ("Split", 13): _as_operands(1, split=_vector),
    ("Slice", 10): _as_operands(1, starts=_vector, ends=_vector, axes=_vector),
    ("TopK", 10): _as_operands(1, k=_vector),
    ("Clip", 11): _as_operands(1, min=_number, max=_number),
    ("Dropout", 12): _as_operands(1, ratio=_floats),
    ("Upsample", 9): _as_operands(1, scales=_floats),
    ("DFT", 20): _as_operands(2, axis=lambda b, was, name: constant(np.array(was[name], np.int64))),
}


def adapter(since: int, *ops: str) -> Callable[[Adapter], Adapter]:
    """Registers a function that adapts these operators to version `since`."""

    def register(function: Adapter) -> Adapter:
        ADAPTERS.update({(name, since): function for name in ops})
        return function

    return register


@adapter(11, "Pad")
def pads_as_operands(b: Binding, was: Attributes) -> None:
    """Pad<pads, value>(x) = Pad(x, pads, value)"""
    fill = _number(b, was, "value")
    _as_operands(1, pads=_vector, value=lambda b, was, name: fill)(b, was)


@adapter(18, "Split")
def number_of_parts(b: Binding, was: Attributes) -> None:
    """Splits into equal parts: the new version needs their number as an attribute."""
    if b.operand(1) is None:
        b.set_attribute("num_outputs", len(b.outputs))


# ---- other names, defaults and meanings ----------------------------------------------------------


# the Resize bindings that were Upsample bindings
_UPSAMPLES: WeakSet[Binding] = WeakSet()


@adapter(10, "Upsample")
def upsample_is_resize(b: Binding, was: Attributes) -> None:
    """Upsample(x, scales) = Resize(x, scales), where no scale is below 1"""
    b.rename_operator("Resize")
    _UPSAMPLES.add(b)


@adapter(11, "Resize")
def resize_from_the_corner(b: Binding, was: Attributes) -> None:
    """Resize(x, scales) = Resize<asymmetric>(x, , scales)

    The nearest of two elements is the lower one if it enlarges, the upper one if it shrinks.
    """
    scales, nearest = b.operand(1), was.get("mode") == "nearest"
    smaller, larger = _resized(b)
    refuse_if(
        nearest and smaller and larger,
        "it may enlarge and shrink, which choose the nearest element differently",
    )
    b.block.set_operands(b, [b.operand(0), constant(np.zeros(0, np.float32)), scales])
    b.set_attribute("coordinate_transformation_mode", "asymmetric")
    if nearest:
        b.set_attribute("nearest_mode", "ceil" if smaller else "floor")


def _resized(b: Binding) -> tuple[bool, bool]:
    """Whether it may shrink an axis, and whether it may enlarge one, by its scales or sizes."""
    x, scales = b.inputs[:2]
    factors: Any = None if scales is None else fixed_value(scales)
    before, after = None if x is None else x.shape, b.out.shape
    if factors is None and is_static(before) and is_static(after):
        factors = np.array(after) / np.maximum(before, 1)
    if factors is None:
        return b not in _UPSAMPLES, True
    return bool((factors < 1).any()), bool((factors > 1).any())


@adapter(13, "Resize")
def resize_without_a_mode(b: Binding, was: Attributes) -> None:
    """The versions differ only in a coordinate mode that was removed."""
    refuse_if(
        was.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn",
        "its coordinate_transformation_mode tf_half_pixel_for_nn was removed",
    )


@adapter(11, "Scatter")
def scatter_of_elements(b: Binding, was: Attributes) -> None:
    """Scatter = ScatterElements"""
    b.rename_operator("ScatterElements")


@adapter(13, "Softmax", "LogSoftmax", "Hardmax")
def along_one_axis(b: Binding, was: Attributes) -> None:
    """f<axis = k>(x), over all axes from k on = Reshape(f<axis = -1>(Flatten<axis = k>(x)))"""
    x, axis = b.operand(0), int(was["axis"])
    if x is None:
        return
    if axis == -1 or (x.rank is not None and axis == x.rank - 1):
        b.set_attribute("axis", axis)
        return
    y, shape = b.out, op.Shape(x)
    part = getattr(op, b.op)(op.Flatten(x, axis=axis), axis=-1)
    b.block.replace(y, op.Reshape(part, shape))
    b.block.remove(b)


@adapter(14, "Reshape")
def to_the_shape_before(b: Binding, was: Attributes) -> None:
    """Reshape(f(Flatten(x)), Shape(x)) of `along_one_axis` also holds if a size is 0."""
    part, shape = (None if v is None else v.definition for v in (b.operand(0), b.operand(1)))
    if part is None or part.op not in ("Softmax", "LogSoftmax", "Hardmax") or shape is None:
        return
    flat = None if (v := part.operand(0)) is None else v.definition
    same = flat is not None and flat.operand(0) is shape.operand(0) and not shape.attrs
    if flat is not None and same and (flat.op, shape.op) == ("Flatten", "Shape"):
        b.set_attribute("allowzero", 1)


@adapter(9, "BatchNormalization")
def one_statistic_a_channel(b: Binding, was: Attributes) -> None:
    """The new version computes what the old one does with spatial=1."""
    refuse_if(was.get("spatial", 1) != 1, "its statistics are one for each element (spatial=0)")
    if "spatial" in b.attrs:
        b.drop_attribute("spatial")


@adapter(14, "BatchNormalization")
def switch_of_training(b: Binding, was: Attributes) -> None:
    """Several results mean training in the old version, an attribute in the new one, which lacks
    the statistics of the batch.
    """
    if not any(v is not None for v in b.outputs[1:]):
        return
    for v in b.outputs[3:]:
        refuse_if(v is not None and v.use_count, "its saved statistics are read")
    while len(b.outputs) > 3:
        b.drop_result(len(b.outputs) - 1)
    b.set_attribute("training_mode", 1)


@adapter(10, "Dropout")
def dropout_without_its_mask(b: Binding, was: Attributes) -> None:
    """The mask had the dtype of the data; now it is boolean."""
    if (mask := b.result(1)) is not None and mask.use_count:
        raise Refused("the dtype of its mask changed")


@adapter(16, "RoiAlign")
def half_a_pixel(b: Binding, was: Attributes) -> None:
    """The default coordinate mode changed to one that is offset by half a pixel."""
    if "coordinate_transformation_mode" not in b.attrs:
        b.set_attribute("coordinate_transformation_mode", "output_half_pixel")


@adapter(20, "GridSample")
def modes_of_grid_sample(b: Binding, was: Attributes) -> None:
    """The modes bilinear and bicubic are now called linear and cubic."""
    mode = str(was["mode"])
    b.set_attribute("mode", GRID_MODES.get(mode, mode))


@adapter(21, "GroupNormalization")
def normalization_of_channels(b: Binding, was: Attributes) -> None:
    """Repeats the scale and bias of each group for its channels."""
    x, groups = b.operand(0), int(was["num_groups"])
    channels = None if x is None or x.shape is None else x.shape[1]
    if not isinstance(channels, int):
        raise Refused("the number of its channels is not known")
    for i in (1, 2):
        if (v := b.operand(i)) is not None:
            wide = op.Expand(op.Unsqueeze(v, [1]), [groups, channels // groups])
            b.block.set_operand(b, i, op.Reshape(wide, [channels]))


CAPS_A_MASK = "the order of its softcap and its mask changed"


def caps_a_mask(b: Binding) -> bool:
    """Whether it has a softcap and a mask, whose order version 24 changed, or returns the scores
    between the two.
    """
    masked = b.operand(3) is not None or b.operand(6) is not None or bool(b.attr("is_causal"))
    return b.result(3) is not None or (bool(b.attr("softcap")) and masked)


@adapter(24, "Attention")
def attention_without_caps(b: Binding, was: Attributes) -> None:
    """The new version applies the softcap and the mask in another order."""
    if b.has_refs:
        _ = was.get("softcap"), was.get("is_causal")  # raises Refused if calls set them
    refuse_if(caps_a_mask(b), CAPS_A_MASK)


@adapter(9, "Scan")
def batch_of_a_scan(b: Binding, was: Attributes) -> None:
    """The old version has a batch axis in front of all others."""
    raise Refused("it runs once for each member of a batch")
