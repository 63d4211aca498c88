"""A gradient in two parts: forward, then backward, is the gradient in one graph, whatever is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import InputError, Unsupported
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.transform.gradient_split import as_functions, linearize
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from onnxgrad.vocabulary import POLICIES
from tests.backend_suite import case, clamp_ir
from tests.grad import test_suite as suite
from tests.grad.numeric import normal
from tests.helpers import ROOT, parse

MODELS = ROOT / "models"
Runs = Callable[..., dict[str, Any]]
MLP = """g (float[N,3] x, int64[N] rows, float[3,4] w) => (float[N,4] y, float loss) {
    h = MatMul (x, w)  t = Tanh (h)  e = Exp (t)  m = Gather (e, rows)  y = Mul (m, t)
    s = Mul (y, y)  loss = ReduceSum <keepdims = 0> (s) }"""


def in_turn(
    parts: Any,
    feeds: dict[str, Any],
    seeds: dict[str, Any],
    by: Runs = run,
) -> dict[str, Any]:
    """What both parts return, each as a model of its own."""
    onnx.checker.check_model(parts.forward, full_check=True)
    onnx.checker.check_model(parts.backward, full_check=True)
    values = {**feeds, **seeds}
    for part in (parts.forward, parts.backward):
        values |= by(part, {v.name: values[v.name] for v in part.graph.input})
    return values


def agree(
    model: onnx.ModelProto, keep: Any = "auto", feeds: Any = None, wrt: Any = None, target: Any = None,
    by: Runs = run, rtol: float = 1e-5,
) -> Any:  # fmt: skip
    """The parts, which compute what the gradient in one graph computes."""
    parts = onnxgrad.linearize(model, wrt, target, keep=keep)
    feeds = feeds_for(model, seed=0) if feeds is None else feeds
    names = [v.of for v in parts.manifest.adjoints]
    plain = by(model, feeds)
    rng = np.random.default_rng(0)
    seeds = {
        v.name: rng.standard_normal(np.shape(plain[v.of])).astype(np.asarray(plain[v.of]).dtype)
        for v in parts.manifest.adjoints
    }
    graph = onnxgrad.gradient(model, wrt, names, adjoint="input")
    whole = by(graph, {**feeds, **seeds})
    found = in_turn(parts, feeds, seeds, by)
    gradients = [v.name for v in parts.manifest.gradients]
    scale = max(size_of(whole[n]) for n in gradients)
    for name in (*plain, *gradients):
        size = scale if name in gradients else size_of(plain[name])
        np.testing.assert_allclose(
            np.asarray(found[name], np.float64),
            np.asarray(whole[name], np.float64),
            rtol=rtol,
            atol=rtol * size,
        )
    assert [v.name for v in (*parts.forward.graph.input,)] == [
        v.name for v in graph.graph.input if v.name not in seeds
    ]
    assert [v.name for v in parts.forward.graph.output][: len(plain)] == [
        v.name for v in model.graph.output
    ]
    return parts


def size_of(array: Any) -> float:
    finite = np.asarray(array, np.float64)
    return float(np.abs(finite[np.isfinite(finite)]).max(initial=0.0))


def kept(parts: Any) -> list[str]:
    return [r.name for r in parts.manifest.residuals]


@pytest.mark.parametrize("keep", ["auto", "everything", "nothing"])
@pytest.mark.parametrize(
    "middle",
    [
        "q = SplitToSequence <axis = 0, keepdims = 0> (t) e = SequenceAt (q, z) s = Sin (e) r = SequenceInsert (q, s) y = ConcatFromSequence <axis = 0, new_axis = 1> (r)",
        "q = Optional (t) e = OptionalGetElement (q) y = Mul (e, e)",
    ],
)
def test_sequences_and_optionals_are_computed_again(middle: str, keep: str) -> None:
    model = parse(f"""g (float[2,3] x) => (float[N,3] w) {{
        z = Constant <value_int = 0> () h = Exp (x) t = Tanh (h) {middle} w = Mul (y, y) }}""")
    parts = agree(model, keep, {"x": normal(2, 3)}, by=reference, rtol=1e-9)
    assert all(r.dtype == "f32" for r in parts.manifest.residuals)


@pytest.mark.parametrize(
    "keep",
    [
        "auto",
        "nothing",
        *(
            pytest.param(k, marks=pytest.mark.slow)
            for k in ("everything", "products", ["h"], "t", "1KB", "Tanh", ["MatM*"])
        ),
    ],
)
def test_both_parts_are_the_gradient(keep: Any) -> None:
    feeds = {"x": normal(5, 3), "rows": np.array([4, 0, 0, 1, 2]), "w": normal(3, 4)}
    parts = agree(parse(MLP), keep, feeds)
    own = {"everything": {"t", "e", "m"}, "products": {"h"}, "nothing": set(), "auto": {"h", "t"}}
    operators = {"Tanh": {"t"}, "MatM*": {"h"}}
    made = {r.name for r in parts.manifest.residuals if r.origin == "forward"}
    if isinstance(keep, str) and keep in own:
        assert made <= own[keep]
    elif keep != "1KB":
        named = [keep] if isinstance(keep, str) else keep
        assert made == {v for name in named for v in operators.get(name, {name})}
    backward = [n.op_type for n in parts.backward.graph.node]
    assert ("Tanh" in backward) == ("t" not in kept(parts)) and "rows" in kept(parts)
    assert parts.manifest.bytes is None or not made  # N is open


def test_a_value_that_needs_no_keeping_is_not_returned() -> None:
    """Inputs and outputs are in the caller's hands, and Exp is elementwise."""
    parts = agree(
        parse("g (float[4] x) => (float[4] y) { a = Sin (x)  b = Exp (a)  y = Sqrt (b) }")
    )
    assert {r.origin for r in parts.manifest.residuals} <= {
        "input",
        "output",
    } and parts.manifest.bytes == 0
    assert [v.name for v in parts.forward.graph.output] == ["y"]


