"""What the page says of two models that were compared, and of one that was looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.stats import stats_of
from onnxgrad.report.html.changes import compared
from onnxgrad.report.html.graph import Drawn, shown
from onnxgrad.report.html.optimized import operators
from onnxgrad.report.html.summary import card, changed_card, verdict
from onnxgrad.report.html.tables import section, table_section, tables_of
from onnxgrad.report.parts import Table, bytes_text, number

if TYPE_CHECKING:
    from onnxgrad.report.diff import Diff
    from onnxgrad.report.summary import Summary

_TONES = {"removed": "red", "added": "green"}
# what the tables of a summary are, by the name of their first column
_TABLES = {"": "Interface", "operator": "Operators"}


def diff_report(found: Diff, titles: dict[str, str], a: ModelLike, b: ModelLike) -> dict[str, Any]:
    """A report of the page on two models; `titles` are those of the kinds of difference. Raises
    InputError for a model that does not load.
    """
    programs = [load(model) for model in (a, b)]
    before, after = (stats_of(to_proto(p)) for p in programs)
    names = [shown(p.path.name if p.path else p.main.name) for p in programs]
    kinds = [(title, getattr(found, kind), _TONES.get(kind, "")) for kind, title in titles.items()]
    groups = [
        [title, [shown(text) for text in lines], tone] for title, lines, tone in kinds if lines
    ]
    graphs = compared(Drawn(programs[0]), Drawn(programs[1]))
    count = sum(len(lines) for _, lines, _ in groups)
    sections = [section("graph", "Graph", names=["A", "B"], graphs=graphs)]
    if groups:
        sections.append(section("list", "Differences", groups=groups))
    return {
        "title": f"{names[0]} → {names[1]}",
        "what": "diff",
        "verdict": verdict("good", "the same", "")
        if found.same
        else verdict("plain", f"{number(count)} difference{'s' * (count != 1)}", ""),
        "cards": [
            changed_card("nodes", before.nodes, after.nodes, number),
            changed_card("file size", before.bytes, after.bytes, bytes_text),
            changed_card("parameters", before.parameters, after.parameters, number),
        ],
        "sections": [*sections, operators(before, after)],
    }


def model_report(found: Summary, model: ModelLike) -> dict[str, Any]:
    """A report of the page on one model. Raises InputError when it does not load."""
    stats = found.stats
    opsets = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in found.opsets.items())
    return {
        "title": shown(found.model),
        "what": "inspect",
        "verdict": verdict("plain", "", ""),
        "cards": [
            card("nodes", number(stats.nodes)),
            card("file size", bytes_text(stats.bytes)),
            card("parameters", number(stats.parameters)),
            card("opset", shown(opsets), f"IR version {found.ir_version}"),
        ],
        "sections": [
            section("graph", "Graph", names=["model"], graphs=[Drawn(load(model)).to_dict()]),
            *(table_section(_title(t), t) for t in tables_of(found.parts(verbose=True))),
        ],
    }


def _title(found: Table) -> str:
    if not found.columns:
        return "About it"
    name = found.columns[0]
    return _TABLES.get(name, name.capitalize())
