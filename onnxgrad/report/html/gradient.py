"""What the page says of a gradient graph: its check, what it added, its memory over the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxgrad.grad import Gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.load import program_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.stats import stats_of
from onnxgrad.report.html.changes import compared
from onnxgrad.report.html.graph import Drawn, first_result, shown
from onnxgrad.report.html.memory import memory
from onnxgrad.report.html.optimized import operators
from onnxgrad.report.html.plots import gradient_errors
from onnxgrad.report.html.summary import card, changed_card, noted, verdict
from onnxgrad.report.html.tables import Section, section, table_section, tables_of
from onnxgrad.report.parts import bytes_text, number, share_text

if TYPE_CHECKING:
    from onnxgrad.report.gradient import GradientMade


def gradient_report(
    made: GradientMade, title: str, plain: Gradient | None, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """A report of the page; `plain` is the same gradient without checkpoints, for the curve of its
    memory, and `sizes` are those of open dimensions there.
    """
    program = made.gradient.program
    original = program_of(program.proto, program.folder)
    before, after = stats_of(program.proto), stats_of(to_proto(program))
    old = Drawn(original)
    known = {first_result(b) for b in old.nodes}
    graphs = compared(old, Drawn(program, apart="gradient", known=known))
    # without their note, which the verdict has
    tables = zip(("Adjoints", "Check"), tables_of(made.parts(verbose=True)), strict=False)
    blocks = {"gradient" if plain is None else "with checkpoints": program.main}
    if plain is not None:
        blocks = {"without checkpoints": plain.program.main, **blocks}
    sections: list[Section | None] = [
        section("graph", "Graph", names=["model", "with gradient"], graphs=graphs),
        memory(blocks, sizes),
        None if made.check is None else gradient_errors(made.check),
        *(table_section(name, table) for name, table in tables),
        operators(before, after),
    ]
    count = len(made.gradient.adjoints)
    targets = ", ".join(made.gradient.targets)
    said = f"gradient of {targets} by {number(count)} value{'s' * (count != 1)}"
    found = _verdict(made.check)
    noted(found, [said, *made.gradient.notes])
    return {
        "title": shown(title),
        "what": "grad",
        "verdict": found,
        "cards": [
            changed_card("nodes", before.nodes, after.nodes, number),
            changed_card("file size", before.bytes, after.bytes, bytes_text),
            card("adjoints", number(count), f"opset {program.opset}"),
            *_worst(made.check),
        ],
        "sections": [s for s in sections if s is not None],
    }


def _verdict(check: GradientReport | None) -> dict[str, Any]:
    if check is None:
        return verdict("unsure", "not checked", "the numeric check was left out")
    tone = "good" if check.ok else "unsure" if check.verdict == "not proved" else "bad"
    word = f"{check.verdict} with differences" if check.verdict == "agrees" else check.verdict
    return verdict(tone, word, shown(check.unproved) or f"in float64, on {check.provider}")


def _worst(check: GradientReport | None) -> list[dict[str, Any]]:
    worst = None if check is None else check.worst
    if check is None or worst is None:
        return []
    tone = "bad" if check.is_wrong(worst) else "good"
    note = f"{share_text(check.allowed(worst))} allowed; {worst.name}"
    return [card("worst error", share_text(worst.error), shown(note), tone)]
