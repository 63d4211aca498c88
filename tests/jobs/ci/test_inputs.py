"""What `ci` says of an input that changed, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad.jobs.ci.inputs import Changed, changed, input_of
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.results import in_form
from tests.helpers import parse

TEXT = """g (float[N,8] x) => (float[N,6] y)
  <float[6] bias = {1,2,3,4,5,6}, float[1] threshold = {0.3}> {
    half = Constant<value_float = 0.5>()  s = Mul(x, half)  p = MatMul(s, fc_weight)
    q = Add(p, bias)  r = Max(q, threshold)  y = ThresholdedRelu<alpha = 0.1>(r) }"""
WEIGHT = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
Edit = Callable[[ModelProto], object]
RECIPE = """allow_unproved = true
[verify]
run = false
[ci]
models = ["m.onnx"]
out = "build"
"""


def model(
    weight: np.ndarray = WEIGHT, name: str = "fc_weight", **tensors: list[float]
) -> ModelProto:
    made = parse(TEXT.replace("fc_weight", name))
    for tensor in made.graph.initializer:
        if tensor.name in tensors:
            value = np.array(tensors[tensor.name], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    made.graph.initializer.append(numpy_helper.from_array(weight, name))
    return made


def seen(now: ModelProto, before: ModelProto | None = None) -> Changed:
    """What changed, by way of the lock."""
    old, new = (input_of(m, None) for m in (before or model(), now))
    return changed(old, new, (now, None), "no file")


def with_row(value: float) -> np.ndarray:
    found = WEIGHT.copy()
    found[2] = value
    return found


def node(op: str, edit: Callable[[onnx.NodeProto], object]) -> ModelProto:
    made = model()
    edit(next(n for n in made.graph.node if n.op_type == op))
    return made


def swapped(n: onnx.NodeProto) -> None:
    n.input[:] = reversed(n.input)


def with_header(**values: object) -> ModelProto:
    made = model()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def opset(version: int) -> ModelProto:
    made = model()
    made.opset_import[0].version = version
    return made


@pytest.mark.parametrize(
    ("now", "summary", "error"),
    [
        (model(with_row(np.nan)), "1 of 1 weight (fc_weight)", "6 values became NaN or infinite"),
        (model(with_row(np.inf)), "1 of 1 weight (fc_weight)", "6 values became NaN or infinite"),
        (model(with_row(0)), "1 of 1 weight (fc_weight)", "fc_weight: 1 row or column became all"),
        (model(WEIGHT * 0), "1 of 1 weight (fc_weight)", "fc_weight became all zero"),
        (model(bias=[0] * 6), "bias 1.0 2.0 3.0 4.0 5.0 6.0 → 0.0", "bias became all zero"),
        (model(threshold=[0.0]), "threshold 0.3 → 0.0", "threshold became all zero"),
        (model(threshold=[0.7]), "threshold 0.3 → 0.7", ""),
        (model(WEIGHT.astype(np.float16).astype(np.float32)), "1 of 1 weight (fc_weight)", ""),
        (model(-WEIGHT), "1 of 1 weight (fc_weight)", ""),
        (
            node("ThresholdedRelu", lambda n: setattr(n.attribute[0], "f", 0.2)),
            "nodes (ThresholdedRelu)",
            "",
        ),
        (node("Constant", lambda n: setattr(n.attribute[0], "f", 0.0)), "half 0.5 → 0.0", "half"),
        (node("MatMul", swapped), "nodes", ""),
        (node("ThresholdedRelu", lambda n: n.ClearField("attribute")), "nodes", ""),
        (opset(21), "opset 20 → 21", ""),
        (with_header(producer_name="other"), "producer", ""),
        (with_header(doc_string="other"), "only names, metadata or descriptions", ""),
        (model(name="renamed"), "only names, metadata or descriptions", ""),
        (model(-WEIGHT, "renamed"), "1 of 1 weight (renamed)", ""),
        (model(np.ones((8, 1), np.float32)), "1 of 1 weight (fc_weight)", ""),
    ],
)
def test_a_change_is_named(now: ModelProto, summary: str, error: str) -> None:
    found = seen(now)
    assert found.summary.startswith("the input changed: ") and summary in found.summary
    assert bool(found.errors) is bool(error) and error in "; ".join(found.errors)
    only_names = summary.startswith("only names")
    assert bool(found.changes) is not only_names


def test_changes_are_shown_with_norms_and_values() -> None:
    shown = {c.what: (c.before, c.after) for c in seen(model(2 * WEIGHT, threshold=[0.7])).changes}
    assert list(shown) == ["weights.threshold", "weights.fc_weight"]
    assert shown["weights.threshold"] == ("0.3", "0.7")
    before, after = shown["weights.fc_weight"]
    norm = np.linalg.norm(WEIGHT)
    assert before == f"norm {norm:.4g}" and after == f"norm {2 * norm:.4g} (+100 %)"
    relu = node("ThresholdedRelu", lambda n: setattr(n.attribute[0], "f", 0.2))
    (attribute,) = seen(relu).changes
    assert (attribute.before, attribute.after) == ("alpha=0.1", "alpha=0.2")
    near = node("ThresholdedRelu", lambda n: setattr(n.attribute[0], "f", 0.1 + 1e-8))
    (attribute,) = seen(near).changes  # the same in 7 digits
    assert (attribute.before, attribute.after) == ("as locked", "other attributes")
    other = seen(node("ThresholdedRelu", lambda n: setattr(n, "op_type", "Relu"))).changes
    assert [(c.what, c.before, c.after) for c in other] == [
        ("nodes.Relu", None, 1),
        ("nodes.ThresholdedRelu", 1, None),
    ]


def run(folder: Path, given: ModelProto, recipe: str = RECIPE, **options: object) -> CiReport:
    onnx.save(given, folder / "m.onnx")
    (folder / "r.toml").write_text(recipe)
    return onnxgrad.ci(folder / "r.toml", **options)


def only(report: CiReport) -> ModelOutcome:
    (found,) = report.models
    return found


def test_the_deployed_file_is_replaced_only_when_accepted(tmp_path: Path) -> None:
    assert run(tmp_path, model(), update=True).ok
    assert not only(run(tmp_path, model())).input_summary
    lock = json.loads((tmp_path / "r.lock.json").read_text())
    line = lock["models"]["m.onnx"]["input"]["weights"]["fc_weight"]
    assert line.startswith("f32[8,6] ") and len(line) <= 100

    moved = only(run(tmp_path, model(with_row(0.5))))
    assert (moved.status, moved.exit_code) == ("unproved", 0)
    assert "; 6 of 48 values differ, by at most" in moved.input_changes[0].after
    assert (tmp_path / "build" / "m.onnx").is_file()

    for options in ({}, {"update": True}):
        report = run(tmp_path, model(with_row(np.nan)), **options)
        bad = only(report)
        assert "by at most 0" not in str(report)
        assert (bad.status, bad.exit_code, bad.output) == ("failed", 1, None)
        assert bad.error.endswith(
            'fc_weight: 6 values became NaN or infinite; weights = "may change" accepts that'
        )
        assert not (tmp_path / "build" / "m.onnx").exists()
        for form in ("text", "markdown", "page", "junit"):
            assert "6 values became NaN or infinite" in in_form(form, report)
    free = 'require = { weights = "may change" }\n' + RECIPE
    assert only(run(tmp_path, model(with_row(np.nan)), free)).exit_code == 0


def test_weights_that_must_stay(tmp_path: Path) -> None:
    held = 'require = { weights = "== baseline" }\n' + RECIPE
    first = only(run(tmp_path, model(), held))
    assert first.exit_code == 1 and "it has no baseline" in first.error
    assert run(tmp_path, model(), held, update=True).ok
    assert run(tmp_path, model(), held).ok
    assert run(tmp_path, opset(21), held).ok  # not a weight
    bad = only(run(tmp_path, model(threshold=[0.7], bias=[6, 5, 4, 3, 2, 1]), held))
    assert bad.status == "failed" and "weights changed: threshold, bias" in bad.error
    assert run(tmp_path, model(threshold=[0.7]), held, update=True).ok


def test_outputs_that_became_infinite(tmp_path: Path) -> None:
    """Half of the values of Sqrt are NaN after a constant has changed."""
    recipe = '[verify]\nchecks = ["onnxruntime"]\n[ci]\nmodels = ["m.onnx"]\n'

    def shifted(by: float) -> ModelProto:
        return parse(f"""g (float[N,8] x) => (float[N,8] y) <float k = {{{by}}}> {{
            a = Sigmoid(x)  b = Add(a, k)  y = Sqrt(b) }}""")

    assert run(tmp_path, shifted(1.0), recipe, update=True).ok
    found = only(run(tmp_path, shifted(-0.5), recipe))
    assert found.status == "failed" and "y became NaN or infinite" in found.error
    free = 'require = { weights = "may change" }\n' + recipe
    assert run(tmp_path, shifted(-0.5), free, update=True).ok
    assert run(tmp_path, shifted(-0.5), recipe).ok


PROVED = '[verify]\nchecks = ["onnxruntime"]\n[ci]\nmodels = ["m.onnx"]\n'


@pytest.mark.parametrize(
    ("given", "lint", "words"),
    [
        (lambda: model(with_row(np.nan)), "nan-weights", "6 numbers are NaN in weight 'fc_weight'"),
        (lambda: model(0 * WEIGHT), "zero-weights", "weight 'fc_weight' is all zero"),
    ],
)
def test_a_new_model_with_useless_values_is_refused(
    tmp_path: Path, given: Callable[[], ModelProto], lint: str, words: str
) -> None:
    """With a lock or without, and by an update too; a recipe accepts it in two ways."""
    bad = only(run(tmp_path, given(), PROVED, update=True))
    assert (bad.status, bad.exit_code) == ("failed", 1) and words in bad.error
    assert f'does not know this model: lint = {{ {lint} = "warn" }} accepts' in bad.error
    warned = f'[lint]\n{lint} = "warn"\n' + PROVED
    assert only(run(tmp_path, given(), warned)).exit_code == 0
    free = 'require = { weights = "may change" }\n' + PROVED
    assert run(tmp_path, given(), free, update=True).ok
    known = only(run(tmp_path, given(), PROVED, all=True))  # accepted once, it stays a warning
    assert known.status == "passed" and [f.level for f in known.lints if f.lint == lint] == ["warn"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N,8] x) => (float[N,8] y) { n = Neg(x) y = Sqrt(n) }",
        "g (float[N,3] x) => (float[N,3] y) <float[3] cap = {1, 2, inf}> { y = Min(x, cap) }",
    ],
)
def test_what_may_be_meant_is_no_fault_of_a_new_model(tmp_path: Path, text: str) -> None:
    """Generated inputs need not be in the model's domain, and masks and bounds hold infinities."""
    found = only(run(tmp_path, parse(text), PROVED, update=True))
    assert found.exit_code == 0 and [lint.level for lint in found.lints] == ["warn"]