def test_random_draws_are_kept_by_every_policy() -> None:
    model = parse("""g (float[64] x) => (float[64] y) {
        a = Exp (x)  r = RandomNormalLike <seed = 1.0> (a)  b = Mul (a, r)  y = Tanh (b) }""")
    for keep in POLICIES:
        parts = onnxgrad.linearize(model, keep=keep)
        assert "RandomNormalLike" not in [n.op_type for n in parts.backward.graph.node]
        assert "r" in kept(parts)


@pytest.mark.slow
def test_a_budget_is_kept_or_refused() -> None:
    model = MODELS / "training" / "gpt2.onnx"
    sizes = {}
    for keep in ("everything", "60KB", "20KB", 12_000):
        found = onnxgrad.linearize(str(model), "params", "loss", keep=keep).manifest.bytes
        sizes[keep] = found
    assert sizes["60KB"] <= 60 << 10 and sizes["20KB"] <= 20 << 10 and sizes[12_000] <= 12_000
    assert sizes["everything"] > 60 << 10
    noisy = parse(
        "g (float[64] x) => (float[64] y) { r = RandomNormalLike (x)  b = Mul (x, r)  y = Tanh (b) }"
    )
    with pytest.raises(InputError, match=r"keep: 255 bytes do not suffice: .* at least 256 "):
        onnxgrad.linearize(noisy, keep=255)


@pytest.mark.slow
def test_maxima_are_compared_with_the_values_of_the_forward_part() -> None:
    """A Conv that is fused another way in the backward part has elements that equal no maximum."""
    model = parse("""g (float[2,3,8,8] x, float[4,3,3,3] w) => (float[2,4] y) {
        c = Conv (x, w)  n = Neg (c)  axes = Constant <value = int64[2] {2, 3}> ()
        y = ReduceMax <keepdims = 0> (n, axes) }""")
    for keep in ("auto", "nothing"):
        parts = agree(model, keep)
        assert "Conv" not in [n.op_type for n in parts.backward.graph.node if n.output[0] == "c"]
        assert "c" in kept(parts) or "n" in kept(parts)


