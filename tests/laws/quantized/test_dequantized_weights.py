"""Files as onnxruntime.quantization writes them, one operator each: `legalize` in both forms within one quantum of
onnxruntime's run, and `grad --ste` reaches each weight of the float graph that the file was made from.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.helpers import MODELS_DIR, parse, stored_arrays
from tests.rewriting import apply, model_of

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def image(
    nodes: str, opset: int = 17, result: str = "N,C,H,W", inputs: str = "", **more: Any
) -> ModelProto:
    text = f"g (float[2,3,8,8] x{inputs}) => (float[{result}] y) {{ c = Conv <pads = [1,1,1,1]> (x, w, b) {nodes} }}"
    return model(text, opset, w=normal(4, 3, 3, 3), b=normal(4), **more)


def rows(nodes: str, **more: Any) -> ModelProto:
    return model(
        f"g (float[4,8] x) => (float[N,K] y) {{ c = MatMul (x, w) {nodes} }}",
        w=normal(8, 6),
        **more,
    )


def model(text: str, opset: int = 17, **constants: Any) -> ModelProto:
    made = model_of(text, constants, opset=opset, ir_version=8)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


MICROSOFT = "g (float[2,5,8] x{}) => (float[2,5,8] y) {{ y = com.microsoft.Attention <num_heads = 2{}> (x, w, b{}) }}"
PADS, SCALES = np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.array([1, 1, 2, 2], np.float32)
CASES = {
    "Conv": image("y = Identity (c)"),
    "MatMul": rows("y = Identity (c)"),
    "Gemm": model("g (float[4,8] x) => (float[N,K] y) { y = Gemm (x, w, b) }", w=normal(8, 6), b=normal(6)),
    "Gemm transposed": model("g (float[4,8] x) => (float[N,K] y) { y = Gemm <transB = 1> (x, w, b) }", w=normal(6, 8), b=normal(6)),
    "Add": image("d = Conv (x, v) y = Add (c, d)", v=normal(4, 3, 1, 1)),
    "Mul": image("d = Conv (x, v) y = Mul (c, d)", v=normal(4, 3, 1, 1)),
    "Relu": image("r = Relu (c) y = Conv (r, v)", v=normal(2, 4, 1, 1)),
    "Clip": image("y = Clip (c, low, high)", low=np.float32(-0.5), high=np.float32(0.5)),
    "LeakyRelu": image("y = LeakyRelu <alpha = 0.2> (c)"),
    "Sigmoid": image("y = Sigmoid (c)"),
    "MaxPool": image("y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)"),
    "GlobalAveragePool": image("y = GlobalAveragePool (c)"),
    "AveragePool": image("y = AveragePool <kernel_shape = [2,2], strides = [2,2], pads = [1,1,0,0]> (c)"),
    "AveragePool ceil": image("y = AveragePool <kernel_shape = [3,3], strides = [2,2], ceil_mode = 1, "
                              "count_include_pad = 1, pads = [1,1,1,1]> (c)"),
    "Split": image("p, q = Split <axis = 1> (c, s) y = Mul (p, q)", s=np.array([2, 2])),
    "Pad": image("y = Pad (c, p)", p=PADS),
    "Pad with a value": image("y = Pad (c, p, v)", p=PADS, v=np.float32(0.3)),
    "Pad reflect": image('y = Pad <mode = "reflect"> (c, p)', p=PADS),
    "Reshape": image("y = Reshape (c, s)", result="N,K", s=np.array([2, -1])),
    "Flatten": image("y = Flatten (c)", result="N,K"),
    "Squeeze": image("p = GlobalAveragePool (c) y = Squeeze (p, s)", result="N,K", s=np.array([2, 3])),
    "Unsqueeze": image("y = Unsqueeze (c, s)", result="N,C,H,W,Z", s=np.array([4])),
    "Transpose": image("y = Transpose <perm = [0,2,3,1]> (c)"),
    "Resize nearest": image('y = Resize <mode = "nearest"> (c, , s)', s=SCALES),
    "Resize linear": image('y = Resize <mode = "linear"> (c, , s)', s=SCALES),
    "Concat": image("d = Conv (x, v) y = Concat <axis = 1> (c, d)", v=normal(4, 3, 1, 1)),
    "Softmax": rows("y = Softmax <axis = -1> (c)"),
    "Softmax axis 1": image("y = Softmax <axis = 1> (c)"),
    "Softmax of opset 11": image("y = Softmax <axis = 1> (c)", opset=11),
    "Where": image("d = Conv (x, v) y = Where (k, c, d)", inputs=", bool[2,1,8,8] k", v=normal(4, 3, 1, 1)),
    "Gather": model("g (int64[4] i) => (float[N,K] y) { e = Gather (t, i) y = MatMul (e, w) }", t=normal(3, 8), w=normal(8, 6)),
    "EmbedLayerNormalization": model(
        "g (int32[2,5] i, int32[2,5] s) => (float[2,5,8] y, int32[2] m) "
        "{ y, m = com.microsoft.EmbedLayerNormalization <epsilon = 1e-5> (i, s, t, p, q, gamma, beta) }",
        t=normal(20, 8), p=normal(6, 8), q=normal(3, 8), gamma=normal(8) + 1, beta=normal(8)),
    "Attention": model(MICROSOFT.format("", "", ""), w=normal(8, 24), b=normal(24)),
    "Attention with a mask": model(MICROSOFT.format(", int32[2,5] k", "", ", k"), w=normal(8, 24), b=normal(24)),
    "Attention causal": model(MICROSOFT.format("", ", unidirectional = 1", ""), w=normal(8, 24), b=normal(24)),
}  # fmt: skip
MODES = ("static u8 s8", "static s8 s8", "static u8 u8", "static u8 s8 channels",
         "dynamic s8", "dynamic u8", "dynamic s8 channels")  # fmt: skip
QUICK = {("Conv", MODES[0]), ("Gemm", MODES[0]), ("Pad with a value", MODES[0]), ("Split", MODES[0]),
         ("AveragePool ceil", MODES[0]), ("Where", MODES[0]), ("Gather", "dynamic s8"), ("Conv", "dynamic s8"),
         ("EmbedLayerNormalization", "dynamic u8"), ("Attention with a mask", "dynamic u8")}  # fmt: skip


def feeds_of(model: ModelProto) -> Arrays:
    rng, found = np.random.default_rng(7), dict[str, Any]()
    for v in model.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        values = rng.integers(0, 3 if kind != np.bool_ else 2, shape)
        found[v.name] = (rng.standard_normal(shape) if kind.kind == "f" else values).astype(kind)
    return found


def quantised(model: ModelProto, mode: str, feeds: Arrays) -> ModelProto:
    """As onnxruntime.quantization writes it in the QOperator format, calibrated on these inputs and on larger ones, so
    that little is clipped.
    """
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        left: Iterator[Arrays] = iter(())

        def get_next(self) -> Arrays | None:
            return next(self.left, None)

    kind, *types = mode.split()
    of = {"s8": q.QuantType.QInt8, "u8": q.QuantType.QUInt8}
    more: Arrays = {"per_channel": "channels" in types}
    types = [t for t in types if t in of]
    logging.disable(logging.WARNING)  # advice to pre-process, and about speed
    try:
        with tempfile.TemporaryDirectory() as folder:
            given, made = f"{folder}/given.onnx", f"{folder}/made.onnx"
            onnx.save(copy.deepcopy(model), given)
            if kind == "dynamic":
                q.quantize_dynamic(given, made, weight_type=of[types[0]], **more)
            else:
                reader = Reader()
                larger = {
                    n: v * np.float32(1.25) if v.dtype.kind == "f" else v for n, v in feeds.items()
                }
                reader.left = iter([feeds, larger])
                q.quantize_static(
                    given, made, reader, quant_format=q.QuantFormat.QOperator, activation_type=of[types[0]],
                    weight_type=of[types[1]], extra_options={"ForceQuantizeNoInputCheck": True}, **more,
                )  # fmt: skip
            return onnx.load(made)
    finally:
        logging.disable(logging.NOTSET)


def quanta(model: ModelProto, want: Arrays, got: Arrays) -> dict[str, float]:
    """How far each result is off: in quanta where it was dequantised, else of its largest value."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    last = {n.output[0]: n for n in model.graph.node if n.op_type == "DequantizeLinear"}
    found = {}
    for name, value in want.items():
        unit = (
            float(np.max(constants[last[name].input[1]]))
            if name in last
            else 1e-4 * float(np.abs(value).max() + 1e-9)
        )
        assert got[name].shape == value.shape and got[name].dtype == value.dtype
        found[name] = float(np.abs(value.astype(np.float64) - got[name]).max()) / unit
    return found


