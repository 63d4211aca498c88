"""Rules in place for operators that work along axes, which must not be the axis of the rows."""

from __future__ import annotations

from onnxgrad.batching.layout import Dependent, Layout, Refused
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.domains import REDUCTIONS

OVER_AXES = f"{' '.join(REDUCTIONS)} ArgMax ArgMin"


def axes_of(at: Site) -> list[int]:
    """Returns the axes of a reduction or an ArgMax, counted from the front."""
    rank = at.rank(0)
    if at.op.startswith("Arg"):
        return [at.axis("axis", 0, rank)]
    v = at.operand(1)
    none = v is not None and v.shape == (0,)
    axes = None if none else at.ints(1, "axes")
    if not axes:
        return [] if at.attr("noop_with_empty_axes", 0) else list(range(rank))
    return [a % rank for a in axes]


@in_place(OVER_AXES)
def reduction(at: Site) -> Layout:
    """Rows keep their axis if it is not reduced."""
    layout, axes = at.only_first(), axes_of(at)
    if layout.axis in axes:
        alone = at.sizes(0)[layout.axis] == 1
        some = len(axes) < at.rank(0) and any(at.sizes(0)[a] != 1 for a in axes)
        raise Refused("it reduces over the rows", along=alone, statistics=alone and some)
    before = 0 if at.attr("keepdims", 1) else sum(a < layout.axis for a in axes)
    return Layout(layout.axis - before, layout.outer)


def flattens(at: Site) -> bool:
    """Whether Softmax and similar operators work on all axes from one on, as before opset 13."""
    return at.version < 13


@in_place("Softmax LogSoftmax Hardmax")
def softmax(at: Site) -> Layout:
    """Rows keep their axis if it is not normalised."""
    layout, rank = at.only_first(), at.rank(0)
    axis = at.axis("axis", 1 if flattens(at) else -1, rank)
    if layout.axis >= axis if flattens(at) else layout.axis == axis:
        raise Refused("it normalises over the rows", along=True)
    return layout


@in_place("LayerNormalization RMSNormalization SimplifiedLayerNormalization")
def layer_normalization(at: Site) -> Layout:
    """Rows stay before the normalised axes."""
    layout, rank = at.only_first(), at.rank(0)
    if layout.axis >= at.axis("axis", -1, rank):
        raise Refused("it normalises over the rows", along=True)
    for k in at.present()[1:]:
        place = layout.axis - (rank - at.rank(k))
        if place >= 0 and at.sizes(k)[place] != 1:
            raise Refused("a scale has several elements along the rows")
    return layout


@in_place("CumSum CumProd LpNormalization")
def along(at: Site) -> Layout:
    """Rows keep their axis if the operator does not work along it."""
    layout, rank = at.only_first(), at.rank(0)
    if at.op in ("CumSum", "CumProd"):
        axis = (at.ints(1) or [0])[0] % rank
    else:
        axis = at.axis("axis", -1, rank)
    if layout.axis == axis:
        raise Refused("it goes along the rows", along=True)
    return layout


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
