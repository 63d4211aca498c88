"""Rules in place by the map of axes: rows keep their axis unless the operator works along it."""

from __future__ import annotations

from onnxgrad.batching.layout import Dependent, Layout, Refused
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.axis_maps import Axis, axes, named_axes
from onnxgrad.ir.domains import ELEMENTWISE, REDUCTIONS

OVER_AXES = f"{' '.join(REDUCTIONS)} ArgMax ArgMin"
UNARY = (
    f"{' '.join(name for name in ELEMENTWISE if name != 'CastLike')} "
    "Dropout ms:Gelu ms:FastGelu ms:QuickGelu ml:Binarizer"
)
_NORMALISE = (
    "Hardmax", "LayerNormalization", "LogSoftmax", "RMSNormalization",
    "SimplifiedLayerNormalization", "Softmax",
)  # fmt: skip
# why rows may not be on an axis
_WHY = {
    **dict.fromkeys(_NORMALISE, "it normalises over the rows"),
    **dict.fromkeys(("CumProd", "CumSum", "LpNormalization"), "it goes along the rows"),
    "Pad": "it pads the axis of the rows",
    "Split": "it splits along the rows",
    "TopK": "it orders along the rows",
    "Trilu": "rows stand on an axis of the matrices",
}


def related(at: Site, k: int, axis: int) -> Axis | None:
    """Returns the relation of an axis of operand `k` to the result. Raises Refused if axes are
    unknown.
    """
    found = axes(at.binding, k)
    if found is None:
        raise Refused("its axes are not known")
    return found[axis]


@in_place(f"{UNARY} OneHot Transpose {' '.join(_WHY)}")
def kept(at: Site) -> Layout:
    """Rows keep their axis if the operator does not work along it. The ratio of a Dropout does not
    matter: none that trains is here.
    """
    layout = at.alone(1) if at.op == "Dropout" else at.only_first()
    axis = related(at, 0, layout.axis)
    if axis is None or axis.how not in ("same", "repeated"):
        raise Refused(_WHY[at.op], along=axis is not None)
    for k in at.present()[1:]:
        for i, other in enumerate(axes(at.binding, k) or ()):
            if other is not None and other.to == axis.to and at.sizes(k)[i] != 1:
                raise Refused("a scale has several elements along the rows")
    return Layout(int(axis.to), layout.outer)


def axes_of(at: Site) -> list[int]:
    """Returns the axes of a reduction or an ArgMax. Raises Refused if they are unknown."""
    found = named_axes(at.binding, at.rank(0))
    if found is None:
        raise Refused("its axes are not known")
    return found


@in_place(OVER_AXES)
def reduction(at: Site) -> Layout:
    """Rows keep their axis if it is not reduced."""
    layout, over = at.only_first(), axes_of(at)
    if layout.axis in over:
        alone = at.sizes(0)[layout.axis] == 1
        some = len(over) < at.rank(0) and any(at.sizes(0)[a] != 1 for a in over)
        raise Refused("it reduces over the rows", along=alone, statistics=alone and some)
    before = 0 if at.attr("keepdims", 1) else sum(a < layout.axis for a in over)
    return Layout(layout.axis - before, layout.outer)


@in_place("MeanVarianceNormalization")
def mean_variance(at: Site) -> Layout:
    """Rows keep their axis if the statistics do not include it."""
    layout, rank = at.only_first(), at.rank(0)
    if layout.axis in [a % rank for a in at.attr("axes", (0, 2, 3))]:
        raise Dependent("MeanVarianceNormalization has statistics over the batch")
    return layout


@in_place("BatchNormalization")
def batch_normalization(at: Site) -> Layout:
    """Each row is normalised by stored statistics."""
    kept = sum(v is not None for v in at.binding.outputs)
    trains = (
        at.attr("training_mode", 0)
        if at.version >= 14
        else (kept > 1 if at.version >= 7 else not at.attr("is_test", 0))
    )
    if trains:
        raise Dependent("BatchNormalization in training mode has statistics over the batch")
    at.only_first()
    return at.leading(0)