def in_integers(node: onnx.NodeProto, form: str) -> bool:
    ours = node.op_type.startswith("Q") and node.domain == "com.microsoft"
    return (
        ours
        or "Integer" in node.op_type
        or "QLinear" in node.op_type
        or (form == "float" and "uantize" in node.op_type)
    )


class Smooth:
    """The graph that straight-through differentiates, in float64, at one input: each pair of QuantizeLinear and
    DequantizeLinear is `inside * x + s * ((q - z) - inside * x0 / s0)`, each kink the line of the piece that the float
    run takes, the first of equal maxima. Where nothing else jumps, central differences are its gradient.
    """

    def __init__(self, legal: ModelProto, feeds: Arrays) -> None:
        known = {t.name: numpy_helper.to_array(t) for t in legal.graph.initializer}
        traced = copy.deepcopy(legal)
        del traced.graph.output[:]
        names = [n for node in legal.graph.node for n in node.output if n]
        traced.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
        self.at: Arrays = {**known, **feeds, **run(traced, feeds, optimize=False)}
        self.constants: Arrays = {}
        makers = {out: n for n in legal.graph.node for out in n.output}
        nodes = [made for n in legal.graph.node for made in self._smooth(n, makers)]
        self.constants |= {n: v for n, v in known.items() if n not in self.constants}
        self.constants |= feeds
        self.nodes, self.opsets = nodes, legal.opset_import

    def _smooth(self, node: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> list[Any]:
        out = node.output[0]
        if node.op_type == "DequantizeLinear" and node.input[0] not in makers:
            self.constants[out] = self.at[out]
            return []
        if node.op_type == "DequantizeLinear":
            return [helper.make_node("Identity", node.input[:1], [out])]
        if (
            node.op_type == "QuantizeLinear"
        ):  # its result stands for the floats, also where it is moved
            name, scale, *zero = node.input
            x, s, q = (self.at[n] for n in (name, scale, out))
            z = float(self.at[zero[0]]) if zero else 0.0
            steps, limits = np.round(x / s) + z, np.iinfo(q.dtype)
            inside = ((steps >= limits.min) & (steps <= limits.max)).astype(float)
            at_s = q.astype(float) - z - inside * x.astype(float) / float(s)
            self.constants |= {f"{out}|inside": inside, f"{out}|s": at_s}
            return [
                helper.make_node("Mul", [name, f"{out}|inside"], [f"{out}|x"]),
                helper.make_node("Mul", [scale, f"{out}|s"], [f"{out}|step"]),
                helper.make_node("Add", [f"{out}|x", f"{out}|step"], [out]),
            ]
        if node.op_type == "Pad" and node.input[2:] and node.input[0] in makers:
            quantise = makers[node.input[0]]
            if quantise.op_type == "QuantizeLinear":
                _, s, z = (self.at[n].astype(float) for n in quantise.input)
                self.constants[node.input[2]] = (self.at[node.input[2]] - z) * s
        if node.op_type in ("Relu", "LeakyRelu", "Clip"):
            x, y = (self.at[n] for n in (node.input[0], out))
            outside = node.attribute[0].f if node.op_type == "LeakyRelu" else 0.0
            slope = np.where((x > 0) if node.op_type != "Clip" else (x == y), 1, outside)
            self.constants |= {f"{out}|slope": slope, f"{out}|rest": y - slope * x}
            return [
                helper.make_node("Mul", [node.input[0], f"{out}|slope"], [f"{out}|x"]),
                helper.make_node("Add", [f"{out}|x", f"{out}|rest"], [out]),
            ]
        if node.op_type == "MaxPool":  # of 2 by 2
            n, c, h, w = self.at[node.input[0]].shape
            index = np.arange(n * c * h * w).reshape(n, c, h, w)
            x, index = (
                v.reshape(n, c, h // 2, 2, w // 2, 2)
                .swapaxes(3, 4)
                .reshape(n, c, h // 2, w // 2, 4)
                for v in (self.at[node.input[0]], index)
            )
            first = np.take_along_axis(index, x.argmax(-1)[..., None], -1)[..., 0]
            self.constants |= {f"{out}|first": first, f"{out}|flat": np.array([-1])}
            return [
                helper.make_node("Reshape", [node.input[0], f"{out}|flat"], [f"{out}|row"]),
                helper.make_node("Gather", [f"{out}|row", f"{out}|first"], [out]),
            ]
        return [node]

    def value(self, name: str, moved: Any, seed: Any) -> float:
        """<y, seed> where the value of this name is another one."""
        values = {
            n: v.astype(float) if v.dtype == np.float32 else v
            for n, v in {**self.constants, name: moved}.items()
        }
        graph = helper.make_graph(
            self.nodes, "smooth", [], [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=self.opsets, ir_version=8)
        y = reference(model, {})["y"]
        assert y.dtype == np.float64
        return float(np.sum(y * seed.astype(float)))

    def check(self, name: str, gradient: Any, seed: Any) -> None:
        """The gradient along some directions, of which each has all elements."""
        rng, at = np.random.default_rng(5), self.at[name].astype(float)
        for _ in range(3):
            d = rng.standard_normal(at.shape)
            high, low = (self.value(name, at + h * d, seed) for h in (1e-5, -1e-5))
            off = abs((high - low) / 2e-5 - float(np.sum(gradient.astype(float) * d)))
            size = float(np.linalg.norm(gradient)) + 1e-6
            assert off < 2e-6 * size * np.sqrt(at.size), (name, off / size)


PAIRS = [
    pytest.param(name, mode, marks=[] if (name, mode) in QUICK else [pytest.mark.slow])
    for name in CASES
    for mode in MODES
    if mode.startswith("static")
    or (name, mode) in QUICK
    or "Attention" not in name
    or "channels" not in mode
]


@pytest.mark.parametrize(("name", "mode"), PAIRS)
@pytest.mark.exact8
def test_as_onnxruntime_quantises(name: str, mode: str) -> None:
    given = CASES[name]
    feeds = feeds_of(given)
    model = quantised(given, mode, feeds)
    if "opset 11" in name and mode == "static u8 s8 channels":  # DequantizeLinear has no axis there
        assert "opset 13" in apply(model, "legalize").declined
        return
    want = run(model, feeds, optimize=False)
    for form in ("float", "qdq"):
        legal = onnxgrad.optimize(model, passes=[f"legalize{{to={form}}}"], verify=False)
        assert not [n.op_type for n in legal.graph.node if in_integers(n, form)]
        off = quanta(model, want, run(legal, feeds, optimize=False))
        assert max(off.values()) < 1.001, off
    seed = {"y_grad": np.random.default_rng(3).standard_normal(want["y"].shape).astype(np.float32)}
    # optimised, onnxruntime would run the products in integers again
    graph = onnxgrad.gradient(legal, "params", "y", adjoint="input", ste=True)
    found = run(graph, {**feeds, **seed}, optimize=False)
    smooth = Smooth(legal, feeds)
    for weight in (t.name for t in given.graph.initializer if t.data_type == TensorProto.FLOAT):
        names = (f"{weight}_dequantized", weight, f"{weight}_Transposed_dequantized")
        at = next((n for n in names if f"{n}_grad" in found), None)
        if at is None:  # a bound, a padding value in integers, or factors of a size
            assert name.split()[0] in ("Clip", "Pad", "Resize") and weight != "w", weight
            continue
        smooth.check(at, found[f"{at}_grad"], seed["y_grad"])


def test_the_chain_of_dynamic_quantisation(golden: Any) -> None:
    feeds = feeds_of(CASES["MatMul"])
    model = quantised(CASES["MatMul"], "dynamic s8 channels", feeds)
    golden("legalize_dynamic", apply(model, "legalize").text)


CHAIN = """g (uint8[3,8] a, float s) => (float[3,4] y) {
    p = MatMulInteger (a, w, z) f = Cast <to = 1> (p) y = Mul (f, s) }"""


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (CHAIN.replace("float s)", "float t, float[4] v)").replace("f = Cast", "s = Mul (t, v) f = Cast"), True),
        (CHAIN, False),  # no product: by which scale `a` was rounded is unknown
        (CHAIN.replace("to = 1", "to = 11").replace("float s", "double s").replace("(float[3", "(double[3"), False),
        (CHAIN.replace("(float[3,4] y)", "(float[3,4] y, int32[3,4] p)"), False),  # the integers are read
        (CHAIN.replace("float s)", "float[3,1] t, float v)").replace("f = Cast", "s = Mul (t, v) f = Cast"), False),
    ],
)  # fmt: skip
def test_when_the_chain_is_a_product_of_floats(text: str, chain: bool) -> None:
    w = RNG.integers(-9, 9, (8, 4)).astype(np.int8)
    model = model_of(text, {"w": w, "z": np.uint8(3)})
    done = apply(model, "legalize")
    ops = [b.op for b in done.program.main.bindings]
    assert ("DequantizeLinear" in ops) == chain and "MatMulInteger" not in ops
    feeds = {v.name: np.ones([d.dim_value for d in v.type.tensor_type.shape.dim],
             helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)) * 2 for v in model.graph.input}  # fmt: skip
    before, after = (run(m, feeds, optimize=False) for m in (done.before, done.after))
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)


