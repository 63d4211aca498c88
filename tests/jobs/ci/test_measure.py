"""A latency misses its bound only beyond its quartiles and twice; equal files are not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.jobs.ci.declarations import CiOptions
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.ci.run import ci
from onnxgrad.verify.bench import BenchReport, Spread, Timing
from tests.helpers import parse

SMALL = "g (float[N] x) => (float[N] y) { y = Relu(x) }"


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`timed(model, bound, *ratios)`: the report of a model, and the number of measurements, which
    find these ratios (median, low, high) in turn.
    """

    def call(text: str, bound: str, *ratios: tuple[float, float, float]) -> tuple[CiReport, int]:
        onnx.save(parse(text), tmp_path / "m.onnx")
        onnx.save(parse(SMALL), tmp_path / "old.onnx")
        (tmp_path / "r.toml").write_text(
            f'require.latency = "{bound}"\nverify.seeds = [0]\n[ci]\nmodels = ["m.onnx"]\n'
        )
        left = list(ratios)

        def bench(*_: object, **__: object) -> BenchReport:
            ratio = Spread(*left.pop(0))
            times = [Timing(name, ratio, ratio, ratio, ratio, 1) for name in ("input", "result")]
            return BenchReport(tuple(times), {}, "cpu", 1, {}, 1)

        monkeypatch.setattr("onnxgrad.jobs.ci.measure.bench", bench)
        report = ci(CiOptions(recipe=tmp_path / "r.toml"))
        return report, len(ratios) - len(left)

    return call


FAST, SLOW, NEAR = (0.5, 0.4, 0.6), (2.0, 1.9, 2.1), (0.93, 0.88, 0.98)


@pytest.mark.parametrize(
    ("bound", "ratios", "held", "ratio"),
    [
        ("<= 0.9", [FAST], True, 0.5),
        ("<= 0.9", [NEAR], True, 0.93),
        ("<= 0.9", [SLOW, NEAR], True, 0.93),
        ("<= 0.9", [SLOW, SLOW], False, 2.0),
        ("<= 0.9 of old.onnx", [SLOW, FAST], True, 0.5),
    ],
)
def test_a_bound_is_missed_only_twice_beyond_the_quartiles(
    timed: Any, bound: str, ratios: list[Any], held: bool, ratio: float
) -> None:
    text = "g (float[N] x) => (float[N] y) { a = Identity(x) b = Neg(a) y = Relu(b) }"
    report, measured = timed(text, bound, *ratios)
    (model,) = report.models
    assert measured == len(ratios) and report.ok == held
    assert model.result.latency.ratio == ratio
    if not held:
        limit = bound.removeprefix("<= ")
        assert f"2.00 latency (quartiles 1.90 to 2.10), not <= {limit}" in model.error
        assert "missed: required latency <= 0.9, found 2.00, allowed 0.90" in str(report)


@pytest.mark.parametrize("bound", ["<= 1", "<= 1 of old.onnx"])
def test_files_of_the_same_bytes_are_not_measured(timed: Any, bound: str) -> None:
    report, measured = timed(SMALL, bound)
    (model,) = report.models
    assert report.ok and measured == 0
    assert model.result.latency.to_dict() == {
        "against": bound.removeprefix("<= 1").removeprefix(" of ") or "input",
        "ratio": 1.0,
        "low": 1.0,
        "high": 1.0,
        "clock": "CPU",
    }
