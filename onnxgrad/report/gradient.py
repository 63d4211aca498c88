"""The text of a gradient and of its numeric check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxgrad.grad import Gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.report.parts import Part, bytes_text, cell, number, seconds_text, table
from onnxgrad.report.rendering import Rendered
from onnxgrad.wording import counted, told_apart

_LISTED = 12  # adjoints without -v
_SHOWN = 8  # checked values without -v


@dataclass(frozen=True)
class GradientMade(Rendered):
    """A gradient graph, how many nodes the model had (0: nobody counted), the seconds it took,
    its check if any.
    """

    json_keys = (
        "targets=gradient.targets adjoints=gradient.adjoints inputs=gradient.seeds "
        "notes=gradient.notes nodes=counts seconds check"
    )

    gradient: Gradient
    before: int
    seconds: float
    check: GradientReport | None

    @property
    def counts(self) -> dict[str, int]:
        """The nodes of the model and of the gradient graph."""
        return {"before": self.before, "after": nodes(self.gradient.program)}

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The adjoints, the new inputs, the notes, the size, the check."""
        found, program = self.gradient, self.gradient.program
        yield cell(
            f"gradient of {', '.join(found.targets)} with respect to "
            f"{counted(len(found.adjoints), 'value')}"
        )
        types = {v.name: v.type for v in program.main.outputs}
        listed = list(found.adjoints.items())[: None if verbose else _LISTED]
        rows = ((cell(value), cell(name), cell(types.get(name) or "?")) for value, name in listed)
        yield table("value", "adjoint", "type", rows=rows)
        if len(found.adjoints) > _LISTED and not verbose:
            yield f"{_LISTED} of {counted(len(found.adjoints), 'value')} (-v lists all)"
        yield from (cell(f"new input {s}: the adjoint of {t}") for t, s in found.seeds.items())
        yield from (cell(f"note: {note}") for note in found.notes)
        size, after = bytes_text(to_proto(program).ByteSize()), nodes(program)
        grown = f"{number(self.before)} → " if self.before else ""
        built = f"opset {program.opset}, built in {seconds_text(self.seconds)}"
        yield f"{grown}{counted(after, 'node')}, {size}, {built}"
        if self.check is not None:
            yield from check_lines(self.check, verbose)


def nodes(program: Program) -> int:
    """The bindings that compute something."""
    return sum(b.op not in ("Constant", "Identity") for b in program.main.walk())


def check_lines(report: GradientReport, verbose: bool) -> Iterator[Part]:
    """The numeric check as a table, the worst value first."""
    rows = table("value", ">gradient · direction", ">differences", ">error", "")
    worst = report.worst
    # what could not be judged and the others by their error; of a few the worst must be one
    shown = sorted(report.values, key=lambda v: (v.judged, -v.error))
    if not verbose:
        shown = sorted(shown, key=lambda v: v is not worst)[:_SHOWN]
    for v in shown:
        wrong = report.is_wrong(v)
        style = "red" if wrong else "" if v.judged and not v.zero else "dim" if v.zero else "yellow"
        verdict = f"WRONG {v.why}".rstrip() if wrong else v.remark
        gradient, difference = told_apart(v.gradient, v.difference)
        rows.add_row(
            cell(v.name), cell(gradient), cell(difference), cell(f"{v.error:.1e}", style),
            cell(verdict, style),
        )  # fmt: skip
    yield rows
    if len(shown) < len(report.values):
        yield f"{len(shown)} of {counted(len(report.values), 'value')} (-v shows all)"
    yield str(report)
