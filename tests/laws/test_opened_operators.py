"""onnxgrad/laws/opened_operators.py: an operator that the older opset lacks, as its body: what stands there, and right in float32 and float16."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.passes.convert_opset import ConvertOpset, convert
from onnxgrad.verify import verify
from onnxgrad.verify.running.session import run
from tests.helpers import onnxruntime_version
from tests.rewriting import Done, apply, model_of

# (opset, older opset, a graph, the operators that stand there)
OPENED = {
    "LayerNormalization": (17, 9, "g (float[2,S,4] x) => (float[2,S,4] y) <float[4] s = {1, 2, 3, 4}> { y = LayerNormalization (x, s) }",
        "ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul"),
    "LayerNormalization with all results": (17, 13, "g (float[2,S,4] x) => (float[2,S,4] y, float[2,1,1] m, float[2,1,1] d) <float[4] s = {1, 2, 3, 4}> { y, m, d = LayerNormalization <axis = 1> (x, s, s) }",
        "ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul Add Reciprocal"),
    "Gelu": (20, 13, "g (float[2,S] x) => (float[2,S] y) { y = Gelu (x) }", "Div Erf Sum Mul Mul"),
    "Gelu by tanh": (20, 13, 'g (float[2,S] x) => (float[2,S] y) { y = Gelu <approximate = "tanh"> (x) }', "Pow Mul Sum Mul Tanh Sum Mul Mul"),
    "GroupNormalization": (21, 16, "g (float[2,4,6] x) => (float[2,4,6] y) <float[4] s = {1, 2, 3, 4}> { y = GroupNormalization <num_groups = 2> (x, s, s) }",
        "Reshape InstanceNormalization Reshape Unsqueeze Unsqueeze Mul Add"),
    "GroupNormalization with a scale of each group": (18, 13, "g (float[N,4,H] x) => (float[N,4,H] y) <float[2] s = {1, 2}> { y = GroupNormalization <num_groups = 2> (x, s, s) }",
        "Reshape InstanceNormalization Shape Unsqueeze Unsqueeze Mul Add Reshape"),
    "GroupNormalization of no plane": (21, 16, "g (float[N,4] x) => (float[N,4] y) <float[4] s = {1, 2, 3, 4}> { y = GroupNormalization <num_groups = 2> (x, s, s) }",
        "Reshape InstanceNormalization Shape Reshape Mul Add"),
    "HardSwish": (14, 13, "g (float[2,S] x) => (float[2,S] y) { y = HardSwish (x) }", "HardSigmoid Mul"),
    "Mish": (22, 16, "g (float[2,S] x) => (float[2,S] y) { y = Mish (x) }", "Softplus Tanh Mul"),
    "Swish": (24, 13, "g (float[2,S] x) => (float[2,S] y) { y = Swish <alpha = 0.5> (x) }", "Mul Sigmoid Mul"),
    "RMSNormalization": (23, 13, "g (float[2,S,4] x) => (float[2,S,4] y) <float[4] s = {1, 2, 3, 4}> { y = RMSNormalization (x, s) }",
        "Mul ReduceMean Add Sqrt Div Mul"),
    "Trilu": (14, 13, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Trilu (x) }", "Where"),
    "Trilu of booleans": (14, 13, "g (bool[2,3,4] x) => (bool[2,3,4] y) { y = Trilu (x) }", "And"),
    "Trilu at any size": (14, 13, "g (float[2,S,T] x, int64 k) => (float[2,S,T] y) { y = Trilu <upper = 0> (x, k) }",
        "Shape Gather Range Shape Gather Range Unsqueeze Add Greater Where"),
    "Softmax over another axis": (13, 12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Softmax <axis = 1> (x) }", "ReduceMax Sub Exp ReduceSum Div"),
    "axes at run time": (18, 13, "g (float[2,S,3] x, int64[1] a) => (float[A,B,C] y) { y = ReduceL1 (x, a) }", "Abs ReduceSum"),
}  # fmt: skip


def opened(text: str, opset: int, to: int) -> Done:
    done = apply(model_of(text, opset=opset, ir_version=10), ConvertOpset(to=to))
    onnx.checker.check_model(done.after, full_check=True)
    return done


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("opset", "to", "text", "operators"), OPENED.values(), ids=OPENED)
def test_opened(opset: int, to: int, text: str, operators: str, half: bool) -> None:
    done = opened(
        text.replace("float[", "float16[").replace("float16[2,1,1]", "float[2,1,1]")
        if half
        else text,
        opset,
        to,
    )
    if not half:
        assert " ".join(b.op for b in done.block.bindings) == operators
    assert done.program.opset == to and done.block.outputs[0].name == "y"
    done.prove(allow_empty=["y"], inputs=[{"a": np.array([2])}] if "int64[1] a" in text else None)


ATTENTION = {
    "": "y = Attention (q, k, k)",
    "softcap": "y = Attention <softcap = 2.0> (q, k, k)",
    "softcap and mask": "y = Attention <softcap = 2.0> (q, k, k, m)",
    "causal": "y = Attention <is_causal = 1> (q, k, k)",
    "truth values": "n = Greater (m, z) y = Attention (q, k, k, n)",
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("opset", "to"), [(23, 16), (24, 13)])
@pytest.mark.parametrize("nodes", ATTENTION.values(), ids=ATTENTION)
def test_attention(nodes: str, opset: int, to: int, half: bool) -> None:
    if onnxruntime_version() < (1, 24):
        pytest.skip("its onnxruntime has no Attention of 24")
    text = f"""g (float[2,4,3,8] q, float[2,4,5,8] k, float[3,5] m) => (float[2,4,3,8] y)
        <float z = {{0}}> {{ {nodes} }}"""
    if half:
        text = text.replace("float", "float16")
    done = opened(text, opset, to)
    assert "Attention" not in [b.op for b in done.block.bindings]
    done.prove()


def test_a_normalization_far_from_zero_and_of_nothing() -> None:
    """mean(x^2) - mean(x)^2, as the schema's body has it, would be off by more than a tenth."""
    text = "g (float[2,S,4] x) => (float[2,S,4] y) <float[4] s = {1, 2, 3, 4}> { y = LayerNormalization (x, s) }"
    done = opened(text, 17, 13)
    x = (1000 + np.arange(24, dtype=np.float32).reshape(2, 3, 4) ** 2 % 7).astype(np.float32)
    for given in (x, x[:, :0]):
        want, got = (run(m, {"x": given})["y"] for m in (done.before, done.after))
        np.testing.assert_allclose(got, want, atol=1e-3)