def test_a_table_that_is_no_constant_or_has_a_scale_for_each_row_stays() -> None:
    text = "g (uint8[6,4] t, int64[3] i, float s) => (float[3,4] y) { r = Gather (t, i) y = DequantizeLinear (r, s) }"
    assert not apply(parse(text), "legalize").trace.rewrites
    text = "g (int64[3] i) => (float[3,4] y) { r = Gather (t, i) y = DequantizeLinear <axis = 0> (r, s) }"
    model = model_of(text, {"t": np.zeros((6, 4), np.uint8), "s": np.ones(3, np.float32)})
    assert not apply(model, "legalize").trace.rewrites


REAL = {"resnet18": ("resnet18.onnx", "static u8 s8"), "googlenet": ("googlenet.onnx", "static u8 s8 channels"),
        "bert": ("bert_script.onnx", "dynamic s8")}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str) -> None:
    """Every weight of a quantised file has a gradient, and the integers have gone."""
    file, mode = REAL[name]
    # folded, because onnxruntime.quantization quantises no product with a weight that is transposed in the graph
    given = onnxgrad.optimize(onnx.load(Path(MODELS_DIR) / file), verify=False)
    data = stored_arrays((Path(MODELS_DIR) / file).with_suffix(".npz"))
    feeds = {n[3:]: data[n] for n in data if n.startswith("in:")}
    model = quantised(given, mode, feeds)
    done = onnxgrad.optimize(model, passes=["legalize"], verify=False)
    assert not [n.op_type for n in done.graph.node if in_integers(n, "qdq")]
    (out,) = (o.name for o in given.graph.output[:1])
    want, got = run(model, feeds, optimize=False)[out], run(done, feeds, optimize=False)[out]
    assert float(np.abs(want - got).max()) < 0.1 * float(np.abs(want).max())
    graph = onnxgrad.gradient(done, "params", out, adjoint="input", ste=True)
    found = run(graph, {**feeds, f"{out}_grad": np.ones(want.shape, np.float32)})
    weights = [n.input[0] for n in done.graph.node if n.output[0].endswith("_dequantized")]
    reached = [n for n in found if n.endswith("_dequantized_grad") and np.count_nonzero(found[n])]
    assert len(reached) >= 0.95 * len(weights) > 10
