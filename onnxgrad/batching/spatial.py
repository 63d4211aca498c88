"""Rules in place for operators with an axis of samples: convolutions, pools, Resize, recurrent
operators and attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import FRONT, Layout, Refused
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.symbolic_shapes import ML
from onnxgrad.ir.type_inference.window_shapes import floats_of

SAMPLES = (
    "Conv ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool "
    "InstanceNormalization GroupNormalization LRN ConvInteger QLinearConv ms:FusedConv "
    "DepthToSpace SpaceToDepth Col2Im STFT "
    "ml:TreeEnsemble ml:TreeEnsembleRegressor ml:TreeEnsembleClassifier ml:LinearRegressor "
    "ml:LinearClassifier ml:SVMRegressor ml:SVMClassifier ml:Normalizer ml:Scaler ml:Imputer"
)

_MAX_OF_INTS = 12  # opset whose Max has integers


@in_place(SAMPLES)
def samples(at: Site) -> Layout:
    """Samples are independent: rows join the first axis of the data."""
    at.only_first()
    if at.binding.domain == ML and at.rank(0) != 2:
        raise Refused("its samples have no axis")
    if at.op == "MaxPool" and at.binding.result(1) is not None:
        raise Refused("its indices count through the batch")
    return at.leading(0)


@in_place("Resize Upsample")
def resize(at: Site) -> Layout:
    """Samples are independent if the first axis keeps its size."""
    at.only_first()
    sizes, result = at.in_file(at.operand(0)), at.result()
    axes = [a % len(sizes) for a in at.attr("axes") or range(len(sizes))]
    if at.attr("coordinate_transformation_mode") in ("tf_crop_and_resize", b"tf_crop_and_resize"):
        raise Refused("it crops")
    if 0 not in axes:
        return at.leading(0)
    if len(axes) < len(sizes) or sizes[0] != result[0] or not _keeps_samples(at):
        raise Refused("it resizes the first axis")
    one = at.sizes(0)[0]
    layout = at.leading(0)
    if at.operand(3) is not None:
        rows = at.sizes_at.rows()
        rows = rows if one == 1 else op.Mul(rows, at.sizes_at.vector([one]))
        at.operands[3] = op.Concat(rows, at.sizes_at.vector(result[1:]), axis=0)
    return layout


def _keeps_samples(at: Site) -> bool:
    """Whether the scale of the first axis is 1: a scale of 1.2 does not change its size either."""
    if at.operand(3) is not None:
        return at.attr("keep_aspect_ratio_policy", "stretch") in ("stretch", b"stretch")
    place = 2 if at.op == "Resize" and at.version >= 11 else 1
    scales = at.operand(place)
    if scales is None:
        found = at.attr("scales")
    else:  # onnxruntime accepts scales of any rank
        found = floats_of(scales) if scales.const is None else scales.const.ravel()
    return found is not None and [*found[:1]] == [1.0]


@in_place("LSTM GRU RNN")
def recurrent(at: Site) -> list[Layout | None]:
    """Rows are the samples, on axis 1; shared initial states repeat."""
    if at.attr("layout", 0):
        raise Refused("its samples stand in front")
    if any(at.at(k) is not None for k in (1, 2, 3, 7)):
        raise Refused("its weights differ from row to row")
    at.arrange({0: Layout(1), 4: FRONT, 5: Layout(1), 6: Layout(1)})
    places: list[Layout | None] = [Layout(2), Layout(1), Layout(1)]
    if at.binding.block.opsets[""] >= _MAX_OF_INTS and isinstance(at.sizes(0)[1], int):
        _never_empty(at, places)
    return places[: len(at.binding.outputs)]


def _never_empty(at: Site, places: Sequence[Layout | None]) -> None:
    """Computes one sample of zeros and removes it if there are no samples, because onnxruntime
    would abort the process.
    """
    one, rows = at.sizes(0)[1], at.sizes_at.rows()
    samples = rows if one == 1 else op.Mul(rows, at.sizes_at.vector([one]))
    more = op.Max(op.Sub(np.array([1], np.int64), samples), np.array([0], np.int64))
    behind = op.Concat(np.zeros(4, np.int64), more, np.zeros(1, np.int64), axis=0)
    operands = list(at.operands)
    for k in (0, 5, 6):
        if at.operand(k) is not None:
            operands[k] = op.Pad(at.operand(k), behind)
    if at.operand(4) is not None:
        length = constant(np.array(1), TensorProto.INT32)
        operands[4] = op.Pad(at.operand(4), op.Concat(np.zeros(1, np.int64), more, axis=0), length)
    made = at.again(*operands)
    results = made if isinstance(made, tuple) else (made,)
    start = np.zeros(1, np.int64)
    at.replaced = []
    for old, new, place in zip(at.binding.outputs, results, places, strict=False):
        if old is None or new is None or place is None:
            continue
        cut = op.Slice(new, start, samples, np.array([place.axis], np.int64))
        cut.type = old.type
        at.replaced.append((cut, place))


@in_place("Attention")
def attention(at: Site) -> Layout:
    """Samples are independent: queries, keys, values and caches have them in front."""
    if at.binding.domain or at.version < 23:
        raise Refused("another Attention")
    at.arrange(dict.fromkeys((0, 1, 2, 4, 5), FRONT))
    mask = at.operand(3)
    if mask is not None:
        _masked(at)
    if at.operand(6) is not None:
        raise Refused("it has lengths")
    return FRONT


def _masked(at: Site) -> None:
    """Checks that a shared mask broadcasts: it has no axis of samples, or one of size 1."""
    if at.at(3) is None and at.rank(3) == 4 and at.sizes(3)[0] == at.count:
        at.of_one_row(3, 0)
    sizes = at.sizes(3)
    if at.at(3) is None:
        if len(sizes) == 4 and sizes[0] != 1:
            raise Refused("its mask has several samples")
        return
    if len(sizes) != 4 or sizes[0] != at.sizes(0)[0] or not at.moved(3, FRONT):
        raise Refused("the rows of its mask are not in front")


@in_place("GridSample")
def two_samples(at: Site) -> Layout:
    """Images and grids are paired sample by sample."""
    at.arrange({0: FRONT, 1: FRONT})
    return FRONT


@in_place("DFT")
def dft(at: Site) -> Layout:
    """Samples are independent, unless they are transformed over."""
    at.only_first()
    rank = at.rank(0)
    axis = (at.ints(2) or [-2])[0] if at.version >= 20 else int(at.attr("axis", 1))
    if not axis % rank:
        raise Refused("it transforms the rows")
    return at.leading(0)


@in_place("DeformConv")
def deformed(at: Site) -> Layout:
    """Samples are independent: each has its offsets and its mask."""
    at.alone(2, 4)
    at.arrange({0: FRONT, 2: FRONT, 4: FRONT})
    return FRONT


@in_place("ReverseSequence")
def reversed_sequences(at: Site) -> Layout:
    """Each sequence of each row has its length."""
    batch = int(at.attr("batch_axis", 1))
    place = Layout(batch)
    at.arrange({0: place, 1: FRONT})
    return place
