"""The page of an optimised model: rewrites by rule, passes, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxgrad.ir.load import program_of
from onnxgrad.ir.program import Program
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.passes.base import PASSES
from onnxgrad.report.html.graph import Drawn, compared, shown
from onnxgrad.report.html.page import (
    Section,
    card,
    lint_notes,
    noted,
    page,
    proof_verdict,
    report_data,
    section,
    size_cards,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import choices, differences
from onnxgrad.report.parts import cell, number, share_text, table
from onnxgrad.report.proof import place_text, proof_lines
from onnxgrad.rewrite.exact_record import Decided
from onnxgrad.rewrite.trace import Rewrite, Trace
from onnxgrad.verify import Report
from onnxgrad.wording import counted


def rewrites(
    trace: Trace, report: Report | None, singly: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Returns the rewrites of a section of graphs.

    `singly`: the proof of each rewrite by itself, by its number, in addition to that of the model.
    """
    laws = list(dict.fromkeys((f.rule, f.pass_name) for f in trace.rewrites))
    place = {law: i for i, law in enumerate(laws)}
    bounds: dict[tuple[str, str], dict[str, None]] = {}
    for i in trace.inexact:
        bounds.setdefault((i.rule, i.where), {})[i.reason] = None
    known = singly or {}

    def proof(f: Rewrite) -> str:
        return "; ".join(filter(None, (known.get(f.number), *bounds.get((f.rule, f.where), ()))))

    return {
        "laws": [[shown(rule), shown(name), _law(trace, rule, name)] for rule, name in laws],
        "rewrites": [
            [place[f.rule, f.pass_name], shown(f.where), shown(proof(f))] for f in trace.rewrites
        ],
        "whole": "" if report is None else f"with the whole model: {shown(report.summary)}",
    }


def passes(outcome: Outcome) -> Section:
    """Returns how often each pass rewrote, and by which rules."""
    rows = [
        [shown(name), rules.total(), [[shown(rule), n] for rule, n in rules.most_common()]]
        for name, rules in outcome.rules_by_pass.items()
    ]
    idle = [shown(p.name) for p in outcome.passes if not p.rewrites]
    return section("passes", "Passes", rows=rows, idle=idle)


def places(trace: Trace) -> Section | None:
    """Returns the rules with their places, if no graph shows them; None without rewrites."""
    found: dict[tuple[str, str], list[str]] = {}
    for f in trace.rewrites:
        found.setdefault((f.rule, f.pass_name), []).append(shown(f"{f.number}  {f.where}"))
    groups = []
    for (rule, name), lines in sorted(found.items(), key=lambda item: -len(item[1])):
        law = _law(trace, rule, name)
        groups.append([shown(f"{rule}: {law}" if law else rule), lines, ""])
    return section("list", "Rewrites", note=_ALONE, groups=groups, open=0) if groups else None


_ALONE = (
    "By rule, with their places. No result was written, so there is no graph; `onnxgrad optimize "
    "MODEL --dry-run --html FILE` draws it."
)


def _law(trace: Trace, rule: str, pass_name: str) -> str:
    """Returns the equation of a rule, else that of its pass."""
    counts = trace.counts.get(rule)
    equation = counts.law if counts is not None else ""
    return shown(equation or (PASSES[pass_name].law() if pass_name in PASSES else ""))


def optimized(outcome: Outcome) -> dict[str, Any]:
    """Returns the report of one model for the page, also after an error."""
    program, before, after = outcome.rewritten, outcome.before, outcome.after
    sections = [
        None if program is None else _graphs(outcome, program),
        *proof_sections(outcome.report),
        None if program is None else passes(outcome),
        _misses(outcome) if outcome.explain and program is not None else None,
        choices(outcome.tuning),
        operators(before.operators, after.operators) if before and after else None,
    ]
    return report_data("optimize", outcome.title, _verdict(outcome), _cards(outcome), sections)


def optimized_page(outcomes: Sequence[Outcome]) -> str:
    """Returns the page of some models: verdict, both graphs with their rewrites, proof."""
    title = outcomes[0].title if len(outcomes) == 1 else f"{len(outcomes)} models"
    return page(title, [optimized(outcome) for outcome in outcomes])


def proof_sections(report: Report | None) -> list[Section | None]:
    """Returns the differences of a proof as a plot, and its tables."""
    if report is None:
        return []
    tables = tables_of(proof_lines(report, True))
    return [differences(report), *(table_section("Proof", t) for t in tables)]


