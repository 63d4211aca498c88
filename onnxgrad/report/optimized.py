"""The tables of `onnxgrad optimize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxgrad.ir.protobufs import Stats
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.jobs.tuning import LATE
from onnxgrad.report.parts import (
    Part,
    Table,
    Text,
    bytes_text,
    cell,
    changed,
    first_of,
    heading,
    line,
    lint_lines,
    number,
    seconds_text,
    share_text,
    table,
)
from onnxgrad.report.proof import proof_lines, verdict
from onnxgrad.rewrite.trace import BranchNames, Inexact, Rewrite, Slip
from onnxgrad.wording import counted, option

if TYPE_CHECKING:
    from onnxgrad.rewrite.exact_record import ExactReport

_STAGES = {
    "read": "read",
    "tune": "tuned",
    "rewrite": "rewritten",
    "prove": "proved",
    "write": "written",
}
_OPERATORS = 12  # rows of changed operators without -v
_MISSES = 20  # rows of near misses without -v
_UNDECIDED = 6  # rows of choices that were not kept, without -v


def optimized_parts(found: Outcome, verbose: bool = False) -> Iterator[Part]:
    """Yields the counts before and after, the work of each pass, the proof, and the place of the
    result.
    """
    # for a refuted result, only the proof is shown, unless verbose
    shown = found.rewritten is not None and (verbose or not isinstance(found.error, RewriteRefuted))
    if shown and found.before is not None and found.after is not None:
        yield heading(found.title)
        yield _counts(found.before, found.after, verbose)
    yield from _tuning(found.tuning, verbose)
    if shown:
        yield from _of_rewriting(found, verbose)
    yield from lint_lines(found.lints)
    if found.report is not None:
        yield from proof_lines(found.report, verbose)
        yield ""
    elif found.error is None:
        yield line(f"not proved ({option('--no-verify', 'verify=False')})", "yellow")
    if found.error is None:
        spent = ", ".join(
            f"{_STAGES[stage]} in {seconds_text(seconds)}"
            for stage, seconds in found.seconds.items()
            if stage in _STAGES and (stage != "write" or found.written)
        )
        yield line(f"{spent}{'' if found.written else '; dry run, no model written'}", "dim")


def _of_rewriting(found: Outcome, verbose: bool) -> Iterator[Part]:
    yield from _passes(found, verbose)
    yield from _inexact(found.trace.inexact)
    yield from map(cell, map(str, found.changes))
    yield from (cell(f"note: {note}") for note in found.trace.notes)
    if found.trace.slips:
        yield line(slips_text(found.trace.slips, verbose), "yellow")
    if found.newer.chains:
        yield line(str(found.newer), "dim")
    if verbose:
        yield ""
        counts = sorted(found.trace.counts.items(), key=lambda item: -item[1].seconds)
        yield table(
            "rule",
            ">tried",
            ">matched",
            ">applied",
            ">time",
            rows=(
                (cell(name), *map(number, (c.tried, c.matched, c.applied)), seconds_text(c.seconds))
                for name, c in counts
            ),
        )
    if found.explain:
        yield ""
        yield from _misses(found, verbose)
    yield ""
    if found.each is not None:
        yield cell(f"each one: {found.each}")
    if found.exact is not None:
        yield from _exactly(found.exact, found.trace.rewrites, verbose)


# ---- one model -----------------------------------------------------------------------------------


def _counts(before: Stats, after: Stats, verbose: bool) -> Table:
    size = (bytes_text(before.bytes), bytes_text(after.bytes), _share(before.bytes, after.bytes))
    made = table(
        "",
        ">before",
        ">after",
        ">change",
        rows=(
            ("nodes", *changed(before.nodes, after.nodes)),
            ("parameters", *changed(before.parameters, after.parameters)),
            ("file size", *size),
        ),
    )
    made.add_section()
    counts = {
        n: (before.operators[n], after.operators[n]) for n in before.operators | after.operators
    }
    names = [n for n, (a, b) in counts.items() if a != b]
    names.sort(key=lambda n: (-abs(counts[n][1] - counts[n][0]), n))
    shown, more = first_of(names, _OPERATORS, verbose)
    made.rows += [(cell(name), *changed(*counts[name])) for name in shown]
    made.rows += [(left,) for left in more]
    return made


def _passes(done: Outcome, verbose: bool) -> Iterator[Part]:
    did = done.rules_by_pass
    idle = [p for p in done.passes if not p.rewrites]

    def rules(name: str) -> Text:
        counts = did.get(name, Counter()).most_common()
        return cell(", ".join(f"{rule} ×{count}" for rule, count in counts), "dim")

    made = table(
        "pass",
        ">rewrites",
        "what it did",
        ">time",
        rows=(
            (cell(p.name), number(p.rewrites), rules(p.name), seconds_text(p.seconds))
            for p in done.passes
            if p.rewrites or verbose
        ),
    )
    yield ""
    if made.rows:
        yield made
    if not done.trace.rewrites:
        yield line("nothing to rewrite", "yellow")
    elif idle and not verbose:
        yield line(f"{counted(len(idle), 'other pass', 'other passes')} found nothing to do", "dim")


def _exactly(report: ExactReport, rewrites: Sequence[Rewrite], verbose: bool) -> Iterator[Part]:
    """Yields how many rewrites are the same algebra; with -v the verdict on each."""
    clean = report.chained and not report.sampled
    yield cell(f"same algebra: {report}", "" if clean else "yellow")
    others = [
        f"{group} {' + '.join(f'{n} {verdict}' for verdict, n in counts.items())}"
        for group, counts in report.plain.items()
    ]
    if verbose:
        if others:
            yield cell(f"  not counted: {', '.join(others)}", "dim")
        rows = (
            (number(d.number), cell(d.pass_name), cell(d.rule), cell(str(d)), cell(place, "dim"))
            for d in report.each
            for place in (rewrites[d.number - 1].where,)
        )
        yield table(">rewrite", "pass", "rule", "exact evaluation", "at", rows=rows)


def _inexact(found: Sequence[Inexact]) -> Iterator[Text]:
    """Yields one line for all rewrites that are right only up to a bound: their number, and the
    worst.
    """
    if not found:
        return
    # an unknown bound is the worst
    worst = max(found, key=lambda i: float("inf") if i.error is None else i.error)
    where = f"{worst.rule} at {worst.where.split(' = ')[0]}"
    several = f"{counted(len(found), 'rewrite')} {'is' if len(found) == 1 else 'are'}"
    yield line(f"{several} not exact for every feed; worst: {worst.reason} ({where})", "yellow")


def slips_text(slips: Sequence[Slip], verbose: bool = False) -> str:
    """Returns the number of rewrites that failed and were left out, and the first of them."""
    shown = "; ".join(str(slip) for slip in (slips if verbose else slips[:1]))
    more = " (-v shows all)" if len(slips) > 1 and not verbose else ""
    count = counted(len(slips), "rewrite")
    why = "left out because a rule of onnxgrad failed"
    return f"{count} {why}{more}: {shown}; please report this"


def _misses(done: Outcome, verbose: bool) -> Iterator[Part]:
    made = table("near miss of", ">times", "why not", "at" if verbose else "first at")
    rows, more = first_of(done.places_of_misses, _MISSES, verbose)
    for rule, reason, places in rows:
        # every group of branches is named: a reader looks for those that could be merged
        shown = (
            places if verbose else [p for p in places if isinstance(p, BranchNames)] or places[:1]
        )
        made.add_row(cell(rule), number(len(places)), cell(reason), cell("; ".join(shown), "dim"))
    yield made if rows else line("no near misses", "dim")
    yield from more


# ---- tuning --------------------------------------------------------------------------------------


def _tuning(data: Mapping[str, Any] | None, verbose: bool = False) -> Iterator[Part]:
    """Yields the decisions, each with its time over that of the pipeline before it, and their sum;
    nothing if there are none.
    """
    if data is None:
        return
    yield ""
    decisions = data["decisions"]
    measured = [d for d in decisions if d["kept"] or d["ratio"] is not None]
    others = sorted((d for d in measured if not d["kept"]), key=lambda d: d["ratio"] or 1.0)
    shown = [d for d in measured if d["kept"]] + others[: None if verbose else _UNDECIDED]
    shown += [data["total"]] if data.get("total") else []
    if shown:
        yield table("choice", ">time", ">spread", "decision", rows=map(_choice, shown))
    where = f"{data['provider']}, {counted(data['threads'], 'thread')}"
    kept = sum(d["kept"] for d in decisions)
    late = sum(d.get("why") == LATE for d in decisions)
    more = f", {late} not measured for lack of time" if late else ""
    yield line(
        f"{kept} of {counted(len(decisions), 'choice')} kept, measured on {where}{more}", "dim"
    )


def _choice(decision: Mapping[str, Any]) -> Sequence[Text | str]:
    ratio, spread = decision["ratio"], decision["spread"]
    why = cell(decision.get("why") or "not beyond the noise", "dim")
    return (
        cell(decision["choice"]),
        "" if ratio is None else f"{ratio:.3f}",
        "" if spread is None else f"± {spread:.3f}",
        cell("kept", "green") if decision["kept"] else why,
    )


# ---- several models ------------------------------------------------------------------------------


def summary(outcomes: Sequence[Outcome]) -> Table:
    """Returns one row per model, narrow enough for 80 columns."""
    names = ("model", ">nodes", ">size", ">proof", ">worst", ">allowed", ">time")
    return table(*names, rows=map(_row, outcomes))


def several_lint_lines(outcomes: Sequence[Outcome]) -> Iterator[Text]:
    """Yields the findings of the lints with the names of their models."""
    for outcome in outcomes:
        for found in lint_lines(outcome.lints):
            yield cell(f"{outcome.model}: ") + found


def _row(o: Outcome) -> Sequence[Text | str]:
    nodes, size, differences = line(""), line(""), ("", "")
    if o.before is not None and o.after is not None:
        a, b = o.before.nodes, o.after.nodes
        nodes = line(f"{number(a)} → {number(b)}", _style(a, b))
        size = _share(o.before.bytes, o.after.bytes)
    if o.report is not None and (worst := o.report.worst) is not None:
        differences = (share_text(worst.rel), share_text(worst.tolerance))
    return cell(o.model), nodes, size, _word(o), *differences, seconds_text(sum(o.seconds.values()))


def _style(before: int, after: int) -> str:
    return "dim" if before == after else "green" if after < before else "yellow"


def _share(before: int, after: int) -> Text:
    """Returns the change of a size in per cent."""
    return line(
        "=" if before == after else f"{100 * (after - before) / before:+.1f} %",
        _style(before, after),
    )


def _word(outcome: Outcome) -> Text:
    if outcome.report is not None:
        part = " in part" if outcome.report.ok and outcome.report.gaps else ""
        return verdict(outcome.report) + line(part, "yellow")
    if outcome.error is not None:
        return line("refused" if outcome.exit_code == 2 else "failed", "red")
    return line("skipped", "yellow")
