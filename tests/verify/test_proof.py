"""`verify` catches what changed and lets pass what did not."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify import feeds_for, verify
from onnxgrad.verify.compare import Difference
from onnxgrad.verify.report import Check
from onnxgrad.verify.tolerance import EXACT, EXACT_LIMIT
from onnxgrad.wording import counted
from tests.helpers import parse

TINY = "g (float[N] x) => (float[N] y) { y = %s }"
# onnxruntime 1.31 dies of SIGFPE when it folds the division
INT_MIN = """
g (int64[1] x) => (int64[1] y) <int64[1] a = {-9223372036854775808}, int64[1] b = {-1}> { c = Div(a, b) y = Add(x, c) }
"""


def transformer(seed: int = 0) -> onnx.ModelProto:
    """One attention block and one feed-forward block over token ids, as exporters write them."""
    model = parse(
        """g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float[batch, seq, 16] out)
             <int64[4] heads = {0, 0, 2, 8}, int64[3] flat = {0, 0, 16}, float scale = {0.35355339},
              int64[2] ax = {1, 2}, float one = {1}, float low = {-10000}> {
          x = Gather(embed, input_ids)
          q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
          q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
          q = Transpose <perm = [0, 2, 1, 3]> (q1) k = Transpose <perm = [0, 2, 3, 1]> (k1)
          v = Transpose <perm = [0, 2, 1, 3]> (v1)
          s0 = MatMul(q, k) s1 = Mul(s0, scale)
          m0 = Unsqueeze(attention_mask, ax) m1 = Cast <to = 1> (m0) m2 = Sub(one, m1) m = Mul(m2, low)
          s2 = Add(s1, m) p = Softmax <axis = -1> (s2)
          o0 = MatMul(p, v) o1 = Transpose <perm = [0, 2, 1, 3]> (o0) o2 = Reshape(o1, flat)
          o = MatMul(o2, wo) r = Add(x, o)
          n = LayerNormalization(r, gamma, beta)
          f0 = MatMul(n, w1) f1 = Gelu(f0) f = MatMul(f1, w2)
          out = Add(n, f)
        }"""
    )
    rng = np.random.default_rng(seed)
    square = dict.fromkeys(("wq", "wk", "wv", "wo"), (16, 16))
    shapes = {
        "embed": (50, 16),
        **square,
        "w1": (16, 32),
        "w2": (32, 16),
        "gamma": (16,),
        "beta": (16,),
    }
    for name, shape in shapes.items():
        value = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def scaled(model: onnx.ModelProto, value: str, factor: float) -> onnx.ModelProto:
    """A copy in which everything that reads `value` reads `factor * value` instead."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.append(
        numpy_helper.from_array(np.array(factor, np.float32), "factor_" + value)
    )
    at = next(i for i, node in enumerate(copy.graph.node) if value in node.output)
    for node in copy.graph.node[at + 1 :]:
        for i, name in enumerate(node.input):
            if name == value:
                node.input[i] = value + "_scaled"
    copy.graph.node.insert(
        at + 1, onnx.helper.make_node("Mul", [value, "factor_" + value], [value + "_scaled"])
    )
    return copy


def test_equal_models() -> None:
    report = verify(transformer(), transformer())
    assert report.ok
    assert report.checks["float64"].ran and report.checks["onnxruntime"].ran
    sizes = [{"batch": 2, "seq": 8}, {"batch": 1, "seq": 1}]
    *usual, wide = report.cases
    assert [(case.dims, case.edges) for case in usual] == [
        (d, e) for e in (False, True) for d in sizes
    ]
    assert (wide.dims, wide.how) == (sizes[0], "wide values 1")
    assert (
        report.compared == {"out": 2 * (2 * 8 * 16 + 16) + 2 * 8 * 16}
        and bool(report)
        and report.verdict == "equal"
    )
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["ok"] is True
    assert str(report).startswith("equal on cpu")


