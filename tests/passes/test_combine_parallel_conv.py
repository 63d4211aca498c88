from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.ir.load import load
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.running.session import run
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, initializer, model_of, weights

PASS = "combine-parallel-conv,remove-unused"


def test_the_example_of_the_specification() -> None:
    text = """g (float[1,4,16,16] x) => (float[1,4,16,16] y, float[1,4,16,16] z, float[1,4,14,14] m)
      { y = Conv(x, w1)  z = Conv(x, w2)  m = MaxPool <kernel_shape = [3, 3]> (x) }"""
    model = model_of(text, weights({"w1": (4, 4, 1, 1), "w2": (4, 4, 1, 1)}))
    done = apply(model, PASS)
    assert done.counts == {"Conv": 1, "Split": 1, "MaxPool": 1}
    assert done.text == unindented("""
        g(x: f32[1,4,16,16], w1_merged: f32[8,4,1,1] const, const: i64[2] const = [4, 4]) {
          m: f32[1,4,14,14] = MaxPool(x, kernel_shape=[3, 3])
          conv: f32[1,8,16,16] = Conv(x, w1_merged, dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[1, 1])
          y: f32[1,4,16,16], z: f32[1,4,16,16] = Split(conv, const, axis=1)
          return y, z, m
        }
    """)
    (merged,) = [v.const for v in done.program.main.initializers.values() if v.rank == 4]
    np.testing.assert_array_equal(
        merged, np.concatenate([initializer(model, "w1"), initializer(model, "w2")])
    )
    done.prove()


@pytest.mark.parametrize(
    ("x", "kernel", "out"),
    [
        ("2,3,9", (3,), "7"),
        ("2,3,6,5", (3, 2), "4,4"),
        ("1,3,4,5,6", (2, 2, 2), "3,4,5"),
        ("N,3,H,W", (1, 1), "H,W"),
    ],
)
def test_any_dimensions_and_any_output_channels(x: str, kernel: tuple[int, ...], out: str) -> None:
    n = x.split(",")[0]
    outs = ", ".join(f"float[{n},{c},{out}] y{c}" for c in (1, 2, 5))
    body = "  ".join(f"y{c} = Conv(x, w{c})" for c in (1, 2, 5))
    sizes = {f"w{c}": (c, 3, *kernel) for c in (1, 2, 5)}
    done = apply(model_of(f"g (float[{x}] x) => ({outs}) {{ {body} }}", weights(sizes)), PASS)
    assert done.counts == {"Conv": 1, "Split": 1}
    done.prove()


def test_bias_on_some() -> None:
    text = """g (float[1,3,6,6] x) => (float[1,2,6,6] a, float[1,3,6,6] b)
      { a = Conv(x, w1)  b = Conv(x, w2, c2) }"""
    done = apply(
        model_of(text, weights({"w1": (2, 3, 1, 1), "w2": (3, 3, 1, 1), "c2": (3,)})), PASS
    )
    assert done.counts == {"Conv": 1, "Split": 1}
    (bias,) = [
        v.const for v in done.program.main.initializers.values() if v.rank == 1 and v.dtype == 1
    ]
    assert bias is not None and np.signbit(np.asarray(bias)[:2]).all(), (
        "y + (-0.0) is y, -0.0 included"
    )
    done.prove()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "",
            "<kernel_shape = [3, 3], strides = [1, 1], dilations = [1, 1], group = 1, pads = [0, 0, 0, 0]>",
        ),
        ('<auto_pad = "VALID">', ""),
        ('<auto_pad = "SAME_UPPER">', "<pads = [1, 1, 1, 1]>"),
        ('<auto_pad = "SAME_LOWER">', '<auto_pad = "SAME_UPPER">'),
        (
            '<auto_pad = "SAME_LOWER", strides = [2, 2]>',
            '<strides = [2, 2], auto_pad = "SAME_LOWER">',
        ),
    ],
)
def test_attributes_that_mean_the_same(one: str, other: str) -> None:
    text = f"""g (float[1,3,8,8] x) => (float[1,2,A,B] a, float[1,3,A,B] b)
      {{ a = Conv {one} (x, w1)  b = Conv {other} (x, w2) }}"""
    done = apply(model_of(text, weights({"w1": (2, 3, 3, 3), "w2": (3, 3, 3, 3)})), PASS)
    assert done.counts["Conv"] == 1
    done.prove()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "<strides = [2, 2]>"),
        ("", "<dilations = [2, 2]>"),
        ("", "<pads = [1, 1, 1, 1]>"),
        ("<pads = [0, 0, 1, 1]>", "<pads = [1, 1, 0, 0]>"),
        (
            '<auto_pad = "SAME_UPPER", strides = [2, 2]>',
            '<auto_pad = "SAME_LOWER", strides = [2, 2]>',
        ),
    ],
)
def test_attributes_that_differ(one: str, other: str) -> None:
    text = f"""g (float[1,3,8,8] x) => (float[1,2,A,B] a, float[1,3,C,D] b)
      {{ a = Conv {one} (x, w1)  b = Conv {other} (x, w2) }}"""
    done = apply(model_of(text, weights({"w1": (2, 3, 3, 3), "w2": (3, 3, 3, 3)})), PASS)
    assert done.counts["Conv"] == 2


