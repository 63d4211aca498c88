"""`optimize`: what it takes and gives, its proof, and the culprit it names when the proof fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.passes.base import Pass
from onnxgrad.passes.pipeline import Pipeline, parse_passes
from onnxgrad.passes.presets import PRESETS
from onnxgrad.passes.rule_passes import remove_noops
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules, count, rewrite
from tests.helpers import parse
from tests.rewriting import model_of, weights

x = capture("x")
TEXT = """g (float[N,4] x) => (float[N,4] o) {
  i = Identity(x) p = MatMul(i, w1) e = Identity(p) t = Tanh(e) r = Neg(t) s = Identity(r) u = Neg(s) o = Sigmoid(u) }"""


def network() -> onnx.ModelProto:
    return model_of(TEXT, weights(w1=(4, 4)))


@rewrite(P.Tanh(x), shrinks=count("Tanh"))
def tanh_is_nearly_this(x: Var) -> Var:
    """Tanh(x) = x / (1 + |x|), says who?"""
    softsign: Var = op.Softsign(x)
    return softsign


@rewrite(P.Neg(P.Neg(x)), shrinks=count("Neg"))
def neg_of_neg(x: Var) -> Var:
    """Neg(Neg(x)) = x"""
    return x


@dataclass(frozen=True)
class Wrong(Pass):
    """A law that does not hold, between two that do."""

    name: ClassVar[str] = "wrong"

    def run(self, program: Program, trace: Trace) -> None:
        apply_rules(program.main, [tanh_is_nearly_this, neg_of_neg], trace)


def test_a_wrong_rewrite_is_refused_and_named() -> None:
    pipeline = Pipeline((remove_noops(), Wrong()))
    with pytest.raises(RewriteRefuted) as refusal:
        optimize_program(network(), pipeline)
    culprit = refusal.value.culprit
    assert culprit is not None and (culprit.rule, culprit.pass_name) == (
        "tanh_is_nearly_this",
        "wrong",
    )
    assert culprit.number == 4, "three identities went before it"
    assert "number 4, tanh_is_nearly_this" in str(refusal.value) and "nothing was written" in str(
        refusal.value
    )
    assert not refusal.value.report.ok


def test_without_the_proof_it_would_go_through() -> None:
    done = optimize_program(network(), Pipeline((Wrong(),)), prove=False)
    assert done.report is None and "Softsign" in str(done.program.main)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_max_rewrites(limit: int) -> None:
    done = optimize_program(network(), Pipeline.of("clean"), limit=limit)
    assert [f.number for f in done.trace.rewrites] == list(range(1, limit + 1))
    assert sum(b.op == "Identity" for b in done.program.main.bindings) == 3 - limit
    assert done.report is not None and done.report.ok


def test_the_kind_that_goes_in_comes_out(tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for given in (model, path, str(path), model.SerializeToString()):
        assert isinstance(optimize(given, verify=False), onnx.ModelProto)
    import onnx_graphsurgeon as gs

    graph = optimize(gs.import_onnx(model), verify=False)
    assert isinstance(graph, gs.Graph) and [n.op for n in graph.nodes] == [
        "MatMul",
        "Tanh",
        "Sigmoid",
    ]


def test_what_each_pass_did() -> None:
    done = optimize_program(network(), Pipeline.of("clean"), prove=False)
    results = {r.name: r for r in done.passes}
    assert (
        results["remove-noops"].rewrites,
        results["remove-noops"].before,
        results["remove-noops"].after,
    ) == (3, 8, 3)
    assert all(r.seconds >= 0 for r in done.passes)


@dataclass(frozen=True)
class Idle(Pass):
    """Notes that it was asked, and finds nothing."""

    name: ClassVar[str] = "idle"
    tag: str = ""
    calls: list[str] = field(default_factory=list, compare=False)

    def run(self, program: Program, trace: Trace) -> None:
        self.calls.append(self.tag)


def test_a_pass_that_found_nothing_is_not_asked_again_until_something_changed() -> None:
    calls: list[str] = []
    Pipeline((Idle("a", calls), remove_noops(), Idle("b", calls), remove_noops())).run(
        load(network())
    )
    assert calls == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("unread", "expected"), [("", ["a", "b"]), ("c = Neg (x)", ["a", "b", "a"])]
)
def test_a_constant_that_nothing_read_is_not_missed(unread: str, expected: list[str]) -> None:
    calls: list[str] = []
    model = parse(f"g (float[2] x) => (float[2] y) <float[1] w = {{1}}> {{ {unread} y = Exp (x) }}")
    program, trace = load(model), Trace()
    Pipeline((Idle("a", calls), *parse_passes("remove-unused"), Idle("b", calls))).run(
        program, trace
    )
    assert not program.main.initializers
    assert calls == expected
    assert trace.rewrites[-1].rule == "unused_initializer"


def test_the_list_of_passes_as_text() -> None:
    passes = parse_passes(
        "remove-noops, fold-constant{max_growth=5},combine-parallel-matmul{merge=never;min_branches=3}",
        merge="always",
    )
    assert [p.name for p in passes] == ["remove-noops", "fold-constant", "combine-parallel-matmul"]
    assert (passes[1].max_growth, passes[2].merge, passes[2].min_branches) == (5, "never", 3)  # type: ignore[attr-defined]


def test_a_preset_among_passes_stands_for_its_own() -> None:
    passes = parse_passes("outline, clean, merge-equal{floats=false}", merge="never")
    names = [p.partition("{")[0] for p in PRESETS["clean"]]
    assert [p.name for p in passes] == ["outline", *names, "merge-equal"]
    with pytest.raises(InputError, match="unknown pass 'clean'"):
        parse_passes("clean{floats=false}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("nonsense", "unknown pass 'nonsense'"),
        (
            "fold-constant{max=1}",
            "fold-constant has no option 'max'.*; it has: max_growth",
        ),
        ("fold-constant{max_growth=many}", "max_growth must be a whole number"),
        ("fold-constant{max_growth=1", "cannot read the list of passes at"),
    ],
)
def test_bad_lists(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_passes(text)


def test_bad_choices() -> None:
    with pytest.raises(InputError, match="unknown preset 'fast'"):
        Pipeline.of("fast")
    with pytest.raises(InputError, match="unknown merge rule"):
        Pipeline.of(merge="sometimes")


def test_a_model_that_does_not_run_is_refused_and_can_be_optimized_unproved() -> None:
    text = """g (float[N] x) => (float[M] o) <int64[1] s = {12347}> {
      i = Identity(x) j = Reshape(i, s) o = Neg(j) }"""
    with pytest.raises(InputError):
        optimize(parse(text))
    assert [n.op_type for n in optimize(parse(text), verify=False).graph.node] == ["Reshape", "Neg"]


def test_the_proof_asks_for_the_last_digits_unless_constants_were_rounded() -> None:
    moved = optimize_program(
        model_of(
            "g (float[2,3] x) => (float[2,2] o) { t = Transpose(w) o = MatMul(x, t) }",
            weights(w=(2, 3)),
        ),
        Pipeline.of("clean"),
    )
    assert not moved.trace.rounded and moved.report is not None and moved.report.ok
    scaled = optimize_program(
        model_of(
            "g (float[2,3] x) => (float[2,3] o) { t = Exp(w) o = Mul(x, t) }", weights(w=(2, 3))
        ),
        Pipeline.of("clean"),
    )
    assert scaled.trace.rounded and scaled.report is not None and scaled.report.ok


def test_a_value_that_stands_for_another_has_its_name() -> None:
    """So that layers are compared by name, and files of IR 8, without metadata, too; the report says the same names."""
    text = """g (float[2,3,4] x) => (float[3,4,2] y, float[4,2,3] z) {
        a = Transpose <perm = [1, 0, 2]> (x)  b = Transpose <perm = [0, 2, 1]> (a)  c = Relu (b)  y = Neg (c)
        d = Abs (x)  e = Transpose <perm = [0, 2, 1]> (d)  f = Transpose <perm = [1, 0, 2]> (e)  z = Neg (f) }"""
    done = optimize(parse(text), report=True)
    made = {n.output[0]: n.op_type for n in done.model.graph.node}
    assert made == {"b": "Transpose", "c": "Relu", "y": "Neg", "d": "Abs", "f": "Transpose", "z": "Neg"}  # fmt: skip
    assert {r.emitted for r in done.rewrites} == {("b",), ("f",)}
    again = optimize(done.model)
    assert again.SerializeToString() == done.model.SerializeToString()


def test_a_name_that_is_kept_is_declared_as_its_value_is() -> None:
    """The file declares `b` in float32, in which it no longer is."""
    text = """g (float[2,3,4] x) => (float[3,4,2] y) <float[3,2,4] a, float[3,4,2] b, float[3,4,2] c> {
        a = Transpose <perm = [1, 0, 2]> (x)  b = Transpose <perm = [0, 2, 1]> (a)  c = Relu (b)  y = Tanh (c) }"""
    made = optimize(parse(text), passes="default,float16", metric="worst=0.01")
    types = {v.name: v.type.tensor_type.elem_type for v in made.graph.value_info}
    assert types["b"] == onnx.TensorProto.FLOAT16
