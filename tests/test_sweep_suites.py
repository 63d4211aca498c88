"""scripts/sweep_suites.py and its checks find planted faults, and raise no alarm beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import op, temporary_rules, vjp
from scripts.sweep_suites import judged
from scripts.sweeping.own_checks import by_rows, cases, compared, differentiated, opened, same
from tests.helpers import parse

MODEL = parse("g (float[N,3] x, int64[2] i) => (float[N,2] y) { t = Tanh(x) y = Gather<axis=1>(t, i) }")  # fmt: skip


def test_a_wrong_model_differs_and_another_order_of_nodes_does_not() -> None:
    other = parse("g (float[N,3] x, int64[2] i) => (float[N,2] y) { s = Gather<axis=1>(x, i) y = Tanh(s) }")  # fmt: skip
    assert compared(MODEL, other) == ""
    wrong = parse("g (float[N,3] x, int64[2] i) => (float[N,2] y) { y = Gather<axis=1>(x, i) }")
    assert "y differs at {'x': (3, 3), 'i': (2,)}" in compared(MODEL, wrong)


def test_feeds_reach_sizes_signs_and_negative_indices() -> None:
    feeds = [feeds for feeds, _ in cases(MODEL)]
    assert {len(f["x"]) for f in feeds} == {3, 1, 5, 0}
    assert min(f["i"].min() for f in feeds) < 0 < max(np.abs(f["x"]).max(initial=0) for f in feeds)


def test_values_of_other_shapes_dtypes_and_integers_are_not_the_same() -> None:
    x = np.float32([1, 2, np.nan])
    assert same(x * np.float32(1.00001), x) and same([x, x], [x, x])
    assert not same(x * np.float32(1.01), x) and not same(x[:2], x) and not same([x], [x, x])
    assert not same(x.astype(np.float64), x) and not same(np.int64([1, 3]), np.int64([1, 2]))
    assert not same(np.float32([1, 2, 3]), x)


def test_a_wrong_gradient_is_found() -> None:
    assert differentiated(MODEL, 60.0) == ""
    with temporary_rules():
        vjp("Tanh", lambda g, y, x: g * (1.0 - op.Abs(y)), replace=True)
        assert "differences" in (differentiated(MODEL, 60.0) or "")


def test_no_gradient_is_judged_at_kinks_and_jumps() -> None:
    kinks = parse("g (float[1] x) => (float[1] y) { z = Sub(x, x) y = Relu(z) }")
    assert differentiated(kinks, 60.0) in ("", None)
    jumps = parse("g (float[9] x) => (float[9] y) { y = Floor(x) }")
    with pytest.warns(UserWarning, match="all gradients are zero"):
        assert differentiated(jumps, 60.0) == ""


def test_rows_that_depend_on_each_other_are_found() -> None:
    alone, mixed = (parse(f"g (float[N,3] x) => (float[N,3] y) {{ y = Softmax <axis = {a}> (x) }}") for a in (1, 0))  # fmt: skip
    parts = (np.concatenate, lambda name, y, i, n: np.split(y, n)[i])
    assert by_rows(alone, alone, ["x"], *parts) == ""
    assert "y, part 0" in (by_rows(mixed, mixed, ["x"], *parts) or "")


def test_the_batch_of_a_result_may_be_on_another_axis() -> None:
    turned = parse("g (float[1,3] x) => (float[3,1] y) { y = Transpose <perm = [1, 0]> (x) }")
    assert opened(turned, 60.0) == ""


def test_outcomes_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(MODEL, path)
    assert judged("optimize", path) == ("equal", "")

    def crash(model: onnx.ModelProto, **options: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(onnxgrad, "optimize", crash)
    assert judged("optimize", path) == ("error", "ZeroDivisionError: planted")
    onnx.save(parse("g (float[2] x) => (float[3] y) { y = Nothing(x) }"), path)
    assert judged("optimize", path)[0] == "not runnable"
