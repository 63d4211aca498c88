"""Our kernels where the backend suite has no case: compared with onnxruntime, or with arithmetic written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import OnnxgradError, Unsupported
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.reference.kernels import conv_and_pool, linear_and_quantization
from onnxgrad.verify.reference.kernels.elementwise import erf_of
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal
from tests.helpers import parse


def agrees(text: str, opset: int = 20, **given: Any) -> None:
    """The reference and onnxruntime give the same on generated feeds."""
    model = parse(text, opset=opset)
    feeds = feeds_for(model, seed=0, given=given or None)
    wanted, got = run(model, feeds, optimize=False), reference(model, feeds)
    for name, value in wanted.items():
        assert isinstance(value, np.ndarray)
        assert np.shape(got[name]) == value.shape
        assert np.allclose(got[name], value, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 4), (4, 6)), ((2, 5, 4), (2, 4, 6)), ((2, 1, 4), (4, 1)), ((1, 5, 4), (3, 4, 2))],
)
def test_the_rows_of_a_large_product_are_split_over_the_cores(
    a: tuple[int, ...], b: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = (normal(*shape).astype(np.float64) for shape in (a, b))
    wanted = left @ right
    monkeypatch.setattr(linear_and_quantization, "_LARGE", 1)
    monkeypatch.setattr(linear_and_quantization, "cores", lambda: 3)
    got = linear_and_quantization.product(left, right)
    assert got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-13, atol=1e-14)


def test_erf() -> None:
    """Known values, rounded to float64; any shape and layout."""
    known = {0.1: 0.1124629160182849, 0.5: 0.5204998778130465, 1.0: 0.8427007929497149,
             1.5: 0.9661051464753107, 2.0: 0.9953222650189527, 3.0: 0.9999779095030014,
             0.0: 0.0, 7.0: 1.0, np.inf: 1.0}  # fmt: skip
    x, wanted = np.array([*known]), np.array([*known.values()])
    assert np.allclose(erf_of(x), wanted, rtol=3e-16, atol=0)
    assert np.array_equal(erf_of(-x.reshape(3, 3).T), -erf_of(x).reshape(3, 3).T)
    assert np.isnan(erf_of(np.array([np.nan]))[0]) and np.signbit(erf_of(np.array(-0.0)))
    assert erf_of(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("auto_pad", "strides", "dilations", "group"),
    list(
        itertools.product(
            ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
            [[1, 1], [2, 3]],
            [[1, 1], [2, 1]],
            [1, 2, 4],
        )
    ),
)
def test_conv(auto_pad: str, strides: list[int], dilations: list[int], group: int) -> None:
    pads = ", pads = [1, 0, 2, 1]" if auto_pad == "NOTSET" else ""
    if auto_pad.startswith("SAME") and dilations != [1, 1]:
        return  # onnxruntime and the text disagree about SAME with dilations
    agrees(
        f"""g (float[2,4,9,8] x, float[8,{4 // group},3,2] w, float[8] b) => (float[2,8,H,W] y) {{
              y = Conv <auto_pad = "{auto_pad}", strides = {strides}, dilations = {dilations}, group = {group}{pads}>
                (x, w, b) }}"""
    )


@pytest.mark.parametrize(("group", "maps"), [(1, 8), (2, 8), (4, 8), (4, 64)])
def test_conv_by_blocks(group: int, maps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few groups or offsets of the kernel at a time give the same."""
    model = parse(
        f"""g (float[2,4,9,8] x, float[{maps},{4 // group},3,2] w) => (float[2,{maps},H,W] y)
            {{ y = Conv <group = {group}, pads = [1, 0, 2, 1], strides = [1, 2]> (x, w) }}"""
    )
    feeds = feeds_for(model, seed=0)
    wanted = reference(model, feeds)["y"]
    monkeypatch.setattr(conv_and_pool, "_BLOCK", 2 * 2 * 10 * 4 + 1)  # of two groups
    monkeypatch.setattr(conv_and_pool, "_COLUMN_ELEMENTS", 2 * 4 * 10 * 4 * 4)  # 4 of 6 offsets
    got = reference(model, feeds)["y"]
    assert isinstance(wanted, np.ndarray) and isinstance(got, np.ndarray)
    assert got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-13, atol=1e-14)