def test_another_order_of_arithmetic_is_equal() -> None:
    """Three products of one operand merged into one: no weight is recomputed."""
    merged = transformer()
    weights = {t.name: numpy_helper.to_array(t) for t in merged.graph.initializer}
    joined = np.concatenate([weights["wq"], weights["wk"], weights["wv"]], axis=1)
    merged.graph.initializer.append(numpy_helper.from_array(joined, "wqkv"))
    nodes = [n for n in merged.graph.node if n.output[0] not in ("q0", "k0", "v0")]
    nodes.insert(1, onnx.helper.make_node("MatMul", ["x", "wqkv"], ["qkv"]))
    nodes.insert(
        2, onnx.helper.make_node("Split", ["qkv"], ["q0", "k0", "v0"], axis=-1, num_outputs=3)
    )
    del merged.graph.node[:]
    merged.graph.node.extend(nodes)
    report = verify(transformer(), merged)
    assert report.ok, str(report)


@pytest.mark.parametrize("value", ["x", "q0", "v0", "s1", "p", "o", "n", "f0", "f1"])
def test_any_tensor_times_1_01_is_caught(value: str) -> None:
    report = verify(transformer(), scaled(transformer(), value, 1.01))
    assert not report.ok
    assert not report.checks["float64"].worst.ok
    assert (
        report.worst is not None and report.worst.output == "out" and report.worst.index is not None
    )


def test_a_move_of_1e_7_is_caught_in_float64() -> None:
    """1 + 2**-23 is the smallest factor that float32 holds: 1.2e-7."""
    report = verify(transformer(), scaled(transformer(), "f", 1 + 2.0**-23), weights="same")
    assert not report.ok and not report.checks["float64"].worst.ok
    assert report.checks["onnxruntime"].worst.ok  # which is below float32's own noise
    assert verify(transformer(), scaled(transformer(), "f", 1 + 2.0**-23), weights="rounded").ok
    # the factor is new, but every weight is still there: none was recomputed
    assert not verify(transformer(), scaled(transformer(), "f", 1 + 2.0**-23)).ok


def test_two_and_a_half_times_x_is_caught() -> None:
    wrong = "g (float[N] x) => (float[N] y) <float k = {2.5}> { y = Mul(x, k) }"
    report = verify(parse(TINY % "Identity(x)"), parse(wrong))
    assert not report.ok
    assert report.worst is not None and report.worst.b == pytest.approx(2.5 * report.worst.a)
    assert "DIFFERENT" in str(report) and f"y[{report.worst.index[0]}]" in str(report)


@pytest.mark.parametrize("check", ["float64", "onnxruntime"])
def test_each_leg_alone_catches_a_plain_change(check: str) -> None:
    report = verify(parse(TINY % "Tanh(x)"), parse(TINY % "Sigmoid(x)"), checks=[check])
    assert not report.ok and list(report.checks) == [check]
    assert verify(parse(TINY % "Tanh(x)"), parse(TINY % "Tanh(x)"), checks=[check]).ok


def test_nan_masks() -> None:
    a = parse("g (float[N] x) => (float[N] y) { a = Log(x) y = Identity(a) }")
    b = parse("g (float[N] x) => (float[N] y) { p = Abs(x) y = Log(p) }")
    x = {"x": np.array([1.0, -1.0, 2.0], np.float32)}
    report = verify(a, b, inputs=x)
    assert not report.ok and "NaN at [1]" in str(report.worst)
    assert verify(a, a, inputs=x).ok


def test_a_change_of_dtype() -> None:
    report = verify(
        parse(TINY % "Neg(x)"),
        parse("g (float[N] x) => (double[N] y) { z = Neg(x) y = Cast <to = 11> (z) }"),
    )
    assert not report.ok and "was float, is double" in str(report)
    assert not any(check.ran for check in report.checks.values())


def test_integers_are_exact_in_both_checks() -> None:
    a = parse("g (int64[N] x) => (int64[N] y) { y = Add(x, x) }")
    b = parse("g (int64[N] x) => (int64[N] y) <int64 one = {1}> { z = Add(x, x) y = Add(z, one) }")
    report = verify(a, b)
    assert not report.ok and all(not check.worst.ok for check in report.checks.values())