FAR = {  # the normalisation, its opset, the axes of x as (2, groups, rest) that it is over
    "LayerNormalization": ("y = LayerNormalization <axis = 2> (x, r)", 17, (2,)),
    "GroupNormalization": ("y = GroupNormalization <num_groups = 3> (x, c, z)", 21, (2,)),
    "RMSNormalization": ("y = RMSNormalization <axis = 2> (x, r)", 23, None),
}


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e4, 1), (1e3, 1e-2), (0, 1e-4), (5, 0)])
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize("name", FAR)
def test_digits_far_from_zero(name: str, dtype: str, mean: float, deviation: float) -> None:
    """In float64, as exact arithmetic has it: a mean of m deviations costs m rounding errors, not m^2 as in the schema's bodies of the first two."""
    node, opset, axes = FAR[name]
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    constants = {"r": np.ones(5, kind), "c": np.ones(3, kind), "z": np.zeros(3, kind)}
    text = f"g ({dtype}[2,3,5] x) => ({dtype}[2,3,5] y) {{ {node} }}"
    used = {
        n: v for n, v in constants.items() if f" {n}" in node.partition("(")[2].replace("(", " ")
    }
    model = apply(model_of(text, used, opset=opset, ir_version=10), ConvertOpset(to=16)).after
    x = (mean + deviation * np.random.default_rng(0).standard_normal((2, 3, 5))).astype(kind)
    wide = x.astype(np.float64)
    rest = wide if axes is None else wide - wide.mean(axes, keepdims=True)
    want = rest / np.sqrt((rest * rest).mean(2, keepdims=True) + np.float64(np.float32(1e-5)))
    got = run(model, {"x": x})["y"]
    # x - mean is computed in float32 at least, its result rounded to x's dtype
    unit = np.finfo(np.float64 if dtype == "double" else np.float32).eps
    lost = 0 if axes is None else 8 * unit * abs(wide).max() / max(rest.std(), 3e-3)
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(kind).eps, atol=lost + 1e-12)


