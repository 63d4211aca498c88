"""The pages of `diff`, `inspect` and `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.report.html.graph import Drawn, compared, shown
from onnxgrad.report.html.optimized import operators
from onnxgrad.report.html.page import (
    Section,
    card,
    changed_card,
    noted,
    section,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import bench
from onnxgrad.report.parts import Table, bytes_text, file_names, number
from onnxgrad.verify.bench import BenchReport
from onnxgrad.wording import counted

if TYPE_CHECKING:
    from onnxgrad.report.diff import Diff
    from onnxgrad.report.inspection import Summary


_TONES = {"removed": "red", "added": "green"}
# what the tables of a summary are, by the name of their first column
_TABLES = {"": "Interface", "operator": "Operators"}


def diff_report(found: Diff, titles: dict[str, str], a: ModelLike, b: ModelLike) -> dict[str, Any]:
    """A report of the page on two models; `titles` are those of the kinds of difference. Raises
    InputError for a model that does not load.
    """
    programs = [load(model) for model in (a, b)]
    before, after = (stats_of(to_proto(p)) for p in programs)
    names = list(map(shown, file_names([p.path or p.main.name for p in programs])))
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