def test_a_candidate_that_kills_onnxruntime_is_a_difference() -> None:
    report = verify(
        parse("g (int64[1] x) => (int64[1] y) { y = Identity(x) }"),
        parse(INT_MIN),
        checks=["onnxruntime"],
    )
    assert not report.ok and "SIGFPE" in str(report.worst)


def test_an_original_that_does_not_run_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"SIGFPE"):
        verify(parse(INT_MIN), parse(INT_MIN))
    broken = parse("g (float[N] x) => (float[N] y) { y = Neg(q) }")
    with pytest.raises(InputError, match=r"does not load"):
        verify(broken, broken)


def test_a_model_that_cannot_be_fed_names_the_options() -> None:
    picky = parse(
        "g (float[N] x) => (float[3] y) <int64[1] s = {12347}> { z = Reshape(x, s) y = Neg(z) }"
    )
    with pytest.raises(InputError, match=r"inputs=\{'x': array\} or sizes with dims=\{'N': size\}"):
        verify(picky, picky)
    assert verify(picky, picky, dims={"N": 12347}).ok


def test_given_inputs_from_arrays_and_files(tmp_path: Path) -> None:
    a = parse(TINY % "Neg(x)")
    x = np.arange(3, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    for inputs in (
        {"x": x},
        [{"x": x}, {"x": x[:1]}],
        tmp_path / "x.npy",
        [f"x={tmp_path / 'x.npy'}"],
    ):
        report = verify(a, a, inputs=inputs)
        assert report.ok and all(case.seed is None for case in report.cases)
    assert report.cases[0].dims == {"N": 3}
    with pytest.raises(InputError, match="given inputs"):
        verify(
            parse("g (float[N] x) => (float[3] y) <int64[1] s = {3}> { y = Reshape(x, s) }"),
            a,
            inputs={"x": x[:2]},
        )


def test_sources_of_every_kind(tmp_path: Path) -> None:
    model = parse(TINY % "Neg(x)")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert verify(path, model.SerializeToString()).ok and verify(str(path), model).ok
    (tmp_path / "junk.onnx").write_bytes(b"\xff\xff junk")
    for bad in (tmp_path / "junk.onnx", b"\xff\xff junk", tmp_path / "missing.onnx"):
        with pytest.raises(InputError) as caught:
            verify(bad, model)
        assert "\n" not in str(caught.value)


def test_external_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(transformer(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    report = verify(path, transformer())
    assert report.ok and report.checks["float64"].ran


def test_the_float64_leg_says_why_it_did_not_run() -> None:
    x: dict[str, Any] = {"x": np.ones(2, np.float16)}
    model = parse("g (float16[N] x) => (int16[N] y) { y = BitCast <to = 5> (x) }", opset=26)
    report = verify(model, model, inputs=x)
    assert (
        report.ok and not report.checks["float64"].ran and "BitCast" in report.checks["float64"].why
    )
    loop = parse(
        """g (int64 n, float[N] x) => (float[N] y) { y = Loop(n, , x) <body = b (int64 i, bool c, float[N] v)
             => (bool d, float[N] w) { d = Identity(c) w = Neg(v) }> }"""
    )
    given = {"n": np.array(50_000), "x": np.ones(2, np.float32)}
    report = verify(loop, loop, inputs=given, float64_budget=0.1)
    assert report.ok and "budget of 0.1 s" in report.checks["float64"].why
    assert "float64 check did not run" in str(report).splitlines()[0]
    report = verify(model, model, inputs=x, checks=["float64"])
    assert (
        not report and report.verdict == "not proved" and "BitCast" in str(report).splitlines()[0]
    )


def test_ill_conditioning_is_no_change() -> None:
    """Sums of 1e12 that cancel: another order moves the result by more than EXACT, and that is rounding."""
    text = (
        "g (float[9] x) => (float y) <float[9] w = {1e7,-1e7,1e7,-1e7,1e7,-1e7,1e7,-1e7,1}> { %s }"
    )
    a = text % "y = MatMul(x, w)"
    b = text % "p = Mul(x, w) y = ReduceSum <keepdims = 0> (p)"
    rng = np.random.default_rng(0)
    half = rng.uniform(1, 2, 4).astype(np.float32)
    x = np.concatenate([np.repeat(half, 2), [1e-3]]).astype(np.float32)
    x[[1, 3]] = x[[3, 1]]
    report = verify(parse(a), parse(b), inputs={"x": x})
    assert report.ok, str(report)
    assert EXACT < 1e-8


def test_ill_conditioning_excuses_no_more_than_the_limit() -> None:
    """One bit of the sum moves y by 6e-8, and eight times that would excuse a factor of 1 + 2.4e-7."""
    text = f"g (float[2] x) => (float y) <float[2] w = {{{2**28}, 1}}, float b = {{-{2**28}}}%s> {{ s = MatMul(x, w) %s }}"
    a = parse(text % ("", "y = Add(s, b)"))
    b = parse(text % (", float k = {1.0000002}", "d = Add(s, b) y = Mul(d, k)"))
    report = verify(a, b, inputs={"x": np.ones(2, np.float32)}, checks=["float64"])
    assert not report.ok and f"tolerance {EXACT_LIMIT:.2e}" in str(report)


def test_an_allowance_that_nothing_exceeds_proves_nothing() -> None:
    """1e6 that is added and taken away leaves few digits of y in float32."""
    text = """g (float[N,4] x) => (float[N,4] y) <float k = {1e6}> {
                a = Mul(x, w) b = Add(a, k) y = Sub(b, k) }"""
    original, plain, wrong = (
        parse(text),
        parse("g (float[N,4] x) => (float[N,4] y) { y = Mul(x, w) }"),
        parse(text),
    )
    for model, w in ((original, 1.3), (plain, 1.3), (wrong, 1.29)):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(w), "w"))
    report = verify(original, plain)
    assert not report.ok and report.verdict == "not proved"
    assert re.fullmatch(
        r"not proved: y differs by \S+ of its largest value, and the original differs from itself "
        r"by \S+ \(metric= sets a bound\)",
        report.summary,
    )
    assert "not proved" in {d["answer"] for d in report.to_dict()["differences"]}
    assert verify(original, original).verdict == "equal"
    # the float64 check has its own tolerance: it took that of the kernels in float32
    assert verify(original, wrong).verdict == "different"


def test_one_line_has_few_of_many_reasons() -> None:
    outputs = ", ".join(f"float[N,4] y{i}" for i in range(5))
    noisy, plain = (
        "".join(
            f"a{i} = Mul(x, w) b{i} = Add(a{i}, k) y{i} = Sub(b{i}, k) "
            if adds
            else f"y{i} = Mul(x, w) "
            for i in range(5)
        )
        for adds in (True, False)
    )
    constants = "<float k = {1e6}, float w = {1.3}>"
    a, b = (
        parse(f"g (float[N,4] x) => ({outputs}) {constants} {{ {text} }}")
        for text in (noisy, plain)
    )
    report = verify(a, b)
    assert report.summary.count("sets a bound") == 3 and report.summary.endswith("; and 2 more")
    assert len(report.unproved) == 5


def test_the_same_bits_in_float64_are_equal_within_the_originals_own_noise() -> None:
    """The inputs have so few digits that float64 adds and subtracts 1e6 exactly."""
    noisy = parse("""g (float[N,4] x) => (float[N,4] y) <float k = {1e6}> {
                       a = Add(x, k) y = Sub(a, k) }""")
    plain = parse("g (float[N,4] x) => (float[N,4] y) { y = Identity(x) }")
    report = verify(noisy, plain)
    assert report.verdict == "equal" and any("same bits" in note for note in report.notes)


@pytest.mark.parametrize("factor", [1.00001, 1.01])
def test_a_kernel_of_few_digits_lends_no_tolerance_to_float64(factor: float) -> None:
    """onnxruntime multiplies int8 weights by activations that it quantises itself."""
    rng = np.random.default_rng(1)
    weights = rng.integers(-100, 100, (16, 16)).astype(np.int8)
    scales = (abs(rng.standard_normal(16)) + 0.1).astype(np.float32)
    models = []
    for f in (1.0, factor):
        scales[5] *= np.float32(f)
        models.append(parse("g (float[N,16] x) => (float[N,16] y) { v = DequantizeLinear<axis=1>(w, s) y = MatMul(x, v) }"))  # fmt: skip
        models[-1].graph.initializer.extend(
            numpy_helper.from_array(v, name) for name, v in (("w", weights), ("s", scales.copy()))
        )
    report = verify(*models)
    assert report.verdict == "different" and report.checks["float64"].worst.tolerance == 1e-6
    assert verify(models[0], models[0]).verdict == "equal"


def test_a_weight_that_no_output_reads_widens_nothing() -> None:
    """An unused bfloat16 weight allowed 1.6e-2 of every output."""
    text = (
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, %s, 3, 4}%s> { y = MatMul(x, w) }"
    )
    a = parse(text % ("2", ", bfloat16[1] u = {1}"))
    b = parse(text % ("2.002", ", bfloat16[1] u = {3}"))
    assert verify(a, b, checks=["float64"]).verdict == "different"


