"""What the page says of rewriting: the laws with their places, and the passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.passes.base import PASSES
from onnxgrad.pipeline.pipeline import PassResult
from onnxgrad.report.html.graph import shown
from onnxgrad.report.html.tables import Section, section
from onnxgrad.rewrite.trace import Firing, Trace
from onnxgrad.verify import Report


def rewrites(
    trace: Trace, report: Report | None, singly: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """What a section of graphs knows of their rewrites; `singly`: by number what is known of one
    alone, beside the proof of the whole model.
    """
    laws = list(dict.fromkeys((f.rule, f.pass_name) for f in trace.firings))
    place = {law: i for i, law in enumerate(laws)}
    bounds: dict[tuple[str, str], dict[str, None]] = {}
    for i in trace.inexact:
        bounds.setdefault((i.rule, i.where), {})[i.reason] = None
    known = singly or {}

    def proof(f: Firing) -> str:
        return "; ".join(filter(None, (known.get(f.number), *bounds.get((f.rule, f.where), ()))))

    return {
        "laws": [[shown(rule), shown(name), _law(trace, rule, name)] for rule, name in laws],
        "rewrites": [
            [place[f.rule, f.pass_name], shown(f.where), shown(proof(f))] for f in trace.firings
        ],
        "whole": "" if report is None else f"with the whole model: {shown(report.summary)}",
    }


def passes(trace: Trace, ran: Sequence[PassResult]) -> Section:
    """How often each pass fired, and by which laws."""
    did: dict[str, Counter[str]] = {}
    for f in trace.firings:
        did.setdefault(f.pass_name, Counter())[f.rule] += 1
    rows = [
        [shown(name), laws.total(), [[shown(law), n] for law, n in laws.most_common()]]
        for name, laws in did.items()
    ]
    idle = [shown(p.name) for p in ran if not p.firings]
    return section("passes", "Passes", rows=rows, idle=idle)


def places(trace: Trace) -> Section | None:
    """The laws with their places, where no graph shows them; None without rewrites."""
    found: dict[tuple[str, str], list[str]] = {}
    for f in trace.firings:
        found.setdefault((f.rule, f.pass_name), []).append(shown(f"{f.number}  {f.where}"))
    groups = []
    for (rule, name), lines in sorted(found.items(), key=lambda item: -len(item[1])):
        law = _law(trace, rule, name)
        groups.append([shown(f"{rule}: {law}" if law else rule), lines, ""])
    return section("list", "Rewrites", note=_ALONE, groups=groups, open=0) if groups else None


_ALONE = (
    "By law, with their places. No result was written, so no graph stands here; `onnxgrad optimize "
    "MODEL --dry-run --html FILE` draws it."
)


def _law(trace: Trace, rule: str, pass_name: str) -> str:
    """The equation of a rule, else what its pass says of itself."""
    counts = trace.counts.get(rule)
    said = counts.law if counts is not None else ""
    return shown(said or (PASSES[pass_name].law() if pass_name in PASSES else ""))
