"""Windows of rewrites: both forms of each rewrite on its boundary compute the same in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorShapeProto, helper

from onnxgrad.ir.load import load
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import RulePass
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.journal import Recorder
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.windows import Cut, NoWindow
from onnxgrad.rewrite.worklist import count, rewrite
from onnxgrad.verify.exact.window import Window
from onnxgrad.verify.reference.evaluate import reference
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import ABS_OF_NEG_TWICE, model_of, weights

x = capture("x")
# levels of context that a window gets in turn
STEPS = (0, 1, 1, 2, 4)
DIFFERS = "differs"


@rewrite(P.Abs(x), shrinks=count("Abs"))
def abs_is_nothing(x: Var) -> Var:
    """|x| = x: wrong below 0."""
    return x


@rewrite(P.Neg(x), shrinks=count("Neg"))
def neg_is_zero_minus(x: Var) -> Var:
    """-x = 0 - x"""
    negated: Var = 0.0 - x
    return negated


class Rules(RulePass):
    """Rules of these tests."""

    name = "rules"
    laws = (abs_is_nothing, neg_is_zero_minus)


def size(dim: TensorShapeProto.Dimension, n: int) -> int:
    """The size of a dimension, or of a formula of symbols, if an open size is `n` or a little more."""
    if not dim.dim_param:
        return dim.dim_value if dim.HasField("dim_value") else n
    symbols: dict[str, int] = {}

    def named(match: re.Match[str]) -> str:
        return str(symbols.setdefault(match[0], n + sum(map(ord, match[0])) % 3))

    return int(eval(re.sub(r"\b(?!max\b|min\b)[^\W\d][\w.:]*|'[^']+'", named, dim.dim_param)))


def feeds(window: Window, n: int) -> dict[str, Any]:
    rng, found = np.random.default_rng(n), {}
    for value in window.old.graph.input:
        tensor = value.type.tensor_type
        shape, dtype = (
            [size(d, n) for d in tensor.shape.dim],
            np.dtype(numpy_dtype(tensor.elem_type)),
        )
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        found[value.name] = drawn.astype(dtype)
    return found


def form(model: ModelProto, results: list[str]) -> ModelProto:
    """One form of a window as a model that returns its claimed values, of which some may be inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    for i, name in enumerate(results):
        copy.graph.node.append(helper.make_node("Identity", [name], [f"result {i}"]))
        copy.graph.output.append(helper.make_empty_tensor_value_info(f"result {i}"))
    return copy


def equal(window: Window) -> bool:
    """Whether both forms compute the same in float64, at two sizes of each symbol."""
    for n in (2, 3):
        given = feeds(window, n)
        forms = zip((window.old, window.new), zip(*window.claims, strict=True), strict=True)
        a, b = (reference(form(model, list(results)), given) for model, results in forms)
        for name, want in a.items():
            scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
            if np.shape(want) != np.shape(b[name]) or not np.allclose(
                want, b[name], 1e-5, 1e-6 * scale, equal_nan=True
            ):
                return False
    return True


def verdicts(model: Any, passes: Any = "default") -> list[tuple[str, str, int]]:
    """Each change of a run: its rule; "", DIFFERS, or why there is no window; and how often its window grew."""
    program, trace, found = load(model), Trace(), list[tuple[str, str, int]]()
    recorder, settled = Recorder(program), 0

    def verdict(cut: Cut) -> tuple[str, int]:
        for i, levels in enumerate(STEPS):
            if (i and not cut.widen(levels)) or not cut.claims:
                break
            if equal(cut.window()):
                return "", i
        return (DIFFERS if cut.claims else ""), 0

    def between() -> None:
        nonlocal settled
        rules = {r.rule for r in trace.rewrites[settled:]}
        settled = len(trace.rewrites)
        if rules:
            try:
                found.append((*sorted(rules)[:1], *verdict(Cut(program, recorder.settle()))))
            except NoWindow as why:
                found.append((*sorted(rules)[:1], str(why), 0))

    trace.between = between
    Pipeline.of(passes=passes, merge="always").run(program, trace)
    between()
    recorder.settle()
    assert recorder.chains
    return found


