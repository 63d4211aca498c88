"""What may be decided about a model, and the pipelines that decisions make."""

from __future__ import annotations

from onnx import ModelProto

from onnxgrad.ir.load import load
from onnxgrad.jobs.tuning.choices import (
    Choice,
    Choices,
    OfKinds,
    described,
    kind_of,
    kinds_in,
    merging,
)
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from tests.rewriting import model_of, weights

THREE = "3 MatMul of f32[4,6] by f32[6,5]"
TWO = "2 MatMul of f32[4,5] by f32[5,7]"


def branches() -> ModelProto:
    """Three products of one input, two of another, and two whose weight others read."""
    return model_of(
        """g (float[4,6] x, float[4,5] z) => (float[4,5] p, float[4,5] q, float[4,5] r,
            float[4,7] s, float[4,7] t, float[4,6] u, float[4,6] v, float[6,6] w) {
          a = MatMul(x, wa) b = MatMul(x, wb) c = MatMul(x, wc)
          p = Relu(a) q = Tanh(b) r = Neg(c)
          d = MatMul(z, wd) e = MatMul(z, we) s = Relu(d) t = Tanh(e)
          y = Neg(x) f = MatMul(y, wf) h = MatMul(y, wh) u = Relu(f) v = Tanh(h) w = Neg(wf)
        }""",
        weights(wa=(6, 5), wb=(6, 5), wc=(6, 5), wd=(5, 7), we=(5, 7), wf=(6, 6), wh=(6, 6)),
    )


def products(model: ModelProto, pipeline: Pipeline) -> int:
    program = load(model)
    pipeline.run(program, Trace())
    program.main.check()
    return sum(b.op in ("MatMul", "Gemm") for b in program.main.bindings)


def test_kinds() -> None:
    """Of groups whose weights are their own; the static rule merges none of these."""
    found = kinds_in(branches(), Pipeline.of())
    assert found == {"combine-parallel-matmul": {THREE: False, TWO: False}}
    assert [p.name for p in merging(Pipeline.of())] == [
        f"combine-parallel-{kind}" for kind in ("gemm", "matmul", "conv")
    ]
    assert not merging(Pipeline.of(merge="always")) and not merging(Pipeline.of(merge="never"))


def test_kinds_that_the_static_rule_merges() -> None:
    rows = model_of(
        "g (float[1,600] x) => (float[1,5] p, float[1,5] q) "
        "{ a = MatMul(x, wa) b = MatMul(x, wb) p = Relu(a) q = Tanh(b) }",
        weights(wa=(600, 5), wb=(600, 5)),
    )
    kind = "2 MatMul of f32[1,600] by f32[600,5]"
    assert kinds_in(rows, Pipeline.of()) == {"combine-parallel-matmul": {kind: True}}
    choices = Choices.of(rows, Pipeline.of())
    (apart,) = (c for c in choices.all if c.merging)
    assert apart.name == f"combine-parallel-matmul: {kind}, apart" and not apart.merged
    assert products(rows, choices.made([])) == 1
    assert products(rows, choices.made([apart])) == 2


def test_names_of_choices() -> None:
    names = [c.name for c in Choices.of(branches(), Pipeline.of()).all]
    assert len(set(names)) == len(names)
    for name in (
        "without flatten-products", "with forward-fold-scale-axis",
        "with simplify-arithmetic{exact=false}", "with simplify-inference",
        "combine-parallel-matmul: every kind, merged", f"combine-parallel-matmul: {TWO}, merged",
    ):  # fmt: skip
        assert name in names
    canonical = [c.name for c in Choices.of(branches(), Pipeline.of("canonical")).all]
    assert "with forward-fold-scale-axis" not in canonical
    assert not any("parallel-matmul" in name for name in canonical)


def test_merging_kinds() -> None:
    choices = Choices.of(branches(), Pipeline.of())
    of = {c.name.partition(": ")[2]: c for c in choices.all if c.merging}
    assert products(branches(), choices.made([])) == 7
    assert products(branches(), choices.made([of[f"{THREE}, merged"]])) == 5
    assert products(branches(), choices.made([of["every kind, merged"]])) == 4


def test_passes_in_their_places() -> None:
    base = Pipeline.of()
    choices = Choices.of(branches(), base)
    of = {c.name: c for c in choices.all}
    assert choices.made([]) == base
    names = [p.name for p in choices.made([of["with forward-fold-scale-axis"]]).passes]
    assert names.index("forward-fold-scale-axis") == names.index("fold-bias") - 1
    wider = choices.made([of["with simplify-inference"]])
    assert len(wider.passes) == len(base.passes)
    (inference,) = (p for p in wider.passes if p.name == "simplify-inference")
    assert not inference.only_after_products  # type: ignore[attr-defined]
    names = [p.name for p in choices.made([of["without flatten-products"]]).passes]
    assert "flatten-products" not in names


def test_orders_of_folding() -> None:
    choices = Choices.of(branches(), Pipeline.of())
    of = {c.name: c for c in choices.all}
    for item in ("forward-fold-scale-axis", "fold-bias"):
        made = choices.made([of[f"{item} before backward-fold-scale-axis"]])
        names = [p.name for p in made.passes]
        assert names.index(item) == names.index("backward-fold-scale-axis") - 1
        assert names.count(item) == 1
    made = choices.made([of["with fold-constant{max_growth=0}"]])
    growths = {p.max_growth for p in made.passes if p.name == "fold-constant"}  # type: ignore[attr-defined]
    assert growths == {0} and len(made.passes) == len(Pipeline.of().passes)
    kept = [p.name for p in choices.made([of["without simplify-inference"]]).passes]
    assert "simplify-inference" not in kept


def test_no_order_where_nothing_is_folded() -> None:
    names = [c.name for c in Choices.of(branches(), Pipeline.of("training-safe")).all]
    assert not any("max_growth" in name or " before " in name for name in names)


def test_a_runtime_may_be_left_out() -> None:
    name = "without raise-for-onnxruntime"
    offered = Choices.of(branches(), Pipeline.of(for_="onnxruntime")).all
    assert name in [c.name for c in offered]
    assert name not in [c.name for c in Choices.of(branches(), Pipeline.of()).all]


def test_a_pass_without_its_neighbour_comes_last() -> None:
    choices = Choices(Pipeline.of(passes="remove-noops"), ())
    made = choices.made([Choice("with fold-bias", item="fold-bias", before="outline")])
    assert [p.name for p in made.passes] == ["remove-noops", "fold-bias"]


def test_what_decisions_are_about_is_told_without_addresses() -> None:
    first, second = described(Pipeline.of()), described(Pipeline.of())
    assert first == second != described(Pipeline.of("inference"))
    assert not any("0x" in text for text in first)


def test_a_check_is_known_by_its_kinds() -> None:
    assert OfKinds(frozenset({"a"})) == OfKinds(frozenset({"a"})) != OfKinds(frozenset({"b"}))
    assert callable(kind_of)