def test_even_kernels_pad_by_side() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] a, float[1,2,8,8] b, float[1,2,8,8] c, float[1,2,8,8] d)
      { a = Conv <auto_pad = "SAME_UPPER"> (x, w1)  b = Conv <pads = [0, 0, 1, 1]> (x, w2)
        c = Conv <auto_pad = "SAME_LOWER"> (x, w3)  d = Conv <pads = [1, 1, 0, 0]> (x, w4) }"""
    done = apply(model_of(text, weights({f"w{i}": (2, 3, 2, 2) for i in (1, 2, 3, 4)})), PASS)
    assert done.counts["Conv"] == 2
    done.prove()


def test_same_padding_of_a_dilated_kernel() -> None:
    """onnxruntime refuses to run it, so there is no proof; explicit pads of the same meaning run."""
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] a, float[1,2,8,8] b)
      { a = Conv <auto_pad = "SAME_UPPER", dilations = [2, 1]> (x, w1)
        b = Conv <pads = [2, 1, 2, 1], dilations = [2, 1]> (x, w2) }"""
    done = apply(model_of(text, weights({"w1": (2, 3, 3, 3), "w2": (2, 3, 3, 3)})), PASS)
    (merged,) = [b for b in done.program.main.bindings if b.op == "Conv"]
    assert merged.attr("pads") == (2, 1, 2, 1)


def test_kernels_and_inputs_that_differ() -> None:
    text = """g (float[1,3,8,8] x, float[1,3,8,8] z) => (float[1,2,A,B] a, float[1,2,C,D] b, float[1,2,E,F] c)
      { a = Conv(x, w1)  b = Conv(x, w2)  c = Conv(z, w1) }"""
    done = apply(model_of(text, weights({"w1": (2, 3, 3, 3), "w2": (2, 3, 1, 1)})), PASS)
    assert done.counts["Conv"] == 3