def test_a_level_of_the_recipe_is_no_judgement_of_a_new_model(tmp_path: Path) -> None:
    recipe = '[lint]\nunread-inputs = "error"\n' + PROVED
    unread = parse("g (float[N,8] x, float[N] z) => (float[N,8] y) { y = Neg(x) }")
    bad = only(run(tmp_path, unread, recipe))
    assert bad.status == "failed" and "nothing reads input 'z'" in bad.error
    assert "does not know" not in bad.error


def test_nodes_and_interface_that_must_stay(tmp_path: Path) -> None:
    """The same number of nodes is not enough, and changed outputs are named."""
    held = 'require = { nodes = "== baseline", interface = "== baseline" }\n' + RECIPE

    def steep(n: onnx.NodeProto) -> None:
        n.attribute[0].f = 0.3

    assert run(tmp_path, model(), held, update=True).ok
    assert run(tmp_path, model(2 * WEIGHT), held).ok and run(tmp_path, opset(21), held).ok
    for changed_model, words in (
        (node("ThresholdedRelu", steep), "nodes (ThresholdedRelu)"),
        (node("Max", lambda n: setattr(n, "op_type", "Min")), "nodes (Max, Min)"),
        (node("Mul", swapped), "nodes (other connections)"),
    ):
        bad = only(run(tmp_path, changed_model, held))
        assert bad.status == "failed" and f"the input changed: {words}" in bad.error
        assert run(tmp_path, changed_model, RECIPE).ok
    fixed = model()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    bad = only(run(tmp_path, fixed, held))
    assert "inputs changed: x f32[N,8] → x f32[1,8]" in bad.error
    assert run(tmp_path, fixed, held, update=True).ok
