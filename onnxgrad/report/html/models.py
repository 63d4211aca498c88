"""The pages of `diff`, `inspect` and `bench`."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.inspection.contents import Summary
from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.report.diff import STYLES, TITLES
from onnxgrad.report.html.graph import Drawn, compared, shown
from onnxgrad.report.html.optimized import operators
from onnxgrad.report.html.page import (
    card,
    lint_notes,
    noted,
    page,
    report_data,
    section,
    size_cards,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import bench
from onnxgrad.report.inspection import summary_parts
from onnxgrad.report.parts import Table, bytes_text, file_names, number
from onnxgrad.verify.bench import BenchReport
from onnxgrad.wording import counted

# the titles of a summary's tables, by the name of their first column
_TABLES = {"facts": "Summary", "": "Interface", "operator": "Operators"}


def diff_page(found: Diff) -> str:
    """Returns the page of two models. Raises InputError if one does not load, although `diff`
    accepts it.
    """
    if found.models is None:
        raise InputError("this Diff has no models: only a Diff from onnxgrad.diff has a page")
    programs = [load(model) for model in found.models]
    before, after = (stats_of(to_proto(p)) for p in programs)
    groups = [
        [title, list(map(shown, lines)), STYLES.get(kind, "")]
        for kind, title in TITLES.items()
        if (lines := getattr(found, kind))
    ]
    count = counted(sum(len(lines) for _, lines, _ in groups), "difference")
    graphs = compared(Drawn(programs[0]), Drawn(programs[1]))
    sections = [
        section("graph", "Graph", names=["A", "B"], graphs=graphs),
        section("list", "Differences", groups=groups) if groups else None,
        operators(before.operators, after.operators),
    ]
    answer = verdict("plain", count, "") if groups else verdict("good", "the same", "")
    title = " → ".join(file_names([p.path or p.main.name for p in programs]))
    return page(title, [report_data("diff", title, answer, size_cards(before, after), sections)])


def summary_page(found: Summary) -> str:
    """Returns the page of one model, with the tables of its text. Raises InputError if the model
    does not load.
    """
    if found.given is None:
        raise InputError("this Summary has no model: only one from onnxgrad.inspect has a page")
    cards = [
        card("nodes", number(found.stats.nodes)),
        card("file size", bytes_text(found.stats.bytes)),
        card("parameters", number(found.stats.parameters)),
        card("opset", shown(found.versions), f"IR version {found.ir_version}"),
    ]
    parts = tables_of(summary_parts(found, verbose=True))
    tables = [(t.columns[0] if t.columns else "facts", t) for t in parts]
    sections = [
        section("graph", "Graph", names=["model"], graphs=[Drawn(load(found.given)).to_dict()]),
        *(table_section(_TABLES.get(n, n.capitalize()), t) for n, t in tables),
    ]
    answer = verdict("plain", "", "")
    lint_notes(answer, found.lints)
    return page(found.model, [report_data("inspect", found.model, answer, cards, sections)])


def bench_page(
    found: BenchReport, rows: Table, require: float | None, missed: Sequence[str]
) -> str:
    """Returns the page of measured models. `rows` is the command's table; `missed` has a line for
    each model that takes longer than the required ratio.
    """
    bad = bool(missed or found.refused)
    tone = "bad" if bad else "plain" if require is None else "good"
    word = "too slow" if missed else "not run" if bad else "measured" if require is None else "held"
    sizes = "".join(f", {name}={size}" for name, size in found.dims.items())
    where = f"on {found.provider}, {counted(found.threads, 'thread')}{sizes}"
    answer = verdict(tone, word, shown(where))
    refused = [f"{name} does not run: {why}" for name, why in found.refused.items()]
    noted(answer, [*missed, *refused], "bad")
    cards = []
    for i, t in enumerate(found.timings):
        wall, cpu = t.wall_ratio.median, t.cpu_ratio.median
        note = f"{wall:.3f} times the first, CPU time {cpu:.3f} ×"
        first = f"{1000 * t.cpu.median:.3g} ms CPU"
        quick = "plain" if not i else "good" if wall <= 1 else "more"
        time = f"{1000 * t.wall.median:.3g} ms"
        cards.append(card(shown(t.name), time, note if i else first, quick))
    sections = [bench(found), table_section("Times", rows, rows.title)]
    title = ", ".join([*(t.name for t in found.timings), *found.refused])
    return page("onnxgrad bench", [report_data("bench", title, answer, cards, sections)])
