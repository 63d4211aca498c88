"""The page of a gradient: the check, the added nodes, and the memory over a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.grad import Gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import program_of
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.report.gradient import GradientMade
from onnxgrad.report.html.graph import Drawn, compared, first_result, shown
from onnxgrad.report.html.optimized import operators
from onnxgrad.report.html.page import (
    Section,
    card,
    noted,
    page,
    report_data,
    section,
    size_cards,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import gradient_errors
from onnxgrad.report.parts import bytes_text, number, share_text
from onnxgrad.wording import counted

OPEN = 64  # an unknown size counts as this, as in the choice of segments
_MOST = 4000  # points of a curve


def live_bytes(block: BindingBlock, sizes: Mapping[str, int]) -> list[tuple[Binding, int]]:
    """Returns each binding in order, with the bytes that are alive after it has run: its results,
    and values that are read later. Inputs, constants and values inside nested graphs are not
    counted.
    """
    block.schedule()
    order = [b for b in block.bindings if b.inputs]
    place = {b: i for i, b in enumerate(order)}
    dying: dict[int, list[int]] = {}
    alive, found = 0, []
    for i, b in enumerate(order):
        for v in b.outputs:
            if v is None or not (v.users or v.returned):
                continue
            size = _bytes(v, sizes)
            alive += size
            last = len(order) if v.returned else max(_read_at(u, block, place) for u in v.users)
            dying.setdefault(last, []).append(size)
        found.append((b, alive))
        alive -= sum(dying.pop(i, ()))
    return found


def _read_at(reader: Binding, block: BindingBlock, place: Mapping[Binding, int]) -> int:
    """Returns when a value is read. A reader in a nested graph reads when the binding around it
    runs.
    """
    while reader.block is not block and reader.block.owner is not None:
        reader = reader.block.owner
    return place.get(reader, -1)


def _bytes(v: Var, sizes: Mapping[str, int]) -> int:
    if not isinstance(v.type, TensorType) or v.shape is None or not v.dtype:
        return OPEN
    known = [d if isinstance(d, int) else sizes.get(d or "", OPEN) for d in v.shape]
    return math.prod(known) * int(numpy_dtype(v.dtype).itemsize)


def memory(
    curves: Mapping[str, BindingBlock], sizes: Mapping[str, int] | None = None
) -> Section | None:
    """Returns a curve for each block under its name; None if nothing is computed."""
    given = sizes or {}
    runs = {name: live_bytes(block, given) for name, block in curves.items()}
    if not all(runs.values()):
        return None
    peaks = {name: max(size for _, size in run) for name, run in runs.items()}
    peak_text = ", ".join(f"{name} {bytes_text(peak)}" for name, peak in peaks.items())
    fixed = "".join(f", {name} = {size}" for name, size in given.items())
    note = (
        "Bytes of computed values alive after each node, in the order of the file; weights and "
        f"inputs are not counted; an open size counts as {OPEN}{fixed}. Peaks: {peak_text}."
    )
    return section(
        "curves", "Memory over the run", note=note, curves=[_curve(n, r) for n, r in runs.items()]
    )


def _curve(name: str, run: Sequence[tuple[Binding, int]]) -> dict[str, Any]:
    """Returns the curve as shares of the run, so that runs of different lengths can be compared. A
    long curve keeps the largest point of each stretch.
    """
    step = max(1, math.ceil(len(run) / _MOST))
    kept = [
        max(range(i, min(i + step, len(run))), key=lambda j: run[j][1])
        for i in range(0, len(run), step)
    ]
    return {
        "label": shown(name),
        "at": [round(i / max(len(run) - 1, 1), 5) for i in kept],
        "bytes": [run[i][1] for i in kept],
        "where": [shown(f"{run[i][0].op} {first_result(run[i][0])}") for i in kept],
    }


def gradient_page(
    made: GradientMade, title: str, plain: Gradient | None, sizes: Mapping[str, int]
) -> str:
    """Returns the page of a gradient. `plain` is the same gradient without checkpoints, for the
    curve of its memory; `sizes` are those of open dimensions in it.
    """
    program = made.gradient.program
    original = program_of(program.proto, program.folder)
    before, after = stats_of(program.proto), stats_of(to_proto(program))
    old = Drawn(original)
    known = {first_result(b) for b in old.nodes}
    graphs = compared(old, Drawn(program, apart="gradient", known=known))
    # without their note, which is in the verdict
    tables = zip(("Adjoints", "Check"), tables_of(made.parts(verbose=True)), strict=False)
    blocks = {"gradient" if plain is None else "with checkpoints": program.main}
    if plain is not None:
        blocks = {"without checkpoints": plain.program.main, **blocks}
    sections = [
        section("graph", "Graph", names=["model", "with gradient"], graphs=graphs),
        memory(blocks, sizes),
        None if made.check is None else gradient_errors(made.check),
        *(table_section(name, table) for name, table in tables),
        operators(before.operators, after.operators),
    ]
    count = len(made.gradient.adjoints)
    answer = _verdict(made.check)
    targets = (
        f"gradient of {', '.join(made.gradient.targets)} with respect to {counted(count, 'value')}"
    )
    noted(answer, [targets, *made.gradient.notes])
    *sizes_, _ = size_cards(before, after)
    adjoints = card("adjoints", number(count), f"opset {program.opset}")
    cards = [*sizes_, adjoints, *_worst(made.check)]
    return page(title, [report_data("grad", title, answer, cards, sections)])


def _verdict(check: GradientReport | None) -> dict[str, Any]:
    if check is None:
        return verdict("unsure", "not checked", "the numeric check was skipped")
    tone = "good" if check.ok else "unsure" if check.verdict == "not proved" else "bad"
    word = (
        f"{check.verdict} with finite differences" if check.verdict == "agrees" else check.verdict
    )
    return verdict(tone, word, shown(check.unproved) or f"in float64, on {check.provider}")


def _worst(check: GradientReport | None) -> list[dict[str, Any]]:
    if check is None or (worst := check.worst) is None:
        return []
    tone = "bad" if check.is_wrong(worst) else "good"
    note = f"{share_text(check.allowed(worst))} allowed; {worst.name}"
    return [card("worst error", share_text(worst.error), shown(note), tone)]
