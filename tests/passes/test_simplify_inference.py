from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.rewriting import apply, model_of, rewritten, weights

STATISTICS = {"gamma": (10,), "beta": (10,), "mean": (10,), "var": (10,)}


def batch_norm(
    shape: str = "1,10", *, opset: int = 20, attrs: str = "", outs: str = "y", more: str = ""
) -> ModelProto:
    call = f"BatchNormalization{attrs}(x, gamma, beta, mean, var)"
    text = f"g (float[{shape}] x) => (float[{shape}] y{more}) {{ {outs} = {call} }}"
    return model_of(text, weights(STATISTICS, positive="var"), opset=opset, ir_version=8)


def test_the_example_of_the_specification(golden: Callable[[str, str], None]) -> None:
    model = parse(
        "g (float[1,10] x) => (float[1,10] y) { b = BatchNormalization(x, gamma, beta, mean, var)  y, m = Dropout(b) }"
    )
    done = apply(model_of(model, weights(STATISTICS, positive="var")), "simplify-inference")
    assert done.ops == ["Add", "Sqrt", "Div", "Mul", "Neg", "Mul", "Mul", "Add", "Add"]
    golden("simplify_inference", done.text)
    done.prove()


@pytest.mark.parametrize(
    ("gamma", "beta", "kept"),
    [
        (1, 0, ["Add", "Sqrt", "Div", "Neg", "Mul", "Mul", "Add"]),
        (1, 2, ["Add", "Sqrt", "Div", "Mul", "Neg", "Mul", "Add", "Add"]),
        (2, 0, ["Add", "Sqrt", "Div", "Mul", "Mul", "Neg", "Mul", "Add"]),
        (0, 1, ["Add", "Sqrt", "Div", "Mul", "Neg", "Mul", "Mul", "Add", "Add"]),
    ],
)
def test_a_scale_of_ones_and_a_bias_of_zeros_cost_nothing(
    gamma: int, beta: int, kept: list[str]
) -> None:
    """SPEC, added after a second reading, S4."""
    model = batch_norm()
    for name, value in {"gamma": gamma, "beta": beta}.items():
        found = next(t for t in model.graph.initializer if t.name == name)
        found.CopyFrom(numpy_helper.from_array(np.full(10, value, np.float32), name))
    done = apply(model, "simplify-inference,remove-unused")
    assert sorted(done.ops) == sorted(kept)
    done.prove()


@pytest.mark.parametrize("shape", ["2,10", "2,10,5", "2,10,5,6", "2,10,3,4,5"])
@pytest.mark.parametrize("opset", [7, 9, 14, 15, 20])
def test_vectors_line_up_with_the_channels(shape: str, opset: int) -> None:
    done = apply(batch_norm(shape, opset=opset), "simplify-inference,fold-constant,remove-unused")
    assert done.ops == ["Mul", "Add"]
    done.prove()


def test_symbolic_sizes() -> None:
    done = apply(batch_norm("N,10,H,W"), "simplify-inference")
    assert "BatchNormalization" not in done.counts
    done.prove()


def test_statistics_that_are_graph_inputs() -> None:
    text = """g (float[2,3,4] x, float[3] gamma, float[3] beta, float[3] mean) => (float[2,3,4] y)
      <float[3] var = {1.0, 0.5, 2.0}> { y = BatchNormalization <epsilon = 0.01> (x, gamma, beta, mean, var) }"""
    done = apply(parse(text), "simplify-inference")
    assert done.counts["BatchNormalization"] == 0
    done.prove()


def test_one_statistic_per_feature_before_opset_9() -> None:
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { y = BatchNormalization <spatial = 0> (x, gamma, beta, mean, var) }"
    sizes = dict.fromkeys(STATISTICS, (3, 4))
    done = apply(
        model_of(text, weights(sizes, positive="var"), opset=7, ir_version=6), "simplify-inference"
    )
    assert done.counts["BatchNormalization"] == done.counts["Unsqueeze"] == 0
    done.prove()


@pytest.mark.parametrize("statistics", ["float", "float16"])
def test_half_precision_is_computed_in_single(statistics: str) -> None:
    given = ", ".join(f"{statistics}[10] {name}" for name in STATISTICS)
    text = f"""g (float16[2,10,4] x, {given}) => (float16[2,10,4] y)
      {{ y = BatchNormalization(x, gamma, beta, mean, var) }}"""
    done = apply(parse(text), "simplify-inference")
    assert done.counts["BatchNormalization"] == 0
    random = np.random.default_rng(1)
    feeds = {
        name: random.uniform(0.5, 1.5, 10).astype(
            statistics.replace("float", "f").replace("f16", "f2")
        )
        for name in STATISTICS
    }
    feeds["x"] = random.standard_normal((2, 10, 4)).astype(np.float16)
    gamma, beta, mean, var = (feeds[name].astype(np.float64)[:, None] for name in STATISTICS)
    expected = (feeds["x"] - mean) / np.sqrt(var + 1e-5) * gamma + beta
    np.testing.assert_allclose(run(done.after, feeds)["y"], expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            batch_norm("2,10,4", opset=14, attrs="<training_mode = 1>", outs="y, m, v"),
            "training_mode is 1",
        ),
        (batch_norm("2,10,4", opset=9, outs="y, m, v, sm, sv"), "5 outputs, which means training"),
        (batch_norm("2,10,4", opset=6, attrs="<is_test = 1>"), "before opset 7"),
    ],
)
def test_training_is_refused_with_a_reason(model: ModelProto, reason: str) -> None:
    done = apply(model, "simplify-inference")
    assert done.counts["BatchNormalization"] == 1
    assert reason in done.declined