@pytest.mark.parametrize(
    "name",
    [
        "googlenet",
        "lstm_script",
        *(
            pytest.param(path.stem, marks=pytest.mark.slow)
            for path in sorted(MODELS_DIR.glob("*.onnx"))
            # its Reshapes hold the exporter's size, which generated boundary values do not have
            if path.stem != "yolox_script"
        ),
    ],
)
def test_both_forms_of_every_rewrite_are_equal_on_their_boundary(name: str) -> None:
    found = verdicts(MODELS_DIR / f"{name}.onnx")
    assert [row for row in found if row[1]] == []
    grown = sum(levels > 0 for _, _, levels in found)
    assert grown <= len(found) // 20 + 1


def test_a_wrong_rewrite_differs() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { t = Tanh(x) a = Abs(t) y = Neg(a) }"
    assert verdicts(parse(text), [Rules()])[0] == ("abs_is_nothing", DIFFERS, 0)


def test_a_window_grows_by_what_computes_its_boundary() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { e = Exp(x) c = Sqrt(e) a = Abs(c) y = Tanh(a) }"
    assert verdicts(parse(text), [Rules()]) == [("abs_is_nothing", "", 1)]


def test_sizes_belong_to_a_window_from_the_start() -> None:
    """Both targets copy the sizes of x, though no constant says so."""
    text = """g (float[N,4,3] x) => (float[N,12] y) <int64[1] zero = {0}, int64[1] rest = {-1}> {
      s = Shape(x) n = Gather <axis = 0> (s, zero) t = Concat <axis = 0> (n, rest)
      y = Reshape(x, t) }"""
    assert ("reshape_by_copies", "", 0) in verdicts(parse(text))


def test_an_output_that_takes_the_name_of_another_value() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { t = Tanh(x) y = Neg(t) z = Identity(t) }"
    assert [row[1] for row in verdicts(parse(text), [Rules(), "default"])] == [""] * 2


def test_inside_one_branch_there_is_a_window_in_a_function_there_is_none() -> None:
    found = verdicts(parse(ABS_OF_NEG_TWICE), [Rules()])
    assert {why for _, why, _ in found} == {DIFFERS, "", "it is inside a local function"}


def test_opening_an_if_has_no_window() -> None:
    text = """g (float[4] x) => (float[4] y) <bool c = {1}> {
      b = If (c) <then_branch = t () => (float[4] p) { p = Neg(x) },
                  else_branch = e () => (float[4] q) { q = Abs(x) }>
      y = Tanh(b) }"""
    assert ("if_of_constant", "it changes If", 0) in verdicts(parse(text))


def cut_of(text: str, passes: str, **constants: Any) -> Cut:
    """The window of everything that passes change at once."""
    program = load(model_of(text, constants))
    recorder = Recorder(program)
    Pipeline.of(passes=passes).run(program, Trace())
    return Cut(program, recorder.settle())


def test_a_folded_weight_comes_with_the_graph_that_computes_it() -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { n = Neg(w) m = Mul(n, k) y = MatMul(x, m) }"
    given = weights(w=(3, 3), k=(3,))
    window = cut_of(text, "fold-constant", **given).window()
    ((name, witness),) = window.witnesses.items()
    assert [n.op_type for n in witness.graph.node] == ["Neg", "Mul"]
    assert {t.name for t in witness.graph.initializer} == {"w", "k"}
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in window.new.graph.initializer}
    np.testing.assert_allclose(stored[name], -given["w"] * given["k"])


def test_names_of_both_forms_are_those_of_the_result() -> None:
    text = "g (float[4] x) => (float[4] y) { t = Tanh(x) y = Neg(t) }"
    program = load(parse(text))
    recorder = Recorder(program)
    Pipeline.of(passes=[Rules()]).run(program, Trace())
    window = Cut(program, recorder.settle()).window()
    ((old, new),) = window.claims
    assert new == "y" != old
    assert (
        [v.name for v in window.new.graph.input]
        == ["t"]
        == [v.name for v in window.old.graph.input]
    )