def test_conv_of_one_and_three_axes() -> None:
    agrees(
        "g (float[2,3,11] x, float[4,3,3] w) => (float[2,4,L] y) { y = Conv <strides = [2]> (x, w) }"
    )
    agrees("g (float[1,2,4,5,6] x, float[3,2,2,2,2] w) => (float[1,3,A,B,C] y) { y = Conv (x, w) }")


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "strides = [2, 3]",
        "strides = [2, 2], pads = [1, 0, 0, 1]",
        "strides = [2, 2], output_padding = [1, 1]",
        "strides = [2, 2], output_shape = [9, 10]",
        'strides = [2, 2], auto_pad = "SAME_UPPER"',
        'strides = [2, 2], auto_pad = "SAME_LOWER"',
        'strides = [4, 5], auto_pad = "SAME_UPPER"',
        'strides = [4, 2], auto_pad = "SAME_LOWER"',
        "dilations = [2, 1], strides = [1, 2]",
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(attributes: str, group: int) -> None:
    separator = ", " if attributes else ""
    agrees(
        f"""g (float[2,4,5,5] x, float[4,3,3,3] w, float[{3 * group}] b) => (float[2,M,H,W] y) {{
              y = ConvTranspose <group = {group}{separator}{attributes}> (x, w, b) }}"""
    )


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", ["[0, 0, 0, 0]", "[1, 1, 1, 1]", "[0, 1, 1, 0]"])
@pytest.mark.parametrize("strides", ["[1, 1]", "[2, 3]"])
def test_pools(ceil: int, pads: str, strides: str) -> None:
    common = f"kernel_shape = [3, 2], strides = {strides}, pads = {pads}, ceil_mode = {ceil}"
    agrees(
        f"""g (float[2,3,8,8] x) => (float[2,3,H,W] m, int64[2,3,H,W] i, float[2,3,H,W] a, float[2,3,H,W] l) {{
              m, i = MaxPool <{common}> (x)
              a = AveragePool <{common}> (x)
              l = LpPool <{common}, p = 3> (x) }}"""
    )
    if (
        not ceil
    ):  # onnxruntime counts the extra room of ceil_mode as padding, the operator's text does not
        pool = f"AveragePool <{common}, count_include_pad = 1> (x)"
        agrees(f"g (float[2,3,8,8] x) => (float[2,3,H,W] a) {{ a = {pool} }}")


def test_max_roi_pool() -> None:
    rois = np.array([[0, 0, 0, 7, 7], [1, 2, 1, 6, 5]], np.float32)
    agrees(
        "g (float[2,3,8,8] x, float[2,5] r) => (float[2,3,2,3] y) { y = MaxRoiPool <pooled_shape = [2, 3]> (x, r) }",
        r=rois,
    )


RECURRENT = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", RECURRENT)
@pytest.mark.parametrize("extra", ["", "clip = 0.3", "activations"])
def test_recurrent(op: str, direction: str, extra: str) -> None:
    """Lengths, initial states, peepholes, both directions."""
    d, h, gates = (2 if direction == "bidirectional" else 1), 4, RECURRENT[op]
    if extra == "activations":
        names = {
            "RNN": ["LeakyRelu"],
            "GRU": ["HardSigmoid", "Softsign"],
            "LSTM": ["HardSigmoid", "Elu", "Softsign"],
        }[op]
        extra = f"activations = [{', '.join(repr(n) for n in names * d)}]".replace("'", '"')
    separator = ", " if extra else ""
    states = f", float[{d},3,{h}] h0" + (
        f", float[{d},3,{h}] c0, float[{d},{3 * h}] p" if op == "LSTM" else ""
    )
    operands = ", h0" + (", c0, p" if op == "LSTM" else "")
    outputs, declared = "y, yh", f"float[5,{d},3,{h}] y, float[{d},3,{h}] yh"
    if op == "LSTM":
        outputs, declared = outputs + ", yc", declared + f", float[{d},3,{h}] yc"
    agrees(
        f"""g (float[5,3,2] x, float[{d},{gates * h},2] w, float[{d},{gates * h},{h}] r, float[{d},{2 * gates * h}] b,
               int32[3] n{states}) => ({declared}) {{
              {outputs} = {op} <hidden_size = {h}, direction = "{direction}"{separator}{extra}>
                (x, w, r, b, n{operands}) }}""",
        n=np.array([5, 3, 1], np.int32),
    )