def test_an_unstable_output_is_named() -> None:
    """x + 1e8 - 1e8 is 0 in float32 and x in float64: the original's own noise says that nothing is proved there."""
    text = """g (float[N] x) => (float[N] y, float[N] z) <float big = {1e8}, float one = {1}> {
                z = Neg(x) k = Mul(x, one) a = Add(k, big) y = Sub(a, big) }"""
    report = verify(parse(text), parse(text))
    assert report.ok and report.unstable == ("y",)
    assert "unstable output y: the original disagrees with itself" in str(report)


def test_bad_usage() -> None:
    model = parse(TINY % "Neg(x)")
    with pytest.raises(InputError, match="unknown check"):
        verify(model, model, checks=["float128"])
    with pytest.raises(InputError, match="unknown provider"):
        verify(model, model, provider="tpu")
    with pytest.raises(InputError, match="no input has a dimension"):
        verify(model, model, dims={"Q": 2})


def test_sequences_and_strings_pass_through() -> None:
    text = """g (string[N] x, float[M] f) => (string[N] y, seq(float[K]) s) {
                y = Identity(x) s = SplitToSequence <keepdims = 1> (f) }"""
    assert verify(parse(text), parse(text)).ok


@pytest.mark.cuda
def test_both_graphs_run_on_cuda() -> None:
    report = verify(transformer(), transformer(), provider="cuda")
    assert report.ok and report.provider == "cuda" and report.checks["onnxruntime"].ran
    assert not verify(
        transformer(), scaled(transformer(), "f0", 1.01), provider="cuda", checks=["onnxruntime"]
    ).ok


