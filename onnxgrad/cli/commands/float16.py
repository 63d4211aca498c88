"""`onnxgrad float16`: converts weights and computations to float16 and proves the result within
bounds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from onnxgrad.cli.options import converted
from onnxgrad.cli.output import Output
from onnxgrad.jobs.float16 import float16
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.report.optimized import optimized_parts
from onnxgrad.report.parts import Part, cell, first_of, number, table
from onnxgrad.wording import counted, option

_ROWS = 20


def run(args: argparse.Namespace, out: Output) -> int:
    """Converts, proves and writes one model."""
    outcome = converted(args, out, lambda model, *rest: float16(model, args.options, *rest))
    out.json(outcome.to_dict())
    *first, last = optimized_parts(outcome, out.verbose)
    out.show(*first[:2], *_staying(outcome, out.verbose), *first[2:], last)
    return 0


def _staying(outcome: Outcome, verbose: bool = False) -> Iterator[Part]:
    """Yields the nodes that stay in float32, and the constants that float16 cannot represent."""
    trace = outcome.trace
    opened = sum(f.rule == "inline_call" for f in trace.rewrites)
    if opened:
        yield cell(
            f"{counted(opened, 'call')} of functions inlined, because their bodies have no types; "
            f"{option('--keep DOMAIN::NAME', 'keep=[NAME]')} keeps one as a call in float32"
        )
    why = Counter(reason for _, _, reason in trace.declined)
    first = {reason: where for _, where, reason in reversed(list(trace.declined))}
    if why:
        yield ""
        yield table(
            "stays in float32 because",
            ">nodes",
            "such as",
            rows=(
                (cell(reason), number(count), cell(first[reason].split(" = ")[0], "dim"))
                for reason, count in why.most_common(None if verbose else _ROWS)
            ),
        )
    if outcome.search is not None:
        found = outcome.search
        kept = counted(len(found["kept"]), "node")
        yield cell(
            f"the search kept {kept} in float32; it ran {counted(found['proofs'], 'proof')}"
            + (f" of at most {found['limit']}" if found["proofs"] > 1 else "")
        )
    if trace.notes:
        yield ""
        notes, more = first_of(list(trace.notes), _ROWS, verbose)
        pairs = (note.split(": ", 1) for note in notes)
        rows = ((cell(name), cell(words)) for name, words in pairs)
        yield table("constant", "part that float16 cannot represent", rows=rows)
        yield from more