def test_linear_before_reset_and_input_forget() -> None:
    agrees(
        """g (float[5,3,2] x, float[1,12,2] w, float[1,12,4] r, float[1,24] b) => (float[5,1,3,4] y) {
             y = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, b) }"""
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = np.random.default_rng(0).uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    agrees(
        f"""g (float[2,3,6,7] x, float[2,4,5,2] g) => (float[2,3,4,5] y) {{
              y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {align}> (x, g) }}""",
        g=grid,
    )


def test_gather_elements_with_a_smaller_index() -> None:
    index = np.array([[0, 3, -1]])
    agrees(
        "g (float[5,4] x, int64[1,3] i) => (float[1,3] y) { y = GatherElements <axis = 1> (x, i) }",
        i=index,
    )


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter(reduction: str) -> None:
    unique = reduction == "none"
    rows = np.array([[0], [3]] if unique else [[1], [1]])
    agrees(
        f"""g (float[4,3] x, int64[2,1] i, float[2,3] u, int64[2,3] e) => (float[4,3] y, float[4,3] z) {{
              y = ScatterND <reduction = "{reduction}"> (x, i, u)
              z = ScatterElements <axis = 0, reduction = "{reduction}"> (x, e, u) }}""",
        i=rows,
        e=np.array([[0, 1, 2], [3, 2, 1]]) if unique else np.array([[0, 1, 2], [0, 1, 1]]),
    )


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }",
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax <axis = 1> (x) }",
        "g (float[2,3,1] x) => (float[2,3] y) { y = Squeeze <axes = [2]> (x) }",
        "g (float[2,3] x) => (float[1,2,3,1] y) { y = Unsqueeze <axes = [0, -1]> (x) }",
        "g (float[2,3,4] x) => (float[2,4] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }",
        "g (float[2,6] x) => (float[2,4] y, float[2,2] z) { y, z = Split <axis = 1, split = [4, 2]> (x) }",
        "g (float[2,3,5,5] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,5,5] y) "
        "{ y = BatchNormalization (x, s, b, m, v) }",
    ],
)
def test_operators_of_older_opsets(text: str) -> None:
    agrees(text, opset=11)


def test_bounds_that_were_attributes() -> None:
    agrees(
        "g (float[5,6] x) => (float[N,M] y) { y = Slice <starts = [1, -3], ends = [9, -1], axes = [0, 1]> (x) }",
        9,
    )
    agrees("g (float[5] x) => (float[5] y) { y = Clip <min = -0.5, max = 0.25> (x) }", 6)


@pytest.mark.parametrize(
    ("target", "size"), [("2, -1", (2, 0)), ("-1, 3", (0, 3)), ("0, -1", None)]
)
def test_the_missing_size_of_nothing(target: str, size: tuple[int, ...] | None) -> None:
    model = parse(
        f"g (float[N,3] x) => (float[A,B] y) <int64[2] s = {{{target}}}> {{ y = Reshape(x, s) }}"
    )
    feeds = {"x": np.zeros((0, 3), np.float32)}
    if size is not None:
        assert reference(model, feeds)["y"].shape == run(model, feeds)["y"].shape == size
        return
    with pytest.raises(Unsupported):
        reference(model, feeds)
    with pytest.raises(RunFailed):
        run(model, feeds)


