"""What the page says of models whose latency was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.report.html.graph import shown
from onnxgrad.report.html.plots import bench
from onnxgrad.report.html.summary import card, noted, verdict
from onnxgrad.report.html.tables import Section, table_section
from onnxgrad.report.parts import Table
from onnxgrad.verify.bench import BenchReport
from onnxgrad.wording import counted


def bench_report(
    found: BenchReport, rows: Table, require: float | None, missed: Sequence[str]
) -> dict[str, Any]:
    """A report of the page; `rows` as the command shows them, `missed`: in a line each which models
    take longer than the ratio that was required.
    """
    bad = bool(missed or found.refused)
    said = verdict(
        "bad" if bad else "plain" if require is None else "good",
        "too slow" if missed else "not run" if bad else "measured" if require is None else "held",
        shown(
            f"on {found.provider}, {counted(found.threads, 'thread')}"
            + "".join(f", {name}={size}" for name, size in found.dims.items())
        ),
    )
    refused = [f"{name} does not run: {why}" for name, why in found.refused.items()]
    noted(said, [*missed, *refused], "bad")
    cards = [
        card(
            shown(t.name),
            f"{1000 * t.wall.median:.3g} ms",
            f"{t.wall_ratio.median:.3f} × of the first, in CPU time {t.cpu_ratio.median:.3f} ×"
            if i
            else f"{1000 * t.cpu.median:.3g} ms CPU",
            "plain" if not i else "good" if t.wall_ratio.median <= 1 else "more",
        )
        for i, t in enumerate(found.timings)
    ]
    sections: list[Section | None] = [bench(found), table_section("Times", rows, rows.title)]
    return {
        "title": shown(", ".join([*(t.name for t in found.timings), *found.refused])),
        "what": "bench",
        "verdict": said,
        "cards": cards,
        "sections": [s for s in sections if s is not None],
    }