def test_a_quantised_model_whose_ties_flip_is_not_a_change() -> None:
    """Rounding at exactly .5 turns one bit into a step of the scale; the note says so."""
    text = """g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0},
                float[4,4] i = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}> {
                m = %s q = QuantizeLinear(m, s, z) y = DequantizeLinear(q, s, z) }"""
    a = parse(text % "MatMul(x, i)")
    b = parse(
        text.replace("m = %s", "n = MatMul(x, i) m = Mul(n, k)").replace(
            "<", "<float k = {0.99999994}, ", 1
        )
    )
    x = {"x": np.array([0.25, 0.75, 1.25, 1.75], np.float32)}
    report = verify(a, b, inputs=x, checks=["float64"])
    assert "one bit of rounding moves 'y'" in str(report)
    assert verify(a, a, inputs=x, checks=["float64"]).notes == ()


@pytest.mark.slow
def test_a_value_too_large_for_the_reference_skips_that_leg() -> None:
    """float16 takes four times as much in float64 as in onnxruntime."""
    model = parse("""g (int64[1] n) => (float16 y) <int64 i = {0}> {
        c = ConstantOfShape<value = uint8[1] {1}>(n) f = Cast<to = 10>(c) y = Gather(f, i) }""")
    for count, ran in ((2**10, True), (100_000_000, False)):
        report = verify(model, model, inputs={"n": np.array([count])}, max_memory="450MB")
        assert report.ok and report.checks["onnxruntime"].ran
        assert (
            report.checks["float64"].ran
            == ran
            == ("max_memory" not in report.checks["float64"].why)
        )


