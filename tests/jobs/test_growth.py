"""`default` makes no file larger and no model slower unasked; merging everywhere says what it costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import optimize, verify
from onnxgrad.errors import NotProved
from onnxgrad.jobs import growth as jobs
from onnxgrad.jobs.growth import Grown, Merged
from tests.rewriting import apply, model_of, weights

NORM = "g (float[2,4,5,5] x{more}) => (float[2,3,5,5] y) {{ a = Conv<pads=[1,1,1,1]>(x, w) y = BatchNormalization(a, s, b, m, v) }}"


def normalised(more: str = "", **changed: Any) -> onnx.ModelProto:
    constants = {
        **weights(w=(3, 4, 3, 3), s=(3,), b=(3,), m=(3,)),
        "v": np.array([1, 2, 3], np.float32),
    }
    return model_of(
        NORM.format(more=more),
        {k: np.asarray(v, np.float32) for k, v in {**constants, **changed}.items()},
    )


def test_a_batch_normalization_that_folds_goes() -> None:
    assert [b.op for b in apply(normalised()).block.bindings] == ["Conv"]


@pytest.mark.parametrize(
    "more", [", float[3] s", ", float[3] b", ", float[3] m", ", float[3] v", ", float[3,4,3,3] w"]
)
def test_one_whose_statistics_or_weights_a_caller_may_override_stays(more: str) -> None:
    assert [b.op for b in apply(normalised(more)).block.bindings] == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("preset", ["default", "inference"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("v", [-1e-5, 1, 1]), ("v", [-2, 1, 1]), ("s", [np.inf, 1, 1]), ("b", [np.nan, 1, 1])],
)
def test_one_whose_scale_or_shift_is_not_finite_stays(preset: str, name: str, value: Any) -> None:
    assert "BatchNormalization" in [
        b.op for b in apply(normalised(**{name: value}), preset=preset).block.bindings
    ]


def test_overridable_weights_leave_a_model_as_it_is(models_dir: Path) -> None:
    model = onnx.load(models_dir / "mobilenet_v2.raw.onnx")
    known = {i.name for i in model.graph.input}
    for t in model.graph.initializer:
        if t.name not in known:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
            )
    after = optimize(model, verify=False)
    counts = [sum(n.op_type == "BatchNormalization" for n in m.graph.node) for m in (model, after)]
    assert counts == [52, 52] and len(after.graph.node) < len(model.graph.node)


def test_folding_grows_no_file_by_more_than_a_twentieth() -> None:
    """A transposed weight is captured by both branches: folded, the file would hold it three times."""
    text = """g (bool k, float[8,64] x) => (float[8,64] y) { t = Transpose<perm=[1,0]>(w) h = MatMul(x, w)
      y = If (k) <then_branch = a () => (float[8,64] p) { t1 = Transpose<perm=[1,0]>(w) p = MatMul(x, t1) },
                  else_branch = b () => (float[8,64] q) { t2 = Transpose<perm=[1,0]>(w) r = MatMul(x, t2) q = Add(r, h) }> }"""
    model = model_of(text, weights(w=(64, 64)))
    for preset in ("clean", "default", "inference"):
        assert optimize(model, preset=preset, verify=False).ByteSize() <= 1.05 * model.ByteSize()
    model.graph.initializer.extend(
        model_of("g () => () {}", weights(z=(640, 640))).graph.initializer
    )
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["z"], ["sum"], keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("sum", 1, []))
    after = optimize(model, preset="clean", verify=False)
    assert model.ByteSize() < after.ByteSize() <= 1.05 * model.ByteSize(), (
        "in a large file there is room for a small one"
    )


SHARED = """g (float[1,256] x) => (float[1,256] y, float[1,256] z, float[1,256] u) {
  y = MatMul(x, w) z = MatMul(x, v) n = Neg(x) u = MatMul(n, w) }"""


def test_merging_everywhere_asks_before_it_grows_the_file() -> None:
    model = model_of(SHARED, weights(w=(256, 256), v=(256, 256)))
    with pytest.raises(
        Grown, match=r"grows the file by 262,1\d\d bytes \(50%\).*allow_growth=True"
    ) as raised:
        optimize(model, merge="always")
    assert isinstance(raised.value, NotProved) and raised.value.exit_code == 1
    with pytest.raises(Grown):
        optimize(model, preset="canonical")
    merged = optimize(model, merge="always", allow_growth=True)
    assert sum(n.op_type == "MatMul" for n in merged.graph.node) == 2 and verify(model, merged).ok
    assert optimize(model).ByteSize() <= model.ByteSize() * 1.001
    alone = model_of(
        SHARED.replace("u = MatMul(n, w)", "u = Abs(n)"), weights(w=(256, 256), v=(256, 256))
    )
    assert sum(n.op_type == "MatMul" for n in optimize(alone, merge="always").graph.node) == 1


def test_growth_by_other_passes_is_not_blamed_on_merging() -> None:
    """A folded shape is 16 of the file's 100 bytes, and nothing is merged."""
    model = model_of(
        "g (float[2,4] x) => (int64[1] y) { s = Shape(x) i = Constant <value_ints = [1]> () y = Gather(s, i) }"
    )
    for options in ({"merge": "always"}, {"preset": "canonical"}):
        nodes = optimize(model, **options).graph.node  # type: ignore[arg-type]
        assert "Shape" not in {n.op_type for n in nodes}


@pytest.mark.parametrize("preset", ["clean", "default", "inference", "canonical", "training-safe"])
def test_dead_functions_go(preset: str) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
      main (float[1,10] z) => (float[1,10] y) { y = my.used(z) }
      <domain: "my", opset_import: ["" : 21]> used (x) => (y) { y = Neg(x) }
      <domain: "my", opset_import: ["" : 21]> dead (x) => (y) { y = Identity(x) }"""
    assert [f.name for f in optimize(onnx.parser.parse_model(text), preset=preset).functions] == [
        "used"
    ]


# a pass, the bytes of the constants before and after it, and the growth from 100 bytes by then
STAGES = [
    ("other", 100, 500, 0),
    ("merge", 500, 700, 200),
    ("other", 700, 150, 50),
    ("merge", 150, 300, 200),
    ("merge", 300, 50, -50),
    ("other", 50, 900, 100),
]


def test_only_what_merging_adds_counts_and_no_more_than_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    known = {"size": 100}
    monkeypatch.setattr(jobs, "constant_bytes", lambda program: known["size"])
    passes = [SimpleNamespace(name="merge", merge="always"), SimpleNamespace(name="other")]
    merged = Merged(SimpleNamespace(passes=passes), None, seen.append, None)  # type: ignore[arg-type]
    for name, before, after, growth in STAGES:
        known["size"] = before
        merged.stage(name)
        known["size"] = after
        merged.fired(name, None)  # type: ignore[arg-type]
        assert merged.growth() == growth
    assert seen == [name for name, *_ in STAGES]
