"""The plots of a page: rows of numbers with their bounds, and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.report.html.graph import shown
from onnxgrad.report.html.page import Section, section
from onnxgrad.report.proof import place_text
from onnxgrad.verify import Difference, Report
from onnxgrad.verify.bench import BenchReport
from onnxgrad.wording import counted


def differences(report: Report) -> Section | None:
    """Returns the worst difference of each output in each check, and its tolerance; None if nothing
    was compared.
    """
    rows = [_difference(d) for d in report.differences if not d.output.startswith("(")]
    if not rows:
        return None
    rows.sort(key=lambda row: -row.pop("ratio"))
    return section(
        "rows",
        "Differences",
        note="The worst difference of each output, relative to its largest value, and the "
        "allowed difference.",
        scale="log",
        unit="",
        rows=rows,
    )


def _difference(d: Difference) -> dict[str, Any]:
    value, allowed = _finite(d.rel), _finite(d.tolerance)
    ratio = value / allowed if value is not None and allowed else 0.0 if d.ok else math.inf
    return {
        "label": shown(d.output),
        "value": value,
        "bound": allowed,
        "ok": d.ok,
        "check": d.check,
        "note": shown(place_text(d)),
        "ratio": min(ratio, 1e300),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def gradient_errors(check: GradientReport) -> Section | None:
    """Returns the error of each checked value, and the allowed error; None if no value was
    checked.
    """
    judged = sorted((v for v in check.values if v.judged), key=lambda v: -v.error)
    rows = [
        {
            "label": shown(v.name),
            "value": _finite(v.error),
            "bound": check.allowed(v),
            "ok": not check.is_wrong(v),
            "note": shown(f"{v.gradient:.6g} against {v.difference:.6g}"),
        }
        for v in judged
    ]
    note = "Gradients in several directions against central differences, relative to their scale."
    return section("rows", "Errors", note=note, scale="log", unit="", rows=rows) if rows else None


def choices(data: Mapping[str, Any] | None) -> Section | None:
    """Returns the measurements of `--tune`: the time of each choice over that of the pipeline
    before it.
    """
    if data is None:
        return None
    decided = [*data["decisions"], *([data["total"]] if data.get("total") else [])]
    rows = [_choice(d) for d in decided if d["ratio"] is not None]
    where = f"{data['provider']}, {counted(data['threads'], 'thread')}"
    note = f"The time of each choice over that of the pipeline before it, on {where}."
    return latency(rows, note) if rows else None


def _choice(decision: Mapping[str, Any]) -> dict[str, Any]:
    kept, ratio, spread = bool(decision["kept"]), decision["ratio"], decision["spread"] or 0.0
    why = "kept" if kept else decision.get("why") or "not beyond the noise"
    return ratio_row(decision["choice"], ratio, ratio - spread, ratio + spread, why) | {"ok": kept}


def bench(report: BenchReport) -> Section | None:
    """Returns the measured models: wall time over that of the first, with its quartiles."""
    rows = []
    for t in report.timings:
        ratio = t.wall_ratio
        times = f"{1000 * t.wall.median:.3g} ms wall, {1000 * t.cpu.median:.3g} ms CPU"
        rows.append(ratio_row(t.name, ratio.median, ratio.low, ratio.high, times))
    note = f"Wall time over that of the first model, on {report.provider}."
    return latency(rows, note) if rows else None


def ratio_row(label: str, value: float, low: float, high: float, note: str) -> dict[str, Any]:
    """Returns a ratio of times with its bounds; at most 1 is good."""
    bounds = {"value": value, "low": low, "high": high}
    return {"label": shown(label), **bounds, "ok": value <= 1, "note": shown(note)}


def latency(rows: Sequence[Mapping[str, Any]], note: str) -> Section:
    """Returns ratios of time; below 1 is faster."""
    return section("rows", "Latency", note=note, scale="ratio", unit="×", rows=list(rows))