@pytest.mark.parametrize(("groups", "outs"), [(2, (2, 4)), (4, (4, 8, 4)), (2, (6, 2))])
@pytest.mark.parametrize("constant", [True, False])
def test_groups_are_concatenated_group_by_group(
    groups: int, outs: tuple[int, ...], constant: bool
) -> None:
    shapes = {f"w{i}": (n, 4 // groups, 3, 3) for i, n in enumerate(outs)}
    biases = {f"b{i}": (n,) for i, n in enumerate(outs) if i != 1}
    given = (
        ""
        if constant
        else "".join(f", float[{','.join(map(str, s))}] {k}" for k, s in shapes.items())
    )
    body = "  ".join(
        f"y{i} = Conv <group = {groups}> (x, w{i}{f', b{i}' if i != 1 else ''})"
        for i in range(len(outs))
    )
    declared = ", ".join(f"float[1,{n},4,4] y{i}" for i, n in enumerate(outs))
    model = model_of(
        f"g (float[1,4,6,6] x{given}) => ({declared}) {{ {body} }}",
        weights({**(shapes if constant else {}), **biases}),
    )
    done = apply(model, PASS)
    assert done.counts["Conv"] == 1 and done.counts["Gather"] == len(outs)
    done.prove()


def test_dependent_branches_stay_apart() -> None:
    """A weight computed from another branch: one product cannot come before itself."""
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] a, float[1,A,4,4] b) <int64[4] s = {-1, 2, 1, 1}>
      { a = Conv(x, w)  k = Reshape(a, s)  b = Conv(x, k) }"""
    done = apply(model_of(text, weights({"w": (2, 2, 1, 1)})), PASS)
    assert done.counts["Conv"] == 2
    done.prove()


def test_a_common_activation_moves_in_front_of_the_split() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] a, float[1,4,8,8] b)
      { c = Conv(x, w1)  a = Relu(c)  d = Conv(x, w2)  b = Relu(d) }"""
    done = apply(model_of(text, weights({"w1": (2, 3, 1, 1), "w2": (4, 3, 1, 1)})), PASS)
    assert done.ops == ["Conv", "Relu", "Split"]
    done.prove()


def _behind(
    a: str,
    b: str,
    inputs: str = "",
    group: int = 1,
    sizes: dict[str, tuple[int, ...]] | None = None,
    opset: int = 20,
) -> Done:
    """Two Convs p (2 channels) and q (4) with a and b behind them."""
    text = f"""g (float[2,4,5,6] x{inputs}) => (float[2,2,5,6] a, float[2,4,5,6] b)
      {{ p = Conv <group = {group}> (x, w1)  q = Conv <group = {group}> (x, w2)  a = {a}  b = {b} }}"""
    shapes = {"w1": (2, 4 // group, 1, 1), "w2": (4, 4 // group, 1, 1), **(sizes or {})}
    done = apply(model_of(text, weights(shapes), opset=opset, ir_version=8), PASS)
    assert done.counts["Conv"] == 1
    done.prove()
    return done


RUN_TIME = ", float[2,1,1] s, float[4,1,1] t"


@pytest.mark.parametrize("opset", [7, 11, 13, 20])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "PRelu"])
def test_a_scale_or_bias_known_at_run_time_is_concatenated(op: str, opset: int) -> None:
    """SPEC, added after a second reading, S4: behind Conv, constant or not."""
    done = _behind(f"{op}(p, s)", f"{op}(q, t)", RUN_TIME, opset=opset)
    assert Counter(done.ops) == {"Concat": 1, "Conv": 1, op: 1, "Split": 1}


def test_scale_then_bias_then_activation() -> None:
    text = """g (float[2,4,5,6] x, float[2,1,1] s, float[1,4,1,1] t) => (float[2,2,5,6] a, float[2,4,5,6] b)
      { p = Conv(x, w1)  p2 = Mul(s, p)  p3 = Add(p2, c)  a = Relu(p3)
        q = Conv(x, w2)  q2 = Mul(q, t)  q3 = Add(d, q2)  b = Relu(q3) }"""
    c, d = np.split(np.arange(6, dtype=np.float32).reshape(6, 1, 1), [2])
    done = apply(
        model_of(text, {**weights(w1=(2, 4, 1, 1), w2=(4, 4, 1, 1)), "c": c, "d": d}), PASS
    )
    assert Counter(done.ops) == {
        "Reshape": 1,
        "Concat": 1,
        "Conv": 1,
        "Mul": 1,
        "Add": 1,
        "Relu": 1,
        "Split": 1,
    }
    assert done.text == unindented("""
        g(x: f32[2,4,5,6], s: f32[2,1,1], t: f32[1,4,1,1], w1_merged: f32[6,4,1,1] const, const: i64[2] const = [2, 4], const_2: i64[3] const = [-1, 1, 1], c_row_merged: f32[6,1,1] const = [[[0]], [[1]], [[2]], [[3]], [[4]], [[5]]]) {
          conv: f32[2,6,5,6] = Conv(x, w1_merged, dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[1, 1])
          reshape: f32[4,1,1] = Reshape(t, const_2)
          concat: f32[6,1,1] = Concat(s, reshape, axis=0)
          mul: f32[2,6,5,6] = Mul(conv, concat)
          add: f32[2,6,5,6] = Add(mul, c_row_merged)
          relu: f32[2,6,5,6] = Relu(add)
          a: f32[2,2,5,6], b: f32[2,4,5,6] = Split(relu, const, axis=1)
          return a, b
        }
    """)
    done.prove()


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_grouped_channels_take_their_own_scale(op: str) -> None:
    at_run_time = _behind(
        f"Relu(p2)  p2 = {op}(p, s)", f"Relu(q2)  q2 = {op}(q, t)", RUN_TIME, group=2
    )
    assert at_run_time.counts == {"Concat": 1, "Gather": 3, "Conv": 1, op: 1, "Relu": 1}
    constant = _behind(
        f"{op}(p, s)", f"{op}(q, t)", group=2, sizes={"s": (2, 1, 1), "t": (1, 4, 1, 1)}
    )
    assert constant.counts == {"Gather": 2, "Conv": 1, op: 1}


