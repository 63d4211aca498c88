"""The table of what tuning decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnxgrad.jobs.tuning.measure import LATE
from onnxgrad.report.parts import Part, cell, line, table
from onnxgrad.wording import counted

_UNDECIDED = 6  # rows of choices that were not kept, without -v


def tuning_parts(data: Mapping[str, Any] | None, verbose: bool = False) -> Iterator[Part]:
    """Each decision with its time over that of what was kept before, and the whole; nothing where
    nothing was decided.
    """
    if data is None:
        return
    yield ""
    decisions = data["decisions"]
    measured = [d for d in decisions if d["kept"] or d["ratio"] is not None]
    others = sorted((d for d in measured if not d["kept"]), key=lambda d: d["ratio"] or 1.0)
    shown = [d for d in measured if d["kept"]] + others[: None if verbose else _UNDECIDED]
    made = table("choice", ">time", ">spread", "decision")
    for d in [*shown, *([data["total"]] if data.get("total") else [])]:
        style = "green" if d["kept"] else "dim"
        ratio, spread = d["ratio"], d["spread"]
        made.add_row(
            cell(d["choice"]),
            "" if ratio is None else f"{ratio:.3f}",
            "" if spread is None else f"± {spread:.3f}",
            cell("kept" if d["kept"] else d.get("why") or "not beyond the noise", style),
        )
    where = f"{data['provider']}, {counted(data['threads'], 'thread')}"
    if made.rows:
        yield made
    kept = sum(d["kept"] for d in decisions)
    late = sum(d.get("why") == LATE for d in decisions)
    more = f", {late} not measured for want of time" if late else ""
    yield line(
        f"{kept} of {counted(len(decisions), 'choice')} kept, measured on {where}{more}", "dim"
    )
