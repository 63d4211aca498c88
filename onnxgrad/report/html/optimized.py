"""What the page says of an optimised model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import program_of
from onnxgrad.ir.stats import Stats
from onnxgrad.pipeline.optimize import Optimized, RewriteRefuted
from onnxgrad.report.html.changes import compared
from onnxgrad.report.html.graph import Drawn, shown
from onnxgrad.report.html.plots import choices, differences
from onnxgrad.report.html.rewrites import passes, rewrites
from onnxgrad.report.html.summary import card, changed_card, noted, proof_verdict, verdict
from onnxgrad.report.html.tables import Section, section, table_section, tables_of
from onnxgrad.report.parts import bytes_text, number, share_text
from onnxgrad.report.proof import place_text, proof_lines
from onnxgrad.verify import Report

if TYPE_CHECKING:
    from onnxgrad.report.optimized import Outcome


def optimized(outcome: Outcome) -> dict[str, Any]:
    """A report of the page on one model, whatever became of it."""
    done = outcome.done
    sections: list[Section | None] = []
    if done is not None:
        sections.append(_graphs(done, outcome.error))
    if outcome.report is not None:
        sections.append(differences(outcome.report))
        sections += (
            table_section("Proof", t) for t in tables_of(proof_lines(outcome.report, True))
        )
    if done is not None:
        sections.append(passes(done.trace, done.passes))
        sections.append(_misses(done) if outcome.explain else None)
    sections.append(choices(outcome.tuning))
    if outcome.before is not None and outcome.after is not None:
        sections.append(operators(outcome.before, outcome.after))
    return {
        "title": shown(outcome.title),
        "what": "optimize",
        "verdict": _verdict(outcome),
        "cards": list(_cards(outcome)),
        "sections": [s for s in sections if s is not None],
    }


def _verdict(outcome: Outcome) -> dict[str, Any]:
    if outcome.report is not None:
        found = proof_verdict(outcome.report)
    elif outcome.error is None:
        found = verdict("unsure", "not proved", "the proof was left out")
    else:
        found = verdict("bad", "failed", "")
    if outcome.error is not None:
        noted(found, [str(outcome.error)], "bad")
    else:
        noted(found, [str(outcome.newer)])
    if outcome.done is not None:
        noted(found, [f"left out: {slip}" for slip in outcome.done.trace.slips], "bad")
    return found


def _cards(outcome: Outcome) -> Iterator[dict[str, Any]]:
    before, after, report = outcome.before, outcome.after, outcome.report
    if before is not None and after is not None:
        yield changed_card("nodes", before.nodes, after.nodes, number)
        yield changed_card("file size", before.bytes, after.bytes, bytes_text)
        yield changed_card("parameters", before.parameters, after.parameters, number)
    if report is not None:
        yield worst_card(report)
    if outcome.done is not None:
        done = outcome.done
        busy = sum(1 for p in done.passes if p.firings)
        note = f"by {busy} pass{'es' * (busy != 1)}, opset {done.program.opset}"
        yield card("rewrites", number(len(done.trace.firings)), note)


def worst_card(report: Report) -> dict[str, Any]:
    """The difference that comes nearest to failing, or fails most."""
    worst = report.worst
    if worst is None:
        return card("worst difference", "none known", "nothing was compared")
    if worst.rel == 0 and not worst.found:
        return card("worst difference", "0", "bit-identical", "good")
    value = worst.found or share_text(worst.rel)
    allowed = worst.wanted or f"{share_text(worst.tolerance)} allowed"
    note = f"{allowed}; {place_text(worst)}"
    return card("worst difference", value, shown(note), "good" if worst.ok else "bad")


def _graphs(done: Optimized, error: OnnxgradError | None) -> Section:
    """Both graphs; where the proof failed, the page opens at the rewrite to blame."""
    program, trace = done.program, done.trace
    before = program_of(program.proto, program.folder, program.path)
    refuted = error if isinstance(error, RewriteRefuted) else None
    culprit = None if refuted is None else refuted.culprit
    return section(
        "graph",
        "Graph",
        names=["before", "after"],
        graphs=compared(Drawn(before), Drawn(program), trace.firings),
        blamed=0 if culprit is None else culprit.number,
        **rewrites(trace, done.report, _singly(done, refuted)),
    )


def _singly(done: Optimized, refuted: RewriteRefuted | None) -> dict[int, str]:
    """What is known of each rewrite alone, by its number."""
    found = {}
    if done.each is not None:
        for firing in done.trace.firings:
            number = firing.number
            found[number] = (
                f"not run on its own: {done.each.skipped[number]}"
                if number in done.each.skipped
                else "equal on its own operands, with what computes them"
                if number in done.each.widened
                else "equal on its own operands"
            )
    if refuted is not None and refuted.culprit is not None:
        last = refuted.culprit.number
        if refuted.alone:  # what came with it was not looked at
            found = {number: text for number, text in found.items() if number < last}
        found[last] = (
            f"the first {'whose two forms differ' if refuted.alone else 'that changes the result'}"
        )
    return found


def _misses(done: Optimized) -> Section:
    kinds: dict[tuple[str, str], list[str]] = {}
    for rule, where, reason in done.trace.declined:
        kinds.setdefault((rule, reason), []).append(where)
    misses = [
        [shown(rule), number(len(places)), shown(reason), shown(places[0])]
        for (rule, reason), places in sorted(kinds.items(), key=lambda item: -len(item[1]))
    ]
    columns = [
        ["near miss of", False],
        ["times", True],
        ["why not", False],
        ["first at", False],
    ]
    return section("table", "Near misses", note="", columns=columns, rows=misses)


def operators(before: Stats, after: Stats) -> Section:
    """How often each operator stands in either."""
    names = dict.fromkeys([*before.operators, *after.operators])
    counts = [(shown(n), before.operators[n], after.operators[n]) for n in names]
    rows = sorted(counts, key=lambda row: (-abs(row[2] - row[1]), -row[2], row[0]))
    return section("operators", "Operators", rows=rows)
