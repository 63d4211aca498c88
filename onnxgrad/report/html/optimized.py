"""The page of an optimised model: rewrites by rule, passes, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import program_of
from onnxgrad.ir.protobufs import Stats
from onnxgrad.jobs.optimize import RewriteRefuted
from onnxgrad.jobs.outcome import Optimized, Outcome
from onnxgrad.passes.base import PASSES
from onnxgrad.passes.pipeline import PassResult
from onnxgrad.report.html.graph import Drawn, compared, shown
from onnxgrad.report.html.page import (
    Section,
    card,
    changed_card,
    noted,
    proof_verdict,
    section,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import choices, differences
from onnxgrad.report.parts import bytes_text, number, share_text
from onnxgrad.report.proof import place_text, proof_lines
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