def test_running_statistics_stand_still_in_inference() -> None:
    model = batch_norm("2,10,4", opset=15, outs="y, m, v", more=", float[10] m, float[10] v")
    done = apply(model, "simplify-inference")
    assert done.counts["BatchNormalization"] == 0
    x = np.ones((2, 10, 4), np.float32)
    found = run(done.after, {"x": x})
    np.testing.assert_array_equal(found["m"], done.program.main.initializers["mean"].const)
    np.testing.assert_array_equal(found["v"], done.program.main.initializers["var"].const)


def test_unknown_rank_is_left_alone() -> None:
    text = """g (float[2,10] x, int64[N] s) => (float[] y)
      { r = Reshape(x, s)  y = BatchNormalization(r, gamma, beta, mean, var) }"""
    done = apply(model_of(text, weights(STATISTICS, positive="var")), "simplify-inference")
    assert done.counts["BatchNormalization"] == 1
    assert "rank is unknown" in done.declined


def test_only_after_products() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,10,8,8] y, float[1,3,8,8] z)
      { c = Conv(x, w)  y = BatchNormalization(c, gamma, beta, mean, var)  z = BatchNormalization(x, g, b, m, v) }"""
    sizes = {**STATISTICS, "w": (10, 3, 1, 1), "g": (3,), "b": (3,), "m": (3,), "v": (3,)}
    done = apply(
        model_of(text, weights(sizes, positive="var v")),
        "simplify-inference{only_after_products=true}",
    )
    assert done.counts["BatchNormalization"] == 1
    assert "not a product" in done.declined
    done.prove()


@pytest.mark.parametrize(
    "bias", ["a = Add(p, bias)", "a = Add(bias, p)", "i = Identity(p) a = Add(i, bias)"]
)
def test_a_bias_may_stand_after_the_product(bias: str) -> None:
    text = f"""g (float[2,6] x) => (float[2,10] y)
      {{ p = MatMul(x, w) {bias} y = BatchNormalization(a, gamma, beta, mean, var) }}"""
    sizes = {**STATISTICS, "w": (6, 10), "bias": (10,)}
    done = apply(
        model_of(text, weights(sizes, positive="var")),
        "simplify-inference{only_after_products=true}",
    )
    assert done.counts["BatchNormalization"] == 0
    done.prove()


# ---- Dropout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_dropout_is_its_input(opset: int) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  d = Dropout(a)  y = Neg(d) }"
    done = apply(parse(text, opset=opset, ir_version=8), "simplify-inference")
    assert done.ops == ["Relu", "Neg"]
    done.prove()


@pytest.mark.parametrize(
    ("constants", "operands"),
    [
        ("<bool t = {0}>", 'a, "", t'),
        ("<float r = {0.5}, bool t = {0}>", "a, r, t"),
        ("<float r = {0.0}, bool t = {1}>", "a, r, t"),
        ("<float r = {0.5}>", "a, r"),
    ],
)
def test_dropout_that_is_switched_off(constants: str, operands: str) -> None:
    text = f"g (float[2,3] x) => (float[2,3] y, bool[2,3] k) {constants} {{ a = Relu(x)  y, k = Dropout({operands}) }}"
    done = apply(parse(text), "simplify-inference")
    assert done.counts["Dropout"] == 0
    done.prove()


@pytest.mark.parametrize(
    ("inputs", "constants", "reason"),
    [
        ("", "<float r = {0.5}, bool t = {1}>", "training_mode is true"),
        (", bool t", "<float r = {0.5}>", "only at run time"),
        (", float r", "<bool t = {1}>", "training_mode is true"),
    ],
)
def test_dropout_that_may_drop_stays(inputs: str, constants: str, reason: str) -> None:
    text = f"g (float[2,3] x{inputs}) => (float[2,3] y) {constants} {{ y = Dropout(x, r, t) }}"
    done = apply(parse(text), "simplify-inference")
    assert done.counts["Dropout"] == 1
    assert reason in done.declined


def test_a_mask_that_is_read_has_no_value_before_opset_12() -> None:
    text = "g (float[2,3] x) => (float[2,3] y, bool[2,3] k) { y, k = Dropout(x) }"
    done = apply(parse(text, opset=10, ir_version=8), "simplify-inference")
    assert done.counts["Dropout"] == 1
    assert "mask" in done.declined


def test_dropout_between_input_and_output_keeps_the_interface() -> None:
    done = apply(
        parse("g (float[2,3] x) => (float[2,3] y) { y = Dropout(x) }"), "simplify-inference"
    )
    assert done.ops == ["Identity"]
    done.prove()


@pytest.mark.parametrize("constant", ["", "var", "gamma beta mean", "mean var", "gamma beta var"])
@pytest.mark.parametrize("before", ["c = Conv(x, w)", "c = Relu(x)"])
def test_by_default_statistics_that_are_no_constants_stay(before: str, constant: str) -> None:
    """Up to twelve nodes in place of one, and nothing that a product could take in."""
    found = {n: (3,) for n in STATISTICS if n in constant.split()}
    inputs = "".join(f", float[3] {n}" for n in STATISTICS if n not in found)
    text = f"""g (float[N,3,8,8] x{inputs}) => (float[N,3,6,6] y) {{
      {before} y = BatchNormalization(c, gamma, beta, mean, var) }}"""
    text = text.replace("6,6", "6,6" if "Conv" in before else "8,8")
    sizes = {**found, **({"w": (3, 3, 3, 3)} if "Conv" in before else {})}
    done = apply(model_of(text, weights(sizes, positive="var")), "default", merge="auto", rounds=2)
    assert done.ops == [before.split()[2].partition("(")[0], "BatchNormalization"]
    assert not done.trace.rewrites


def test_statistics_of_another_length_than_the_channels_stay() -> None:
    """onnxruntime refuses such a model: the pass must not make a model that it runs."""
    for name in STATISTICS:
        text = "g (float[1,4] x) => (float[1,4] y) { y = BatchNormalization(x, gamma, beta, mean, var) }"
        sizes = {n: (1,) if n == name else (4,) for n in STATISTICS}
        done = apply(model_of(text, weights(sizes, positive="var")), "simplify-inference")
        assert done.ops == ["BatchNormalization"] and "no number for each channel" in done.declined


def before_conv(attrs: str, weight: tuple[int, ...], bias: str = "") -> tuple[str, Any]:
    """BatchNormalization of ten channels, then a Conv."""
    text = f"""g (float[N,10,7,6] x) => (float[N,F,H,W] y) {{
        n = BatchNormalization<epsilon=0.1>(x, gamma, beta, mean, var)
        y = Conv<{attrs}>(n, w{bias})
      }}"""
    return text, weights({**STATISTICS, "w": weight, "c": weight[:1]}, positive="var")


@pytest.mark.parametrize("bias", ["", ", c"])
@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize(
    ("attrs", "weight"),
    [
        ("strides=[2,1]", (4, 10, 3, 2)),
        ('auto_pad="VALID", dilations=[2,2]', (4, 10, 3, 2)),
        ("group=5, pads=[0,0,0,0]", (15, 2, 1, 3)),
        ("group=10", (10, 1, 2, 2)),
    ],
)
def test_a_conv_that_pads_nothing_takes_the_norm_before_it(
    attrs: str, weight: tuple[int, ...], opset: int, bias: str
) -> None:
    text, values = before_conv(attrs, weight, bias)
    for options in ("{only_after_products=true}", ""):
        done = rewritten(text, f"simplify-inference{options},fold-constant", values, opset=opset)
        assert done.ops == ["Conv"]
        done.prove(checks=("float64", "onnxruntime"))


@pytest.mark.parametrize(
    ("attrs", "change", "reason"),
    [
        ("pads=[0,0,0,1]", ("", ""), "the Conv after it pads"),
        ("auto_pad=\"SAME_UPPER\"", ("", ""), "the Conv after it pads"),
        ("strides=[1,1]", ("y = ", "z = Neg(w) y = "), "a statistic or the weight is not constant, or others read the weight"),
        ("strides=[1,1]", ("0.1>", "0.1, training_mode=1>"), "training_mode is 1"),
    ],
)  # fmt: skip
def test_a_norm_before_a_conv_stays(attrs: str, change: tuple[str, str], reason: str) -> None:
    text, values = before_conv(attrs, (4, 10, 3, 2))
    text = text.replace(*change) if change[0] else text
    text = text.replace("n = B", "n, m1, m2 = B") if "training" in text else text
    done = rewritten(text, "simplify-inference{only_after_products=true}", values)
    assert done.count("BatchNormalization") == 1
    assert reason in done.reasons("batch_norm_before_conv")


def test_a_norm_that_others_read_too_stays() -> None:
    text, values = before_conv("strides=[1,1]", (4, 10, 3, 2))
    text = text.replace("y) {", "y, float[N,10,7,6] n) {")
    done = rewritten(text, "simplify-inference{only_after_products=true}", values)
    assert done.ops == ["BatchNormalization", "Conv"]