def test_weights_stay() -> None:
    """A constant computed from the scale would ignore new values of the scale."""
    text = "g (float[2,4,6] x) => (float[2,4,6] y) <float[4] s = {1, 2, 3, 4}> { y = GroupNormalization <num_groups = 2> (x, s, s) }"
    done = opened(text, 21, 16)
    assert done.block.initializers["s"].use_count


def test_only_where_the_opset_lacks_it() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) <float[4] s = {1, 2, 3, 4}> { n = LayerNormalization (x, s) y = Gelu (n) }"
    done = opened(text, 20, 17)
    ops = [b.op for b in done.block.bindings]
    assert ops[0] == "LayerNormalization" and "Gelu" not in ops
    assert [r.where for r in done.trace.rewrites] == ["opset 20 -> 17; opened 1 Gelu"]
    done.prove()


def test_metadata_and_origin_go_to_each_operator() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Mish (x) }", opset=18)
    model.graph.node[0].metadata_props.add(key="namespace", value="encoder")
    after = apply(model, ConvertOpset(to=17)).after
    kept = [{e.key: e.value for e in n.metadata_props} for n in after.graph.node]
    assert kept == [{"namespace": "encoder", "onnxgrad.made_by": "convert-opset"}] * 3


def test_in_nested_graphs_and_functions() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
        m (float[4,3] x, bool c) => (float[4,3] y) {
            y = If (c) <then_branch = t () => (float[4,3] p) { p = my.f (x) },
                else_branch = e () => (float[4,3] q) { q = Mish (x) }> }
        <domain: "my", opset_import: ["" : 18]> f (v) => (w) { w = Mish (v) }"""
    )
    done = apply(model, ConvertOpset(to=13))
    assert not {b.op for block in done.program.blocks() for b in block.walk()} & {"Mish"}
    done.prove()


@pytest.mark.parametrize(
    ("opset", "to", "text", "reason"),
    [
        (15, 14, "g (float[2] x) => (float[2] y) { y = Bernoulli (x) }", "draws other random numbers"),
        (20, 17, "g (float[1,2,3] t, int64[4] n) => (float[A,B,C,D] y) { y = AffineGrid (t, n) }", "parts are not known"),
        (14, 13, "g (string[2,2] x) => (string[2,2] y) { y = Trilu (x) }", "a string tensor"),
        (20, 8, "g (float[S,S] x) => (float[S,S] y) { y = Trilu (x) }", "Where(greater"),
    ],
)  # fmt: skip
def test_refused(opset: int, to: int, text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(load(model_of(text, opset=opset, ir_version=8)), to)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_an_attribute_that_calls_give_is_refused() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 24, "my" : 1]>
        m (float[4,3] x) => (float[4,3] y) { y = my.f <a = 0.5> (x) }
        <domain: "my", opset_import: ["" : 24]> f <a> (v) => (w) { w = Swish <alpha: float = @a> (v) }"""
    )
    with pytest.raises(InputError, match="given by calls: inline the function first"):
        convert(load(model), 23)


def test_an_unknown_type_is_refused() -> None:
    """The body of CastLike is a Cast to the dtype of its operand, which a function does not know."""
    model = model_of("g (float[2] x) => (float[2] y) { y = Identity (x) }", opset=15)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Unknown", ["x"], ["u"], domain="other"))
    model.graph.node.append(helper.make_node("CastLike", ["x", "u"], ["y"]))
    model.opset_import.add(domain="other", version=1)
    with pytest.raises(InputError, match="needs its operands' types, which are not known"):
        convert(load(model), 14)


def test_there_and_back() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) <float[4] s = {1, 2, 3, 4}> { y = RMSNormalization (x, s) }"
    before = model_of(text, opset=23, ir_version=10)
    down = apply(before, ConvertOpset(to=16)).after
    assert verify(before, apply(down, ConvertOpset(to=23)).after, seeds=(0,), weights="rounded").ok
