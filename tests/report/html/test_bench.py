"""What the page says of measured models."""

from __future__ import annotations

from onnxgrad.report.html.bench import bench_report
from onnxgrad.report.parts import table
from onnxgrad.verify.bench import BenchReport, Spread, Timing


def report(**refused: str) -> BenchReport:
    one, half = Spread(1.0, 0.9, 1.1), Spread(0.5, 0.4, 0.6)
    timings = (Timing("m", one, one, one, one, 3), Timing("n", half, half, half, half, 3))
    return BenchReport(timings, refused, "cpu", 2, {"batch": 4})


def test_times_and_ratios_come_first() -> None:
    found = bench_report(report(), table(), None, [])
    assert found["title"] == "m, n" and found["verdict"]["word"] == "measured"
    assert found["verdict"]["text"] == "on cpu, 2 threads, batch=4"
    assert [(c["label"], c["value"], c["tone"]) for c in found["cards"]] == [
        ("m", "1e+03 ms", "plain"),
        ("n", "500 ms", "good"),
    ]
    assert [r["value"] for r in found["sections"][0]["rows"]] == [1.0, 0.5]


def test_what_was_required_is_the_verdict() -> None:
    assert bench_report(report(), table(), 0.6, [])["verdict"]["word"] == "held"
    slow = bench_report(report(), table(), 0.4, ["n takes too long"])["verdict"]
    assert (slow["word"], slow["tone"], slow["notes"]) == (
        "too slow",
        "bad",
        [["n takes too long", "bad"]],
    )
    none = bench_report(report(o="no such operator"), table(), None, [])["verdict"]
    assert none["word"] == "not run" and none["notes"] == [
        ["o does not run: no such operator", "bad"]
    ]