@pytest.mark.slow
def test_the_forward_part_has_the_kernels_of_the_model() -> None:
    """A pool with indices takes many times as long, a Scan several times as long as an LSTM."""
    pool = parse("""g (float[1,3,12,12] x) => (float[1,3,6,6] y) {
        a = Tanh (x)  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)  y = Tanh (p) }""")
    parts = agree(pool)
    assert [len(n.output) for n in parts.forward.graph.node if n.op_type == "MaxPool"] == [1]
    rng = np.random.default_rng(0)
    lstm = parse(
        """g (float[20,16,64] x, float[1,256,64] w, float[1,256,64] r) => (float[20,1,16,64] y) {
        y, h, c = LSTM <hidden_size = 64> (x, w, r) }"""
    )
    feeds = {v.name: 0.1 * rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(np.float32)
             for v in lstm.graph.input}  # fmt: skip
    parts = agree(lstm, feeds=feeds, rtol=1e-4)
    assert [n.op_type for n in parts.forward.graph.node] == ["LSTM"]


@pytest.mark.parametrize("scale", ["float c = {0.5}", "float[1] c = {0.5}"])
def test_the_operands_of_a_product_are_kept_before_they_are_scaled(scale: str) -> None:
    """onnxruntime multiplies in the product, unless the graph returns the scaled operand."""
    model = parse(f"""g (float[2,64,8] x, float[8,8] a, float[8,8] b) => (float[2,64,64] y) <{scale}> {{
        p = MatMul (x, a)  q = Mul (p, c)  k = MatMul (x, b)  t = Transpose <perm = [0, 2, 1]> (k)
        s = Mul (t, c)  z = MatMul (q, s)  y = Softmax <axis = -1> (z) }}""")
    assert kept(onnxgrad.linearize(model)) == ["x", "a", "b", "y", "p", "t"]


@pytest.mark.parametrize("keep", ["auto", "everything"])
def test_axes_that_an_exporter_computes_are_no_residuals(keep: Any) -> None:
    """torch.onnx.export(optimize=False) reshapes axes; as an input the backward part could not be run alone."""
    model = parse("""g (float[N,5,4] x, float[4,4] a) => (float[N,4] y)
        <int64 one = {1}, int64[1] flat = {-1}> { axes = Reshape (one, flat)
        m = ReduceMean <keepdims = 0> (x, axes)  p = MatMul (m, a)  y = Sin (p) }""")
    parts = agree(model, wrt="x", keep=keep)
    assert "axes" not in kept(parts)
    assert onnxgrad.verify(parts.backward, onnxgrad.optimize(parts.backward)).ok


@pytest.mark.parametrize("rows", [4, 4096])
def test_values_are_kept_rather_than_their_copies(rows: int) -> None:
    """Exports of networks with dropout have copies, which onnxruntime removes."""
    model = parse(f"""g (float[{rows},8] x, float[8,8] a) => (float[{rows},8] y) {{
        p = MatMul (x, a)  q = Identity (p)  y = Sin (q) }}""")
    assert kept(onnxgrad.linearize(model, "x")) == ["a", "p"]


@pytest.mark.parametrize(("rows", "width", "again"), [(4, 8, True), (4096, 768, False)])
def test_few_values_are_kept_rather_than_few_bytes(rows: int, width: int, again: bool) -> None:
    """An output costs onnxruntime and Python more than a few bytes do; a budget counts bytes."""
    model = parse(f"""g (float[{rows},{width}] x, float[{width},{width}] a, float[{width}] s)
        => (float[{rows},{width}] y) {{
        p = MatMul (x, a)  n = LayerNormalization (p, s)  y = Tanh (n) }}""")
    parts = onnxgrad.linearize(model, "x")
    moments = [r for r in parts.manifest.residuals if r.shape == (rows, 1)]
    assert len(moments) == (0 if again else 2)
    assert ("LayerNormalization" in [n.op_type for n in parts.backward.graph.node]) == again
    bytes_kept = 4 * rows * (width + 2)
    assert onnxgrad.linearize(model, "x", keep=bytes_kept).manifest.bytes <= bytes_kept