def test_a_bias_on_one_branch_and_a_scale_on_one() -> None:
    assert _behind("Add(p, s)", "Relu(q)", ", float[2,1,1] s").counts["Concat"] == 1, (
        "the other adds -0.0"
    )
    alone = _behind("Mul(p, s)", "Relu(q)", ", float[2,1,1] s")
    assert alone.counts == {"Conv": 1, "Split": 1, "Mul": 1, "Relu": 1}


@pytest.mark.parametrize(
    ("a", "b", "inputs"),
    [
        ("Mul(p, s)", "Add(q, t)", RUN_TIME),
        ("Sub(p, s)", "Sub(t, q)", RUN_TIME),
        ("Mul(p, s)", "Mul(q, t)", ", float[2,2,1,1] s, float[2,4,1,1] t"),
        ("Mul(p, s)", "Mul(q, s)", ", float[5,6] s"),
        ("Mul(p, s)", "Mul(q, s)", ", float s"),
        ("Mul(p, s)", "Mul(q, t)", ", float[2,1,1] s, float[4,5,1] t"),
    ],
)
def test_what_is_not_one_value_for_each_channel_stays(a: str, b: str, inputs: str) -> None:
    assert "Concat" not in _behind(a, b, inputs).counts


def test_a_scale_that_another_branch_computes_stays() -> None:
    text = """g (float[1,4,5,5] x) => (float[1,2,5,5] a, float[1,2,5,5] b) <int64[3] z = {0, 2, 3}>
      { p = Conv(x, w1)  q = Conv(x, w2)  b = Mul(q, u)  m = ReduceMax <keepdims = 0> (b, z)
        s = Reshape(m, k)  a = Mul(p, s) }"""
    model = model_of(text, weights({"w1": (2, 4, 1, 1), "w2": (2, 4, 1, 1), "u": (2, 1, 1)}))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 1], np.int64), "k"))
    done = apply(model, PASS)
    assert done.counts["Conv"] == 1 and done.counts["Mul"] == 2
    done.prove()


def test_an_addend_along_the_width_is_no_bias() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,8,8,8] a, float[1,8,8,8] b)
      { c = Conv(x, w1)  a = Add(c, v)  d = Conv(x, w2)  b = Add(d, v) }"""
    done = apply(model_of(text, weights({"w1": (8, 3, 1, 1), "w2": (8, 3, 1, 1), "v": (8,)})), PASS)
    assert done.counts == {"Conv": 1, "Split": 1, "Add": 2}
    done.prove()


def test_min_branches() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] a, float[1,4,8,8] b) { a = Conv(x, w1)  b = Conv(x, w2) }"""
    model = model_of(text, weights({"w1": (2, 3, 1, 1), "w2": (4, 3, 1, 1)}))
    assert apply(model, "combine-parallel-conv{min_branches=3}").counts["Conv"] == 2


