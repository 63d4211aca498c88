"""onnxgrad/ir/axis_maps.py: an element of an operand changes only results at its own index of a carried axis."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest

from onnxgrad.ir import axis_maps
from onnxgrad.ir.axis_maps import OUTSIDE, axes, carried, is_mapped
from onnxgrad.ir.load import load
from onnxgrad.ir.types import Shape, TensorType
from onnxgrad.verify.reference.evaluate import reference
from tests.helpers import parse

NEWEST = 28  # the newest opset whose operators are listed here
# a node of inputs x, w, b; their shapes; the maps of the operands
CASES: dict[str, tuple[str, list[tuple[int, ...]], list[tuple[int | None, ...] | None]]] = {
    "elementwise": ("Tanh (x)", [(2, 3)], [(0, 1)]),
    "broadcast": ("Mul (x, w)", [(2, 3), (3,)], [(0, 1), (1,)]),
    "repeated": ("Add (x, w)", [(2, 3), (2, 1)], [(0, 1), (0, None)]),
    "softmax": ("Softmax <axis = 1> (x)", [(2, 3, 2)], [(0, None, 2)]),
    "reduced": ("ReduceSum <keepdims = 0> (x, one)", [(2, 3, 4)], [(0, None, 1)]),
    "reduced, kept": ("ReduceL2 (x, one)", [(2, 3, 4)], [(0, None, 2)]),
    "reduced whole": ("ReduceMax (x)", [(2, 3)], [(None, None)]),
    "transposed": ("Transpose <perm = [2, 0, 1]> (x)", [(2, 3, 4)], [(1, 2, 0)]),
    "reshaped in front": ("Reshape (x, six)", [(2, 3, 4)], [(None, None, 1)]),
    "reshaped behind": ("Reshape (x, twelve)", [(2, 3, 4)], [(0, None, None)]),
    "squeezed": ("Squeeze (x, one)", [(2, 1, 3)], [(0, None, 1)]),
    "flattened": ("Flatten <axis = 1> (x)", [(2, 3, 4)], [(0, None, None)]),
    "joined": ("Concat <axis = 1> (x, w)", [(2, 3), (2, 1)], [(0, None), (0, None)]),
    "sliced": ("Slice (x, one, two, one)", [(2, 3)], [(0, None)]),
    "gathered": ("Gather <axis = 1> (x, places)", [(2, 3, 4)], [(0, None, 3)]),
    "expanded": ("Expand (x, shape)", [(3, 1)], [(1, None)]),
    "product": ("MatMul (x, w)", [(2, 3, 4), (4, 5)], [(0, 1, None), (None, 2)]),
    "batched product": ("MatMul (x, w)", [(2, 3, 4), (2, 4, 5)], [(0, 1, None), (0, None, 2)]),
    "repeated batch": ("MatMul (x, w)", [(1, 3, 4), (2, 4, 5)], [(None, 1, None), (0, None, 2)]),
    "Gemm": ("Gemm (x, w, b)", [(2, 3), (3, 4), (4,)], [(0, None), (None, 1), (1,)]),
    "Gemm, transposed": ("Gemm <transA = 1, transB = 1> (x, w)", [(3, 2), (4, 3)], [(None, 0), (1, None)]),
    "convolution": ("Conv (x, w, b)", [(2, 2, 5), (3, 2, 2), (3,)], [(0, None, None), (1, None, None), (1,)]),
    "transposed convolution": ("ConvTranspose (x, w)", [(2, 2, 4), (2, 3, 2)], [(0, None, None), (None, None, None)]),
    "pool": ("MaxPool <kernel_shape = [2]> (x)", [(2, 3, 4)], [(0, 1, None)]),
    "row norm": ("LayerNormalization (x, w)", [(2, 3), (3,)], [(0, None), (1,)]),
    "instance norm": ("InstanceNormalization (x, w, b)", [(2, 3, 4), (3,), (3,)], [(0, 1, None), (1,), (1,)]),
    "cumulative": ("CumSum (x, axis)", [(2, 3)], [(0, None)]),
    "Einsum": ('Einsum <equation = "bi,ijk->kbj"> (x, w)', [(2, 3), (3, 4, 2)], [(1, None), (None, 2, 0)]),
    "Einsum with an ellipsis": ('Einsum <equation = "...i,i...->...i"> (x, w)', [(2, 3, 4), (4, 2, 3)], [(0, 1, 2), (2, 0, 1)]),
    "Einsum of a diagonal": ('Einsum <equation = "ii->i"> (x)', [(3, 3)], [(0, 0)]),
    "product with a vector": ("MatMul (x, w)", [(2, 3, 4), (4,)], [(0, 1, None), (None,)]),
    "product of a vector": ("MatMul (x, w)", [(4,), (2, 4, 3)], [(None,), (0, None, 1)]),
    "padded": ("Pad (x, pads)", [(2, 3)], [(0, None)]),
    "triangle": ("Trilu (x)", [(2, 3, 3)], [(0, None, None)]),
    "last of some": ("ArgMax <axis = 0, keepdims = 0> (x)", [(3, 2)], [(None, 0)]),
    "last of some, by default": ("ArgMax <keepdims = 0> (x)", [(3, 2)], [(None, 0)]),
    "one hot": ("OneHot <axis = 1> (x, four, values)", [(2, 3)], [(0, 2)]),
    "scattered": ("ScatterND (x, place, w)", [(2, 3), (1, 3)], [(0, 1), (None, 1)]),
    "mean and variance": ("MeanVarianceNormalization <axes = [0, 2]> (x)", [(2, 3, 4)], [(None, 1, None)]),
    "selected": ("Where (c, x, w)", [(2, 3), (3,)], [None, (0, 1), (1,)]),
}  # fmt: skip
NUMBERS = (
    "<int64[1] one = {1}, int64[1] two = {2}, int64[2] six = {6, 4}, int64[2] twelve = {2, 12}, int64[2, 2] places = {0, 2, 1, 0}, "
    "int64[3] shape = {2, 3, 4}, int64 axis = {1}, int64[4] pads = {0, 1, 0, 2}, "
    "int64[1, 1] place = {1}, int64[1] four = {4}, float[2] values = {0.5, 2}>"
)


@pytest.mark.parametrize("name", CASES)
def test_carried_axes(name: str) -> None:
    node, shapes, maps = CASES[name]
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {v}" for v, s in zip("xwb", shapes)) + (
        ", bool[2,3] c" if "(c," in node else ""
    )
    model = parse(f"g ({inputs}) => (y) {NUMBERS} {{ y = {node} }}")
    binding = next(b for b in load(model).main.bindings if b.op != "Constant")
    slots = [i for i, v in enumerate(binding.inputs) if v is not None and v.name in "xwb"]
    assert [carried(binding, i) for i in slots] == maps[len(maps) - len(slots) :]
    rng = np.random.default_rng(0)
    feeds = {v: rng.uniform(0.5, 1.5, s).astype(np.float32) for v, s in zip("xwb", shapes)}
    feeds |= {"c": np.array([[True, False, True]] * 2)} if "(c," in node else {}
    before = reference(model, feeds)["y"]
    for slot in slots:
        found, operand = carried(binding, slot), binding.operand(slot)
        assert operand is not None
        for index in product(*map(range, feeds[operand.name].shape)) if found else ():
            other = feeds[operand.name].copy()
            other[index] += 9
            changed = np.argwhere(reference(model, {**feeds, operand.name: other})["y"] != before)
            for axis, to in enumerate(found or ()):
                assert to is None or set(changed[:, to]) <= {index[axis]}


def test_unknown_sizes_may_be_repeated() -> None:
    model = parse("g (float[N,3] x, float[M,3] w) => (y) { y = Add (x, w) }")
    (add,) = load(model).main.bindings
    assert [m and m[0] for m in (carried(add, 0), carried(add, 1))] == [None, None]


@pytest.mark.parametrize("opset", [18, 21])
def test_scales_of_groups_became_scales_of_channels(opset: int) -> None:
    text = "g (float[2,4,3] x, float[4] w, float[4] b) => (y) { y = GroupNormalization <num_groups = 2> (x, w, b) }"
    (norm,) = load(parse(text, opset=opset)).main.bindings
    assert (axes(norm, 1) is None) == (opset == 18)


def test_an_operator_outside_the_table_has_a_reason() -> None:
    (tile,) = load(parse("g (float[2] x, int64[1] n) => (y) { y = Tile (x, n) }")).main.bindings
    (other,) = load(parse("g (float[2] x) => (y) { y = NonZero (x) }")).main.bindings
    assert is_mapped(tile) and axes(tile, 0) is None and OUTSIDE["Tile"]
    assert not is_mapped(other)


# operators of ONNX without a map, which readers of the map refuse or know themselves, by reason
UNMAPPED = {
    "the result has as many elements as the values say": "Compress NonMaxSuppression NonZero StringSplit TfIdfVectorizer Unique",
    "operands or results are sequences, optionals or graphs":
        "ConcatFromSequence If Loop Optional OptionalGetElement OptionalHasElement Scan SequenceAt SequenceConstruct SequenceEmpty "
        "SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence",
    "it draws, or makes, numbers":
        "Bernoulli BlackmanWindow EyeLike HammingWindow HannWindow ImageDecoder MelWeightMatrix Multinomial RandomNormal "
        "RandomNormalLike RandomUniform RandomUniformLike",
    "places are computed": "CenterCropPad Col2Im DeformConv MaxRoiPool MaxUnpool ReverseSequence RoiAlign Scatter TensorScatter",
    "one scale for all elements": "ConvInteger DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul",
    "axes of a transform or of matrices": "DFT Det STFT",
    "a body of other operators stands for it":
        "CausalConvWithState LinearAttention NegativeLogLikelihoodLoss RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU",
    "bits or text": "BitCast RegexFullMatch StringConcat StringNormalizer",
}  # fmt: skip


def test_every_operator_of_onnx_has_a_map_or_a_reason() -> None:
    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            first[schema.name] = min(first.get(schema.name, 99), schema.since_version)
    known = {name for name, since in first.items() if since <= NEWEST}
    unmapped = [name for names in UNMAPPED.values() for name in names.split()]
    assert known - {*axis_maps._RULES, *OUTSIDE} <= {*unmapped}
    assert len({*unmapped}) == len(unmapped) and {*unmapped}.isdisjoint(
        {*axis_maps._RULES, *OUTSIDE}
    )


@pytest.mark.parametrize(
    ("before", "axis", "after", "kept"),
    [
        ((2, 3, 4), 1, (2, 3, 2, 2), 1),
        ((2, 3, 4), 2, (6, 4), 1),
        ((2, 3), 1, (1, 2, 3, 1), 2),
        ((6, 3, 4, 2), 1, (2, 3, 3, 8), 2),
        (("N", 3, 4), 1, ("N", 3, 2, 2), 1),
        ((2, "N", 3), 2, ("N", 2, 3), 2),
        ((None, 3), 1, (None, 3, 1), 1),
        ((None, 3, None), 1, (None, 3, None), None),
        ((2, 12), 1, (2, 3, 4), None),
        ((2, 3, 4), 1, (3, 2, 4), None),
        ((2, 1), 1, (2, 1, 1), None),
    ],
)
def test_an_axis_stays_in_a_reshape(
    before: Shape, axis: int, after: Shape, kept: int | None
) -> None:
    (reshape,) = load(
        parse("g (float[a,b] x, int64[2] s) => (float[c,d] y) { y = Reshape (x, s) }")
    ).main.bindings
    for v, shape in ((reshape.inputs[0], before), (reshape.out, after)):
        assert v is not None
        v.type = TensorType(v.dtype, shape)
    assert (carried(reshape, 0) or ())[axis] == kept