NESTED = {
    "If": """g (float[4] x, bool go) => (float[4] y) { a = Exp (x)  b = Tanh (a)
        z = If (go) <then_branch = t () => (float[4] p) { q = Sin (b) p = Mul (q, a) },
                     else_branch = e () => (float[4] r) { r = Mul (b, b) }>  y = Tanh (z) }""",
    "Loop": """g (float[3] x, int64 n) => (float[3] y) { go = Constant <value = bool {1}> ()  a = Exp (x)  b = Tanh (a)
        z = Loop (n, go, b) <body = body (int64 i, bool c, float[3] v) => (bool d, float[3] u) {
            d = Identity (c) p = Mul (v, a) u = Sin (p) }>  y = Mul (z, b) }""",
    "Scan": """g (float[6,5] x, float[5] s) => (float[5] y) {
        z = Scan <num_scan_inputs = 1, body = k (float[5] v, float[5] e) => (float[5] u) { p = Mul (v, e) u = Tanh (p) }> (s, x)
        y = Mul (z, z) }""",
}


@pytest.mark.parametrize(
    "keep", ["auto", *(pytest.param(k, marks=pytest.mark.slow) for k in ("everything", "nothing"))]
)
@pytest.mark.parametrize("kind", NESTED)
def test_residuals_of_nested_graphs_are_what_the_node_reads(kind: str, keep: str) -> None:
    feeds: dict[str, Any] = {"If": {"x": normal(4), "go": np.array(True)},
                             "Loop": {"x": normal(3), "n": np.array(3)}}.get(kind)  # fmt: skip
    parts = agree(parse(NESTED[kind]), keep, feeds)
    tapes = set() if keep == "nothing" else {"v_steps", "i_steps"}  # the states of all steps
    assert set(kept(parts)) <= {"x", "s", "go", "n", "a", "b", "z", "y", *tapes}


def test_float16_and_inputs_without_gradient() -> None:
    model = parse("""g (float16[4] x, bool[4] on, int64 k) => (float16[4] y, int64 n) {
        c = Cast <to = 10> (on)  t = Tanh (x)  u = Mul (t, c)  y = Exp (u)  n = Identity (k) }""")
    feeds = {
        "x": normal(4).astype(np.float16),
        "on": np.array([1, 0, 1, 1], bool),
        "k": np.array(2),
    }
    parts = agree(model, feeds=feeds, rtol=1e-2)
    assert [v.of for v in parts.manifest.gradients] == ["x"] and [
        v.of for v in parts.manifest.adjoints
    ] == ["y"]