def test_a_seed_whose_values_the_original_refuses_is_left_out() -> None:
    """The index is not traced through the product of two inputs, and lies outside the table for some seeds."""
    model = parse(
        "g (int64[9] i, int64[9] k) => (float[9] y) <float[1] table = {7}> { p = Mul(i, k) y = Gather(table, p) }"
    )
    inside = {
        seed: not np.any(np.multiply(*feeds_for(model, seed=seed).values())) for seed in range(300)
    }
    good = next(seed for seed, fits in inside.items() if fits)
    bad = next(seed for seed, fits in inside.items() if not fits)
    report = verify(model, model, seeds=[good, bad])
    assert report.ok and {case.seed for case in report.cases} == {good}
    with pytest.raises(InputError, match=r"inputs=\{'i': array\}"):
        verify(model, model, seeds=[bad])


def test_weights_that_would_not_fit_in_float64_skip_that_leg() -> None:
    weights = numpy_helper.from_array(np.zeros((1, 6_000_000), np.float32), "w")
    model = parse("g (float[1, 6000000] x) => (float[1, 1] y) { y = Gemm<transB = 1>(x, w) }")
    model.graph.initializer.append(weights)
    report = verify(model, model, max_memory="190MB", checks=["float64"])
    assert (
        not report.ok
        and "in float64, more than 181 MiB (max_memory=)" in report.checks["float64"].why
    )


def test_a_proof_takes_as_long_as_it_takes() -> None:
    """Also one of interfaces that differ, of which nothing runs."""
    other = parse("g (float[N] x) => (double[N] y) { y = Cast <to = 11> (x) }")
    for candidate, ran in ((other, False), (parse(TINY % "Exp(x)"), True)):
        started = time.monotonic()
        report = verify(parse(TINY % "Exp(x)"), candidate, checks=["float64"])
        assert 0 <= report.seconds <= time.monotonic() - started
        assert [check.ran for check in report.checks.values()] == [ran]


@pytest.mark.parametrize(("cases", "compared"), [(0, 0), (1, 1), (2, 30)])
@pytest.mark.parametrize(
    ("rel", "found"), [(None, ""), (0.0, ""), (0.0, "0.9"), (1e-9, ""), (1.0, "")]
)
def test_the_line_of_a_check(cases: int, compared: int, rel: float | None, found: str) -> None:
    assert str(Check("float64", False, "no time")) == "float64 check: did not run (no time)"
    assert (Check("float64", False).cases, Check("float64", False).compared) == (0, 0)
    worst = None if rel is None else Difference("y", (0,), 1.0, 2.0, rel, 1e-5, found=found)
    check = Check("float64", True, cases=cases, worst=worst, compared=compared)
    result = f"worst {worst}" if rel or found else "bit-identical"
    counts = f"{counted(cases, 'case')}, {counted(compared, 'finite element')} compared"
    assert str(check) == f"float64 check: {counts}, {result}"
    assert str(replace(check, why="in part")) == f"{check} (in part)"


def test_inputs_without_a_shape_are_more_than_scalars() -> None:
    moved, same = (parse(f"g (float[] x) => (float[] y) {{ y = {op} (x) }}") for op in ("Transpose", "Identity"))  # fmt: skip
    report = verify(moved, same)
    assert not report.ok and {c.dims["x.rank"] for c in report.cases} == {2, 3}
    assert verify(moved, moved).ok
    alone = parse("g (bool[] c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a) { a = Neg (x) }, else_branch = e () => (float[2] b) { b = Abs (x) }> }")  # fmt: skip
    report = verify(alone, alone)
    assert report.ok and {c.dims["c.rank"] for c in report.cases} <= {0, 1}


def test_a_result_of_one_string() -> None:
    joined = "g (string x, string z) => (string y) { y = StringConcat (x, z) }"
    assert verify(parse(joined), parse(joined)).verdict == "equal"
    assert not verify(parse(joined), parse(joined.replace("(x, z) }", "(z, x) }"))).ok
