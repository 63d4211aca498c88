"""The text of a gradient and of its numeric check."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.report.parts import Part, bytes_text, cell, number, seconds_text, table
from onnxgrad.results import Plain
from onnxgrad.wording import counted, shape_text, told_apart

_LISTED = 12  # adjoints without -v
_SHOWN = 8  # checked values without -v


@frozen
class GradientMade(Plain):
    """A gradient graph, the number of nodes of the model, the seconds it took, and its check, if
    any.
    """

    json_keys = (
        "targets=gradient.targets adjoints=gradient.adjoints inputs=gradient.seeds "
        "notes=gradient.notes nodes=counts seconds check"
    )

    gradient: Any  # a Gradient, or another kind of result
    before: int
    seconds: float
    check: GradientReport | None

    @property
    def counts(self) -> dict[str, int]:
        """Returns the numbers of nodes of the model and of the gradient graph."""
        return {"before": self.before, "after": nodes(self.gradient.program)}

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """Yields the result, the notes, the size and the check."""
        program = self.gradient.program
        yield from self.head(verbose)
        yield from (cell(f"note: {note}") for note in self.gradient.notes)
        size, after = bytes_text(to_proto(program).ByteSize()), counted(nodes(program), "node")
        built = f"opset {program.opset}, built in {seconds_text(self.seconds)}"
        yield f"{number(self.before)} → {after}, {size}, {built}"
        if self.check is not None:
            yield from check_lines(self.check, verbose, self.gradient.notes)

    def head(self, verbose: bool) -> Iterator[Part]:
        """Yields the adjoints and the new inputs."""
        found = self.gradient
        yield cell(
            f"gradient of {', '.join(found.targets)} with respect to "
            f"{counted(len(found.adjoints), 'value')}"
        )
        types = {v.name: v.type for v in found.program.main.outputs}
        listed = list(found.adjoints.items())[: None if verbose else _LISTED]
        rows = ((cell(value), cell(name), cell(types.get(name) or "?")) for value, name in listed)
        yield table("value", "adjoint", "type", rows=rows)
        if len(found.adjoints) > _LISTED and not verbose:
            yield f"{_LISTED} of {counted(len(found.adjoints), 'value')} (-v lists all)"
        yield from (cell(f"new input {s}: the adjoint of {t}") for t, s in found.seeds.items())


@frozen
class ProductMade(GradientMade):
    """A graph of products with a derivative, and its check, if any."""

    json_keys = "of=gradient.kind inputs outputs=gradient.results notes=gradient.notes check"

    @property
    def inputs(self) -> dict[str, str]:
        """The new inputs, by the values whose tangents or adjoints they are."""
        return {**self.gradient.tangents, **self.gradient.seeds}

    def head(self, verbose: bool) -> Iterator[Part]:
        """Yields the new inputs and outputs."""
        found, main = self.gradient, self.gradient.program.main
        types = {v.name: v.type or "?" for v in (*main.inputs, *main.outputs)}
        new = [("input  {}, moves {}", item) for item in found.tangents.items()]
        new += [("input  {}, adjoints of {}", item) for item in found.seeds.items()]
        new += [("output {}, of {}", item) for item in found.results.items()]
        yield from (
            cell(f"new {words.format(f'{name}: {types[name]}', value)}")
            for words, (value, name) in new
        )


@frozen
class MarksMade(GradientMade):
    """A model with marks of checkpoints."""

    json_keys = "marks"

    @property
    def marks(self) -> dict[str, list[list[str]]]:
        """The marked uses of values: the value, and the first result of its reader."""
        found = self.gradient.new
        both = (("start", found.start), ("end", found.end))
        return {kind: sorted([v.name, b.out.name] for v, b in uses) for kind, uses in both}

    def head(self, verbose: bool) -> Iterator[Part]:
        """Yields the number of marks of each kind."""
        yield " and ".join(counted(len(uses), f"{k} mark") for k, uses in self.marks.items())


@frozen
class SplitMade(GradientMade):
    """A forward and a backward part, and their check, if any."""

    json_keys = (
        "targets=gradient.gradient.targets manifest=gradient.manifest notes=gradient.notes "
        "nodes=counts recomputed=gradient.again seconds check"
    )

    @property
    def counts(self) -> dict[str, int]:
        """Returns the numbers of nodes of the model and of both parts."""
        parts = {"forward": self.gradient.forward, "backward": self.gradient.backward}
        return {"before": self.before, **{name: nodes(part) for name, part in parts.items()}}

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """Yields the residuals, the notes, the sizes and the check."""
        found, counts = self.gradient, self.counts
        yield cell(
            f"forward and backward parts of {', '.join(found.gradient.targets)} with respect to "
            f"{counted(len(found.values), 'value')}"
        )
        manifest = found.manifest
        listed = manifest.residuals[: None if verbose else _LISTED]
        rows = (
            (cell(r.name), cell(f"{r.dtype}{shape_text(r.shape or ())}"), cell(f"from {r.origin}"))
            for r in listed
        )
        yield table("residual", "type", "", rows=rows)
        if len(listed) < len(manifest.residuals):
            yield f"{len(listed)} of {counted(len(manifest.residuals), 'residual')} (-v lists all)"
        size = "open sizes" if manifest.bytes is None else bytes_text(manifest.bytes)
        yield f"{size} kept, {counted(found.again, 'node')} computed again"
        yield from (cell(f"note: {note}") for note in found.notes)
        yield (
            f"{number(self.before)} → {counted(counts['forward'], 'node')} forward and "
            f"{counts['backward']} backward, built in {seconds_text(self.seconds)}"
        )
        if self.check is not None:
            yield from check_lines(self.check, verbose, found.notes)


def nodes(program: Program) -> int:
    """Returns the number of bindings that compute something."""
    return sum(b.op not in ("Constant", "Identity") for b in program.main.walk())


def check_lines(
    report: GradientReport, verbose: bool, known: Collection[str] = ()
) -> Iterator[Part]:
    """Yields the numeric check as a table, the worst value first, and the notes not in `known`."""
    rows = table("value", ">gradient · direction", ">differences", ">error", "")
    worst = report.worst
    # values that could not be judged come first, the others by error; the worst is always shown
    shown = sorted(report.values, key=lambda v: (v.judged, -v.error))
    if not verbose:
        shown = sorted(shown, key=lambda v: v is not worst)[:_SHOWN]
    for v in shown:
        wrong = report.is_wrong(v)
        style = "red" if wrong else "" if v.judged and not v.zero else "dim" if v.zero else "yellow"
        verdict = f"WRONG {v.why}".rstrip() if wrong else v.remark
        gradient, difference = told_apart(v.gradient, v.difference)
        rows.add_row(
            cell(v.name),
            cell(gradient),
            cell(difference),
            cell(f"{v.error:.1e}", style),
            cell(verdict, style),
        )
    yield rows
    if len(shown) < len(report.values):
        yield f"{len(shown)} of {counted(len(report.values), 'value')} (-v shows all)"
    yield from (cell(f"note: {note}") for note in report.notes if note not in known)
    yield str(report)
    looks = report.looks
    yield cell(looks.line, "yellow" if looks.ended or looks.coverage.why else "dim")
    if verbose:
        details = (*(f"looked {words}" for words in looks.inputs), *looks.coverage.details)
        yield from (cell(f"  {detail}", "dim") for detail in details)