@pytest.mark.slow
def test_second_order_through_the_pair() -> None:
    """H v = d<backward(residuals(x), g), v>/dx: the pair of the backward part, then that of the forward part with
    residuals among its targets.
    """
    model = parse("""g (double[4] x) => (double loss) {
        a = Sin (x)  b = Tanh (a)  c = Mul (b, x)  d = Mul (c, c)  loss = ReduceSum <keepdims = 0> (d) }""")
    x, v, one = normal(4).astype(np.float64), normal(4, seed=1).astype(np.float64), np.ones(())
    expected = run(onnxgrad.hessian_vector_product(model), {"x": x, "x_tangent": v})["x_hvp"]
    for keep in ("auto", "everything"):
        first = onnxgrad.linearize(model, keep=keep)
        residuals = [r.name for r in first.manifest.residuals if r.origin == "forward"]
        seed = {first.manifest.adjoints[0].name: one}
        again = onnxgrad.linearize(
            first.backward, [r.name for r in first.manifest.residuals], "x_grad"
        )
        values = in_turn(first, {"x": x}, seed)
        of_residuals = in_turn(
            again,
            {n.name: values[n.name] for n in first.backward.graph.input},
            {again.manifest.adjoints[0].name: v},
        )
        adjoints = {g.of: of_residuals[g.name] for g in again.manifest.gradients}
        found = adjoints.pop("x", 0.0)
        if residuals:
            outer = onnxgrad.linearize(first.forward, "x", residuals)
            names = {a.of: a.name for a in outer.manifest.adjoints}
            found = (
                found
                + in_turn(outer, {"x": x}, {names[r]: adjoints[r] for r in residuals})["x_grad"]
            )
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("ir", [3, 8])
def test_weights_that_are_inputs_keep_their_values_in_both_parts(ir: int) -> None:
    """A run passes on what the first part computes, not values that the file has."""
    model = onnx.parser.parse_model(f"""<ir_version: {ir}, opset_import: ["" : 17]>
      g (float[2,2] x, float[2,2] w, float[2] b) => (float[2,2] y)
      <float[2,2] w = {{0.5, 1, 1.5, 2}}, float[2] b = {{5, 6}}> {{ h = MatMul (x, w)  t = Tanh (h)  y = Add (t, b) }}""")
    parts = onnxgrad.linearize(model, "x", "y")
    assert [e.name for e in parts.manifest.residuals] == ["t"]
    assert [v.name for v in parts.backward.graph.input] == [
        "t",
        "y_grad",
        *(["w"] if ir > 3 else []),
    ]
    assert "b" not in [t.name for t in parts.backward.graph.initializer]
    x, g = normal(2, 2).astype(np.float32), normal(2, 2).astype(np.float32)
    made = run(parts.backward, {"t": run(parts.forward, {"x": x})["t"], "y_grad": g})["x_grad"]
    w = np.float32([[0.5, 1], [1.5, 2]])
    np.testing.assert_allclose(made, (g * (1 - np.tanh(x @ w) ** 2)) @ w.T, rtol=1e-4)


@pytest.mark.slow
def test_one_file_with_both_as_functions() -> None:
    split = linearize(load(str(MODELS / "training" / "bert.onnx")), "params")
    both, whole = to_proto(as_functions(split), weights=True), to_proto(split.program, weights=True)
    assert [(f.domain, f.name) for f in both.functions] == [
        ("onnxgrad.split", "forward"),
        ("onnxgrad.split", "backward"),
    ]
    assert [n.op_type for n in both.graph.node] == ["forward", "backward"]
    onnx.checker.check_model(both, full_check=True)
    feeds = feeds_for(whole, seed=0)
    a, b = run(whole, feeds), run(both, feeds)
    scale = max(float(np.abs(v).max()) for v in a.values())
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["auto", "nothing"])
def test_every_operator_in_two_parts(keep: str) -> None:
    """The backend suite in the float64 reference; 1 of 4 cases for each policy."""
    compared = 0
    for name in suite.cases(suite.RUNS)[keep == "auto" :: 4]:
        found = case(name)
        model = clamp_ir(found.model)
        targets = [
            v.name for v in model.graph.output if v.type.tensor_type.elem_type in FLOAT_DTYPES
        ]
        operand = suite.WRT.get(model.graph.node[-1].op_type)
        wrt = None if operand is None else [model.graph.node[-1].input[operand]]
        if (
            not targets
            or name in suite.MASKED
            or any("Random" in n.op_type or n.op_type == "Bernoulli" for n in model.graph.node)
        ):
            continue
        try:
            agree(model, keep, found.inputs, wrt, targets, reference, 1e-9)
            compared += 1
        except (Unsupported, InputError):
            continue
    assert compared > 100


@pytest.mark.slow
@pytest.mark.parametrize("keep", POLICIES)
@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "vit", "resnet18", "unet", "lstm_tagger", "gru_tagger"]
)
def test_training_models_in_two_parts(name: str, keep: str) -> None:
    agree(onnx.load(MODELS / "training" / f"{name}.onnx"), keep, wrt="params", rtol=2e-4)
