"""Rewrites operators in the form of an older opset, if one of the same meaning exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx.defs import OpSchema

from onnxgrad.ir import attributes
from onnxgrad.ir.attributes import GRID_MODES, read
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission import signature
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.sizes import least
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Array, is_static, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value
from onnxgrad.laws.raise_opset import CAPS_A_MASK, Refused, caps_a_mask, refuse_if


def lower(b: Binding, old: int, new: int) -> None:
    """Converts `b`, which has the form of opset `new`, to the form of opset `old`. Its block has
    the old opset already. Raises Refused if there is no such form.
    """
    schema = attributes.schema(_RENAMED.get((b.op, new), b.op), old, "")
    if schema is None:
        raise Refused(f"it is new at opset {new}")
    refuse_if(b.op in _ANOTHER_MEANING.get(new, ()), f"it means something else before opset {new}")
    with emitting(b.block, sources=(b,), made_by="convert-opset"):
        if (own := _LOWERED.get((b.op, new))) is not None:
            own(b, schema)
        else:
            _as_before(b, schema, new)


def _as_before(b: Binding, schema: OpSchema, new: int) -> None:
    """Leaves out what is new if it is the default, and turns operands into attributes. Raises
    Refused.
    """
    if new == _NEGATIVE_AXES:
        _axes_from_the_front(b)
    _operands_as_attributes(b, schema)
    _without_defaults(b, schema, new)
    later = [v for v in b.outputs[len(schema.outputs) :] if v is not None]
    formals = list(schema.outputs)
    variadic = formals and formals[-1].option == OpSchema.FormalParameterOption.Variadic
    if later and not variadic:
        raise Refused(f"'{later[0].name}' is a result that it does not have before opset {new}")


# since this opset an axis may be counted from the end
_NEGATIVE_AXES = 11
# operators that count the axes of the result; others count those of the first operand
_AXES_OF_RESULTS = frozenset({"Unsqueeze", "OneHot"})


def _axes_from_the_front(b: Binding) -> None:
    """Replaces negative axes by nonnegative ones. Raises Refused."""
    of = b.out if b.op in _AXES_OF_RESULTS else b.operand(0)
    for name, value in list(b.attrs.items()):
        axes = value if isinstance(value, tuple) else (value,)
        if not ("axis" in name or "axes" in name) or all(a >= 0 for a in axes):
            continue
        if of is None or of.rank is None or name not in ("axis", "axes"):
            raise Refused(f"its '{name}' is counted from the end")
        found = [a % of.rank if a < 0 else a for a in axes]
        b.set_attribute(name, found if isinstance(value, tuple) else found[0])


# operators whose form is valid before this version as well, but has another meaning there
_ANOTHER_MEANING: dict[int, frozenset[str]] = {
    10: frozenset({"Dropout"}),
    16: frozenset({"RoiAlign"}),
    21: frozenset({"GroupNormalization"}),
}


def _along_the_last_axis(b: Binding, schema: OpSchema) -> None:
    """Along the last axis both versions agree; the old one works on all axes from `axis` on."""
    x, axis = b.operand(0), int(b.attrs.get("axis", -1))
    if x is None or not x.rank or axis % x.rank != x.rank - 1:
        raise Refused("it is not known to be along the last axis")
    b.set_attribute("axis", x.rank - 1)


def _in_inference(b: Binding, schema: OpSchema) -> None:
    """The old version has no `training_mode`: several results mean training."""
    refuse_if(b.attrs.get("training_mode") or len(b.outputs) > 1, "its 'training_mode' is set")
    b.drop_attribute("training_mode")


def _without_zeros(b: Binding, schema: OpSchema) -> None:
    """Without `allowzero`, which the old version lacks, a zero copies the size. A size that may be
    zero stays if the operand has it on the same axis.
    """
    shape, x = b.operand(1), b.operand(0)
    if b.attrs.get("allowzero"):
        wanted = None if shape is None else sizes(shape)
        given = (x and x.shape) or ()
        refuse_if(
            wanted is None
            or any(
                d is None or (d != -1 and (least(d) or 0) < 1 and given[i : i + 1] != (d,))
                for i, d in enumerate(wanted)
            ),
            "its 'allowzero' is set, and a zero in its shape may be a size of zero",
        )
    b.drop_attribute("allowzero")


def _of_integers(b: Binding, schema: OpSchema) -> None:
    """In the old version, Mod of floats requires `fmod`."""
    x = b.operand(0)
    refuse_if(
        not b.attrs.get("fmod") and (x is None or numpy_dtype(x.dtype).kind not in "iu"),
        "its operands are not known to be integers, and floats require fmod at that opset",
    )


def _within_its_bits(b: Binding, schema: OpSchema) -> None:
    """The old version does not define shifts by a negative or too large number of bits."""
    by = _known(b.operand(1))
    refuse_if(
        by is None or not np.isin(by, np.arange(8 * by.itemsize)).all(),
        "it is not known to shift by fewer bits than there are",
    )


def _without_caps(b: Binding, schema: OpSchema) -> None:
    """The old version applies the softcap after the mask. Without a mask both are the same."""
    _operands_as_attributes(b, schema)
    refuse_if(caps_a_mask(b), CAPS_A_MASK)


def _slice_of_sizes(b: Binding, schema: OpSchema) -> None:
    """Shape<start, end>(x) = Slice(Shape(x), start, end)"""
    bounds = [b.attrs.get("start", 0), b.attrs.get("end", _LAST)]
    for name in ("start", "end"):
        b.drop_attribute(name)
    if bounds == [0, _LAST]:
        return
    old = b.out
    part = op.Slice(op.Shape(b.operand(0)), bounds[:1], bounds[1:], [0])
    b.block.replace(old, part)
    b.block.remove(b)
    if not part.returned:
        old.swap_names(part)


def _pads_of_all_axes(b: Binding, schema: OpSchema) -> None:
    """Pad(x, p, v, axes) = Pad(x, q, v), where q is p at the axes and 0 elsewhere."""
    x, pads, axes = b.operand(0), b.operand(1), b.operand(3)
    if axes is not None:
        listed = _known(axes)
        refuse_if(
            x is None or x.rank is None or listed is None, "its 'axes' or its rank are not known"
        )
        rank = x.rank if x is not None and x.rank is not None else 0
        own = [] if listed is None else [int(a) % rank for a in listed.reshape(-1)]
        # index of the zero that is appended to the pads
        places = np.full(2 * rank, 2 * len(own), np.int64)
        for i, axis in enumerate(own):
            places[[axis, axis + rank]] = i, i + len(own)
        amounts = _known(pads)
        if amounts is None:
            wide = op.Gather(op.Concat(pads, [0], axis=0), places)
        else:
            wide = constant(np.append(amounts, 0).astype(np.int64)[places])
        b.block.set_operands(b, [x, wide, b.operand(2)])
    _without_defaults(b, schema, 18)


def _of_images(b: Binding, schema: OpSchema) -> None:
    """The modes linear and cubic were called bilinear and bicubic, of images only."""
    x, mode = b.operand(0), str(b.attrs.get("mode", "linear"))
    refuse_if(x is None or x.rank != _RANK_OF_IMAGES, "its operand is not known to be of rank 4")
    names = {new: old for old, new in GRID_MODES.items()}
    b.set_attribute("mode", names.get(mode, mode))


_RANK_OF_IMAGES = 4


def _along_a_known_axis(b: Binding, schema: OpSchema) -> None:
    """The axis was an attribute, counted from the front."""
    x, axis = b.operand(0), _known(b.operand(2))
    refuse_if(
        x is None or x.rank is None or (axis is None and b.operand(2) is not None),
        "its 'axis' is known at run time only, or its rank is not known",
    )
    b.block.set_operands(b, [v for v in (x, b.operand(1)) if v is not None])
    if x is not None and x.rank is not None:
        b.set_attribute("axis", (-2 if axis is None else int(axis.item())) % x.rank)


def _with_a_region(b: Binding, schema: OpSchema) -> None:
    """The region and the scales were needed, empty where nothing reads them."""
    empty = constant(np.zeros(0, np.float32))
    b.block.set_operands(b, [b.operand(0), *(b.operand(i) or empty for i in (1, 2)), b.operand(3)])
    _operands_as_attributes(b, schema)
    _without_defaults(b, schema, 13)


def _from_the_corner(b: Binding, schema: OpSchema) -> None:
    """Resize<asymmetric>(x, , scales) = Resize(x, scales)

    The nearest of two elements was the lower one if it enlarged, the upper one if it shrank.
    """
    given = {**attributes.schema_defaults(b.op, 11, ""), **b.attrs}
    mode, coordinates, nearest = (
        given[name] for name in ("mode", "coordinate_transformation_mode", "nearest_mode")
    )
    refuse_if(coordinates != "asymmetric", f"its 'coordinate_transformation_mode' is {coordinates}")
    refuse_if(mode not in ("nearest", "linear"), f"its 'mode' is {mode}")
    refuse_if(given["exclude_outside"], "its 'exclude_outside' is set")
    scales = _scales(b)
    if scales is None:
        raise Refused("its 'scales' are not known")
    fits = (scales >= 1).all() if nearest == "floor" else nearest == "ceil" and (scales <= 1).all()
    refuse_if(mode == "nearest" and not fits, f"its 'nearest_mode' is {nearest}")
    b.block.set_operands(b, [b.operand(0), constant(scales)])
    for name in [n for n in b.attrs if n != "mode"]:
        b.drop_attribute(name)


def _scales(b: Binding) -> Any:
    """The scales of a Resize, or whole ones that follow from the sizes before and after."""
    scales = _known(b.operand(2))
    if scales is None or scales.size:
        return scales
    before, after = (None if v is None else v.shape for v in (b.operand(0), b.out))
    if not is_static(before) or not is_static(after) or 0 in before:
        return None
    whole = all(m % n == 0 for n, m in zip(before, after, strict=True))
    return np.array(after, np.float32) / np.array(before, np.float32) if whole else None


def _upsample(b: Binding, schema: OpSchema) -> None:
    """Resize(x, scales) = Upsample(x, scales), where no scale is below 1"""
    scales: Any = _known(b.operand(1))
    refuse_if(
        scales is None or not (scales >= 1).all(), "its 'scales' are not known to be 1 or more"
    )
    b.rename_operator("Upsample")


def _as_a_tensor(b: Binding, schema: OpSchema) -> None:
    """Constant<value_ints = [1]> = Constant<value = int64[1] {1}>"""
    value = attributes.constant_value(b.attrs)
    if isinstance(value, np.ndarray):
        (name,) = b.attrs
        b.drop_attribute(name)
        b.set_attribute("value", tensor_of(value, b.out.name))
    _as_before(b, schema, 12)


_RENAMED = {("Resize", 10): "Upsample"}

# an end beyond every axis
_LAST = 2**63 - 1


_LOWERED: dict[tuple[str, int], Callable[[Binding, OpSchema], None]] = {
    ("Constant", 12): _as_a_tensor,
    ("Softmax", 13): _along_the_last_axis,
    ("LogSoftmax", 13): _along_the_last_axis,
    ("Hardmax", 13): _along_the_last_axis,
    ("BatchNormalization", 14): _in_inference,
    ("Reshape", 14): _without_zeros,
    ("Pad", 18): _pads_of_all_axes,
    ("Shape", 15): _slice_of_sizes,
    ("Mod", 28): _of_integers,
    ("BitShift", 28): _within_its_bits,
    ("Attention", 24): _without_caps,
    ("GridSample", 20): _of_images,
    ("DFT", 20): _along_a_known_axis,
    ("Resize", 13): _with_a_region,
    ("Resize", 11): _from_the_corner,
    ("Resize", 10): _upsample,
}


def _operands_as_attributes(b: Binding, schema: OpSchema) -> None:
    """Turns constant operands into attributes if they are attributes there. Raises Refused."""
    kept = []
    for i, v in enumerate(b.inputs):
        name = signature.moved_to_attribute(b.op, "", schema.since_version, i)
        if name is None:
            kept.append(v)
        elif v is not None:
            _as_attribute(b, schema, name, v)
    while len(kept) > schema.min_input and kept[-1] is None:
        kept.pop()
    if len(kept) > schema.max_input:
        raise Refused(f"it has {len(kept)} operands")
    if len(kept) < len(b.inputs):
        before = [v.definition for v in b.inputs if v is not None and v.definition is not None]
        b.block.set_operands(b, kept)
        b.block.remove_unused(before)
    for i, formal in enumerate(schema.inputs):
        if formal.option == OpSchema.FormalParameterOption.Single and b.operand(i) is None:
            raise Refused(f"it needs '{formal.name}'")


def _known(v: Var | None) -> Array | None:
    """The value if it is fixed: a constant, or computed from constants and known sizes."""
    array = None if v is None else fixed_value(v)
    if v is None or array is not None or v.rank is None:
        return array
    elements = sizes(v)
    if elements is None or not all(isinstance(d, int) for d in elements):
        return None
    return np.array(elements, numpy_dtype(v.dtype)).reshape([len(elements)] * v.rank)


def _as_attribute(b: Binding, schema: OpSchema, name: str, v: Var) -> None:
    number = _known(v)
    if number is None:
        raise Refused(f"its '{name}' is known at run time only")
    if number.size:
        written = read(signature.attribute(schema, name, number))
        refuse_if(
            not np.array_equal(np.asarray(written).reshape(-1), number.reshape(-1)),
            f"its '{name}' has more digits than an attribute",
        )
        b.set_attribute(name, written)
    elif name != "axes" or b.attr("noop_with_empty_axes"):
        raise Refused(f"its '{name}' is empty")


def _without_defaults(b: Binding, schema: OpSchema, new: int) -> None:
    """Removes attributes that the old version lacks if they have their default value. Raises
    Refused for any other value.
    """
    defaults = attributes.schema_defaults(b.op, new, "")
    for name, value in list(b.attrs.items()):
        if name in schema.attributes:
            continue
        if name == "num_outputs" and b.op == "Split":
            _listed_parts(b)
        elif value != defaults.get(name):
            raise Refused(f"its '{name}' came with opset {new}")
        b.drop_attribute(name)
    before = attributes.schema_defaults(b.op, int(schema.since_version), "")
    for name, a in schema.attributes.items():
        if name in b.attrs or name in b.blocks:
            continue
        refuse_if(a.required, f"it needs '{name}'")
        if name in defaults and defaults[name] != before.get(name):
            b.set_attribute(name, defaults[name])


def _listed_parts(b: Binding) -> None:
    """Lists the sizes of the parts if they differ. Raises Refused if they are not known."""
    axis = int(b.attr("axis"))
    parts = [None if v is None or v.shape is None else v.shape[axis] for v in b.outputs]
    if len(set(parts)) == 1 and None not in parts:
        return
    refuse_if(
        not all(isinstance(n, int) for n in parts),
        "the sizes of its parts are not known, nor equal",
    )
    b.block.set_operands(b, [b.operand(0), constant(np.array(parts, np.int64))])