def test_weights_that_are_inputs_with_symbolic_channels() -> None:
    text = """g (float[1,3,8,8] x, float[P,3,1,1] w1, float[Q,3,1,1] w2) => (float[1,P,8,8] a, float[1,Q,8,8] b)
      { a = Conv(x, w1)  b = Conv(x, w2) }"""
    done = apply(parse(text), PASS)
    assert done.counts["Conv"] == 1
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"x": (1, 3, 8, 8), "w1": (2, 3, 1, 1), "w2": (5, 3, 1, 1)}.items()
    }
    before, after = run(done.before, feeds), run(done.after, feeds)
    for name in "ab":
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"w1": (2, 3, 1, 1), "w2": (16, 3, 1, 1)}, "more than 8 output channels"),
        ({"w1": (2, 3, 3, 3), "w2": (17, 3, 3, 3)}, "more than 16 output channels"),
        ({"w1": (2, 3, 1, 1), "w2": (8, 3, 1, 1)}, ""),
        ({"w1": (2, 3, 3, 3), "w2": (16, 3, 3, 3)}, ""),
    ],
)
def test_auto_merges_narrow_branches_only(sizes: dict[str, tuple[int, ...]], reason: str) -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,A,A] a, float[1,B,A,A] b) { a = Conv(x, w1)  b = Conv(x, w2) }"""
    done = apply(model_of(text, weights(sizes)), PASS, merge="auto")
    assert done.counts["Conv"] == (2 if reason else 1)
    assert reason in done.declined


def _merged(path: Path) -> tuple[int, int, int]:
    """Convs before and after, and the groups combined."""
    program, trace = load(path), Trace()
    before = sum(b.op == "Conv" for b in program.main.walk())
    Pipeline.of(passes="combine-parallel-conv", merge="always").run(program, trace)
    groups = sum(f.rule == "combine_parallel_conv" for f in trace.rewrites)
    return before, sum(b.op == "Conv" for b in program.main.walk()), groups


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("googlenet", 57, 39), ("inception_v3", 94, 75), ("yolox", 65, 51), ("resnet18", 20, 20)],
)
def test_counts_on_real_topologies(models_dir: Path, name: str, before: int, after: int) -> None:
    assert _merged(models_dir / f"{name}.onnx")[:2] == (before, after)


def test_counts_on_light_inception_v2() -> None:
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_inception_v2.onnx"
    assert _merged(path) == (69, 51, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "groups"), [("basic_pitch", 9), ("mtcnn_pnet", 1)])
def test_counts_on_trained_models(fetched: Callable[[str], Path], name: str, groups: int) -> None:
    program, trace = load(fetched(name)), Trace()
    passes = "remove-noops,fold-constant,merge-equal,combine-parallel-conv"
    Pipeline.of(passes=passes, merge="always").run(program, trace)
    assert sum(f.rule == "combine_parallel_conv" for f in trace.rewrites) == groups


def test_the_merged_weight_is_one_initializer() -> None:
    text = "g (float[1,3,8,8] x) => (float[1,2,8,8] a, float[1,4,8,8] b) { a = Conv(x, w1)  b = Conv(x, w2) }"
    done = apply(model_of(text, weights({"w1": (2, 3, 1, 1), "w2": (4, 3, 1, 1)})), PASS)
    assert [numpy_helper.to_array(t).shape for t in done.after.graph.initializer if t.dims[1:]] == [
        (6, 3, 1, 1)
    ]


def test_transposed_convolutions_stay_and_say_so() -> None:
    text = """g (float[1,2,4,4] x) => (float[] a, float[] b, float[] d) {
      a = ConvTranspose(x, u) b = ConvTranspose(x, v) n = Neg(x) d = ConvTranspose(n, u) }"""
    done = apply(model_of(text, weights(u=(2, 3, 2, 2), v=(2, 3, 2, 2))), PASS)
    assert done.ops.count("ConvTranspose") == 3
    assert done.reasons("combine_parallel_conv") == ["parallel ConvTransposes are not merged"] * 2