def _verdict(outcome: Outcome) -> dict[str, Any]:
    if outcome.report is not None:
        found = proof_verdict(outcome.report)
    elif outcome.error is None:
        found = verdict("unsure", "not proved", "the proof was skipped")
    else:
        found = verdict("bad", "failed", "")
    lint_notes(found, outcome.lints)
    if outcome.error is not None:
        noted(found, [str(outcome.error)], "bad")
    else:
        noted(found, [str(outcome.newer)])
    noted(found, [f"left out: {slip}" for slip in outcome.trace.slips], "bad")
    return found


def _cards(outcome: Outcome) -> Iterator[dict[str, Any]]:
    before, after, report = outcome.before, outcome.after, outcome.report
    if before is not None and after is not None:
        yield from size_cards(before, after)
    if report is not None:
        yield worst_card(report)
    if outcome.exact is not None:
        share = "bad" if not outcome.exact.chained else ""
        yield card("same algebra", outcome.exact.ratio, shown(str(outcome.exact)), share)
    if outcome.rewritten is not None:
        busy = counted(sum(p.rewrites > 0 for p in outcome.passes), "pass", "passes")
        note = f"by {busy}, opset {outcome.rewritten.opset}"
        yield card("rewrites", number(len(outcome.trace.rewrites)), note)


def worst_card(report: Report) -> dict[str, Any]:
    """Returns the card of the difference that is nearest to its tolerance, or exceeds it most."""
    worst = report.worst
    if worst is None:
        return card("worst difference", "none known", "nothing was compared")
    if worst.rel == 0 and not worst.found:
        return card("worst difference", "0", "bit-identical", "good")
    value = worst.found or share_text(worst.rel)
    allowed = worst.wanted or f"{share_text(worst.tolerance)} allowed"
    note = f"{allowed}; {place_text(worst)}"
    return card("worst difference", value, shown(note), "good" if worst.ok else "bad")


def _graphs(outcome: Outcome, program: Program) -> Section:
    """Returns both graphs. If the proof failed, the page opens at the first bad rewrite."""
    before = program_of(program.proto, program.folder, program.path)
    refuted = outcome.error if isinstance(outcome.error, RewriteRefuted) else None
    culprit = None if refuted is None else refuted.culprit
    known = {"blamed": 0 if culprit is None else culprit.number}
    return graph_section(before, program, outcome, _singly(outcome, refuted)) | known


def graph_section(
    before: Program, after: Program, done: Outcome, singly: Mapping[int, str] | None = None
) -> Section:
    """Returns both graphs with their rewrites; `singly`: the proof of each rewrite, by its
    number.
    """
    graphs = compared(Drawn(before), Drawn(after), done.trace.rewrites)
    known = rewrites(done.trace, done.report, singly)
    return section("graph", "Graph", names=["before", "after"], graphs=graphs, **known)


def _singly(outcome: Outcome, refuted: RewriteRefuted | None) -> dict[int, str]:
    """Returns the proof of each rewrite by itself, by its number."""
    found, each = {}, outcome.each
    if each is not None:
        equal = "equal on its own operands"
        found = {rewrite.number: equal for rewrite in outcome.trace.rewrites}
        found |= dict.fromkeys(each.widened, f"{equal}, with the nodes that compute them")
        found |= {number: f"not run on its own: {why}" for number, why in each.skipped.items()}
    for d in () if outcome.exact is None else outcome.exact.each:
        found[d.number] = "; ".join(filter(None, (found.get(d.number), _algebra(d))))
    if refuted is not None and refuted.culprit is not None:
        last = refuted.culprit.number
        if refuted.alone:  # the rewrites after it were not checked
            found = {number: text for number, text in found.items() if number < last}
        found[last] = (
            f"the first {'whose two forms differ' if refuted.alone else 'that changes the result'}"
        )
    return found


def _algebra(d: Decided) -> str:
    return "the same algebra" if str(d) == "exact" else str(d)


def _misses(outcome: Outcome) -> Section:
    found = outcome.places_of_misses
    rows = ((cell(rule), number(len(at)), cell(why), cell(at[0])) for rule, why, at in found)
    made = table("near miss of", ">times", "why not", "first at", rows=rows)
    return table_section("Near misses", made)


def operators(before: Mapping[str, int], after: Mapping[str, int]) -> Section:
    """Returns a bar chart of the counts of operators before and after."""
    names = dict.fromkeys([*before, *after])
    counts = [(shown(n), before.get(n, 0), after.get(n, 0)) for n in names]
    rows = sorted(counts, key=lambda row: (-abs(row[2] - row[1]), -row[2], row[0]))
    return section("operators", "Operators", rows=rows)