@pytest.mark.parametrize("t", [0, 1, 3])
def test_the_bias_correction_of_adam(t: int) -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
        g (float r, int64 t, float[2] x, float[2] g0, float[2] v, float[2] h) => (float[2] y, float[2] w, float[2] k) {
          y, w, k = ai.onnx.preview.training.Adam <alpha = 0.5, beta = 0.875, epsilon = 0.0> (r, t, x, g0, v, h) }""")
    x, g, v, h = (np.float32(values) for values in ([1, 2], [2, -1], [0, 2], [1, 3]))
    got = reference(
        model, {"r": np.float32(0.1), "t": np.array(t), "x": x, "g0": g, "v": v, "h": h}
    )
    mean, square = 0.5 * v + 0.5 * g, 0.875 * h + 0.125 * g * g
    rate = 0.1 * math.sqrt(1 - 0.875**t) / (1 - 0.5**t) if t else 0.1
    np.testing.assert_allclose(got["y"], x - rate * mean / np.sqrt(square), rtol=1e-6)
    np.testing.assert_allclose([got["w"], got["k"]], [mean, square], rtol=1e-6)


def test_integer_division_truncates() -> None:
    a, b = np.array([7, -7, 7, -7, 6, 0]), np.array([2, 2, -2, -2, 3, 5])
    model = parse("g (int64[6] a, int64[6] b) => (int64[6] y) { y = Div(a, b) }")
    assert reference(model, {"a": a, "b": b})["y"].tolist() == [3, -3, -3, 3, 2, 0]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "ReduceMax", "ReduceLogSumExp"])
def test_nothing_to_reduce(op: str) -> None:
    model = parse(f"g (float[0,3] x) => (float[N,M] y) {{ y = {op} (x) }}")
    assert np.size(reference(model, {"x": np.zeros((0, 3), np.float32)})["y"]) <= 1


def test_a_split_to_sequence_along_the_first_axis_unless_said_otherwise() -> None:
    text = "g (float[4,6] x) => (float[2,6] y) { p = Constant <value = int64 {2}> () s = SplitToSequence(x, p) i = Constant <value = int64 {1}> () y = SequenceAt(s, i) }"
    agrees(text)


@pytest.mark.parametrize("index", [-6, 5])
def test_an_index_before_the_first_or_after_the_last_is_refused(index: int) -> None:
    model = parse("g (float[5] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }")
    feeds = {"x": np.arange(5, dtype=np.float32), "i": np.array([index])}
    with pytest.raises(OnnxgradError, match="out of range"):
        reference(model, feeds)


def test_multinomial_draws_as_often_as_the_weights_say() -> None:
    model = parse(
        "g (float[2,3] x) => (int32[2,4000] y) { y = Multinomial <sample_size = 4000> (x) }"
    )
    with np.errstate(divide="ignore"):
        x = np.log(
            np.array([[6, 0, 2], [0, 1, 0]], np.float32)
        )  # of 8 draws 6 are the first; a class of no weight
    drawn = np.asarray(reference(model, {"x": x})["y"])
    counts = [np.bincount(row, minlength=3).tolist() for row in drawn]
    assert counts[1] == [0, 4000, 0]
    assert (
        counts[0][1] == 0 and abs(counts[0][0] - 3000) < 150 and sum(counts[0]) == 4000
    )  # over five deviations of 27


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_broadcasting_as_the_oldest_opsets_ask_for_it(op: str) -> None:
    x, y = np.arange(1.0, 25).reshape(2, 3, 4), np.array([1.0, 2, 4])
    model = parse(
        f"g (float[2,3,4] x, float[3] y) => (float[2,3,4] z) {{ z = {op} <axis = 1, broadcast = 1> (x, y) }}",
        opset=6,
    )
    wanted = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op](
        x, y[:, None]
    )
    assert np.array_equal(np.asarray(reference(model, {"x": x, "y": y})["z"]), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_divide_towards_zero(dtype: str) -> None:
    a, b = np.array([7, 100, 0, 5]).astype(dtype), np.array([2, 3, 5, 0]).astype(dtype)
    model = parse(f"g ({dtype}[4] a, {dtype}[4] b) => ({dtype}[4] y) {{ y = Div(a, b) }}")
    found = np.asarray(reference(model, {"a": a, "b": b})["y"])
    assert found.dtype == dtype and found.tolist() == [3, 33, 0, 0]  # by zero onnxruntime dies


ALONE = """Abs Neg Exp Log Sqrt Floor Ceil Round Sign Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Atanh Erf Relu Sigmoid
Softplus Softsign Mish Swish Elu Selu Celu LeakyRelu ThresholdedRelu HardSigmoid HardSwish Gelu Shrink Reciprocal Identity
Max Min Sum Mean Transpose ReduceSum ReduceMax ReduceL2 ReduceLogSumExp"""
TOGETHER = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean"]


@pytest.mark.parametrize(
    "call",
    [
        *(f"{op} (x)" for op in ALONE.split()),
        *(f"{op} (x, z)" for op in (*TOGETHER, "PRelu")),
        "Where (c, x, z)",
        "Clip (x, z)",
        "Unsqueeze (x, i)",
        "Reshape (x, i)",
        "Expand (x, i)",
        "Cast <to = 1> (x)",
    ],
)
def test_numbers_without_an_axis(call: str) -> None:
    """numpy gives scalars where an array without an axis went in, and some classes of onnx.reference stumble over them."""
    made, first = call.endswith(", i)"), 0 if call.startswith("U") else 1
    text = f"g (float x, float z, bool c) => (float{'[S]' if made else ''} y) <int64[1] i = {{{first}}}> {{ y = {call} }}"
    agrees(text, 24, x=np.float32(0.3), z=np.float32(0.7), c=np.array(True))


@pytest.mark.parametrize("shapes", list(itertools.permutations([(), (4,), (3, 1)])))
@pytest.mark.parametrize("op", [*TOGETHER, "Where"])
def test_operands_that_broadcast(op: str, shapes: Sequence[tuple[int, ...]]) -> None:
    x, y, z = (normal(*shape) ** 2 + 0.5 for shape in shapes)
    inputs = ", ".join(
        f"float[{','.join(map(str, s))}] {n}" if s else f"float {n}" for s, n in zip(shapes, "xyz")
    )
    several = op in ("Max", "Min", "Sum", "Mean")
    call = (
        f"{op} (x, y, z)"
        if several
        else f"p = Less (x, y) o = {op} (p, y, z)"
        if op == "Where"
        else f"{op} (x, y)"
    )
    agrees(
        f"g ({inputs}) => (float[] o) {{ {call if op == 'Where' else f'o = {call}'} }}",
        24,
        x=x,
        y=y,
        z=z,
    )


ML = '<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>'


@pytest.mark.parametrize(
    "keys", ['classlabels_strings = ["a", "b"]', "classlabels_int64s = [4, 2]"]
)
def test_zip_map_gives_maps_as_onnxruntime_does(keys: str) -> None:
    kind = "string" if "strings" in keys else "int64"
    model = parse(
        f"{ML} g (float[N,2] x) => (seq(map({kind}, float)) y) {{ y = ai.onnx.ml.ZipMap <{keys}> (x) }}"
    )
    feeds = {"x": normal(3, 2)}
    wanted, got = run(model, feeds, optimize=False)["y"], reference(model, feeds)["y"]
    assert isinstance(wanted, list) and isinstance(got, list)
    for row, as_run in zip(got, wanted, strict=True):
        assert row == pytest.approx(as_run) and row.keys() == as_run.keys()
    # as wide as they were computed, so that a proof does not ask a float32 model for a double's precision
    assert {type(v) for row in wanted for v in row.values()} == {np.float32}


def test_a_distance_that_onnxruntime_lacks_is_refused() -> None:
    text = 'g (float[2,3] a, float[4,3] b) => (float[2,4] y) { y = com.microsoft.CDist <metric = "%s"> (a, b) }'
    feeds = {"a": normal(2, 3), "b": normal(4, 3)}
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> '
    assert reference(parse(head + text % "sqeuclidean"), feeds)["y"].shape == (2, 4)
    with pytest.raises(Unsupported, match="CDist with the metric 'cosine'"):
        reference(parse(head + text % "cosine"), feeds)


def test_linear_regressor_without_intercepts() -> None:
    """onnx.reference gives NaN."""
    agrees(
        f"{ML} g (float[3,2] x) => (float[3,1] y) {{ y = ai.onnx.ml.LinearRegressor <coefficients = [2.0, 3.0]> (x) }}"
    )


def test_what_onnx_reference_lacks_is_said_in_a_few_words() -> None:
    model = parse(
        f"{ML} g (map(int64, float) x) => (float[1,2] y) {{ y = ai.onnx.ml.CastMap (x) }}"
    )
    with pytest.raises(Unsupported) as error:
        reference(model, {"x": np.zeros(1)})
    assert str(error.value) == "the operator ai.onnx.ml::CastMap has no reference implementation"


@pytest.mark.parametrize("axis", ["", "[1]", "[3]"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("opset", [10, 12, 13, 18])
def test_quantization_below_opset_19(opset: int, dtype: str, axis: str) -> None:
    """Nearly all files of onnxruntime.quantization have these; per axis since opset 13."""
    if axis == "[3]" and opset < 13:
        return
    shape = {"": (), "[1]": (1,), "[3]": (3,)}[axis]
    given = {
        "s": np.linspace(0.05, 0.11, math.prod(shape), dtype=np.float32).reshape(shape),
        "z": np.arange(math.prod(shape)).reshape(shape).astype(dtype),
    }
    agrees(
        f"""g (float[2,3] x, float{axis} s, {dtype}{axis} z) => ({dtype}[2,3] q, float[2,3] y) {{
              q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }}""",
        opset,
        **given,
    )


def test_what_is_beyond_the_quantized_dtype_ends_at_its_bounds() -> None:
    """onnx.reference went through int32, where large values overflow."""
    model = parse(
        "g (float[4] x, float s, uint8 z) => (uint8[4] y) { y = QuantizeLinear (x, s, z) }"
    )
    x = np.array([1e30, -1e30, 2.5, 3.5], np.float32)
    found = reference(model, {"x": x, "s": np.float32(1), "z": np.uint8(3)})["y"]
    assert isinstance(found, np.ndarray) and found.tolist() == [255, 0, 5, 7]


def test_a_bias_of_32_bits_keeps_them_all() -> None:
    model = parse("g (int32[1] x, float s) => (float[1] y) { y = DequantizeLinear (x, s) }")
    found = reference(model, {"x": np.int32([2**25 + 1]), "s": np.float32(1)})["y"]
    assert isinstance(found, np.ndarray) and found.tolist() == [2**25 + 1]


@pytest.mark.parametrize("numbers", ["", "[1]"])
@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("given", [3, 4, 5])
def test_non_max_suppression(numbers: str, centred: int, given: int) -> None:
    call = ", ".join(["b", "s", "m", "i", "t"][:given])
    shape = (1,) if numbers else ()
    rng = np.random.default_rng(given)
    model = parse(
        f"""g (float[2,9,4] b, float[2,3,9] s, int64{numbers} m, float{numbers} i, float{numbers} t)
            => (int64[K,3] y) {{ y = NonMaxSuppression <center_point_box = {centred}> ({call}) }}""",
        opset=17,
    )
    feeds: dict[str, Any] = {
        "b": rng.uniform(0, 4, (2, 9, 4)).astype(np.float32),
        "s": np.round(rng.random((2, 3, 9)), 1).astype(np.float32),
        "m": np.full(shape, 4, np.int64),
        "i": np.full(shape, 0.3, np.float32),
        "t": np.full(shape, 0.4, np.float32),
    }
    wanted = run(model, feeds)["y"]
    assert isinstance(wanted, np.ndarray) and len(wanted) > 3
    np.testing.assert_array_equal(reference(model, feeds)["y"], wanted)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.5, 0.5), (1.5, 1.0)])
def test_resize_as_it_began(mode: str, scales: tuple[float, float]) -> None:
    agrees(
        f"""g (float[1,2,4,6] x, float[4] s) => (float[1,2,A,B] y) {{
              y = Resize <mode = "{mode}"> (x, s) }}""",
        10,
        s=np.float32([1, 1, *scales]),
    )


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 1>", "<axis = 2>"])
def test_hardmax(axis: str, opset: int) -> None:
    agrees(f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Hardmax {axis} (x) }}", opset)


def test_bits_of_floats() -> None:
    text = "g (float[3] x) => (int32[3] i, float[3] y) { i = BitCast <to = 6> (x) y = BitCast <to = 1> (i) }"
    x = np.float32([1.5, -0.0, 3e-40])
    found = reference(parse(text, opset=26), {"x": x})
    np.testing.assert_array_equal(found["i"], x.view(np.int32))
    np.testing.assert_array_equal(found["y"], x)


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [-1, 1, 7])
def test_labels_that_are_ignored(op: str, reduction: str, ignored: int) -> None:
    labels = np.array([[ignored, 0], [2, 1]])
    for weights in ("", ", w"):
        agrees(
            f"""g (float[2,3,2] x, int64[2,2] t, float[3] w) => (float{"[2,2]" if reduction == "none" else ""} y) {{
              y = {op} <ignore_index = {ignored}, reduction = "{reduction}"> (x, t{weights}) }}""",
            t=labels,
        )


@pytest.mark.parametrize("apart", [40.0, 1000.0])
def test_the_logarithm_of_a_probability_of_0_or_1(apart: float) -> None:
    """The logarithms keep their digits, and the loss of the other label is finite."""
    model = parse("""g (double[N,2] x, int64[N] t) => (double[N] l, double[N,2] p, double[N,2] q) {
        l, p = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t) q = LogSoftmax <axis = 1> (x) }""")
    found = reference(model, {"x": np.array([[apart, 0], [0, apart]]), "t": np.array([0, 0])})
    exact = np.array([-np.log1p(np.exp(-apart)), -apart - np.log1p(np.exp(-apart))])
    np.testing.assert_array_equal(found["p"], [exact, exact[::-1]])
    np.testing.assert_array_equal(found["q"], found["p"])
    np.testing.assert_array_equal(found["l"], -exact)


def test_infinite_scores_are_nan() -> None:
    model = parse("g (float[3,2] x) => (float[3,2] y) { y = LogSoftmax (x) }")
    x = np.float32([[np.inf, 0], [-np.inf, -np.inf], [np.nan, 0]])
    for found in (run(model, {"x": x}), reference(model, {"x": x})):
        assert np.isnan(found["y"]).all()


@pytest.mark.parametrize("axis", [-2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (2, 1, 3)])
def test_flatten_and_products_without_elements(shape: tuple[int, ...], axis: int) -> None:
    sizes, last = ",".join(map(str, shape)), shape[-1]
    agrees(f"g (float[{sizes}] x) => (float[A,B] y) {{ y = Flatten <axis = {axis}> (x) }}")
    agrees(f"g (float[{sizes}] x, float[{last},2] w) => (float[A,B,C] y) {{ y = MatMul (x, w) }}")


STFT_TEXT = "g (float[B,64{more}] x) => (float[B,F,K,2] y) <int64 step = {{5}}, int64 len = {{16}}, float[{w}] w = {{{ones}}}> {{ y = STFT <onesided = {half}> (x, step, {window}, {length}) }}"


@pytest.mark.parametrize(("more", "half"), [("", 1), ("", 0), (",1", 1), (",2", 0)])
@pytest.mark.parametrize(
    ("window", "length", "w"), [("", "len", 1), ("w", "", 16), ("w", "len", 16)]
)
def test_stft_of_a_signal_of_two_or_three_axes(
    more: str, half: int, window: str, length: str, w: int
) -> None:
    ones = ", ".join(str(1 + i % 3) for i in range(w))
    agrees(STFT_TEXT.format(more=more, half=half, window=window, length=length, w=w, ones=ones))


@pytest.mark.parametrize("roi", ["float[2] roi = {0, 0}", "float[0] roi = {}"])
def test_the_roi_of_a_resize_that_does_not_crop_is_not_read(roi: str) -> None:
    text = f'g (float[1,2,4,4] x) => (float[1,2,8,8] y) <{roi}, float[4] s = {{1,1,2,2}}> {{ y = Resize <mode = "linear"> (x, roi, s) }}'
    agrees(text, opset=11)


@pytest.mark.parametrize("case", [0, 1])
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("shape", ["N", "1,N"])
def test_stopwords_are_left_out_as_onnxruntime_does(case: int, action: str, shape: str) -> None:
    text = f"""g (string[{shape}] s) => (string[{shape.replace("N", "M")}] t) {{ t = StringNormalizer
        <case_change_action = "{action}", is_case_sensitive = {case}, stopwords = ["alpha", "Beta"], locale = "C"> (s) }}"""
    for words in (["alpha", "BETA", "Beta", "", "gamma"], ["alpha", "Beta"]):
        rows = np.array(words, object).reshape([-1] if shape == "N" else [1, -1])
        model = parse(text)
        wanted, got = run(model, {"s": rows})["t"], reference(model, {"s": rows})["t"]
        assert isinstance(wanted, np.ndarray) and np.array_equal(wanted, got)
