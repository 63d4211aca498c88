"""The table of all lints.

A lint reads the program, or the report of the proof, and yields texts; each becomes a finding with
the level of the recipe. A finding of the level `error` refuses the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from onnxgrad.errors import NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.jobs.lint import graph, machine, weights
from onnxgrad.jobs.lint.weights import Model, listed
from onnxgrad.name_lists import names_among
from onnxgrad.options import several
from onnxgrad.results import Plain
from onnxgrad.verify import Report
from onnxgrad.vocabulary import LintLevel


@frozen
class Finding(Plain):
    """One line about a model: the name of the lint, its level (error or warn), and the text."""

    lint: str
    level: LintLevel
    text: str

    def __str__(self) -> str:
        return f"{'error' if self.level == 'error' else 'warning'}: {self.text} [{self.lint}]"


class Refused(NotProved):
    """A lint found something whose level is `error`."""


def _nan_outputs(report: Report) -> Iterator[str]:
    on = "your inputs" if any(c.seed is None for c in report.cases) else "generated inputs"
    if report.infinite:
        yield f"NaN or infinity in {listed('output', report.infinite)} on {on}"


@frozen
class Lint:
    """A lint: its name, what it finds, the function that reads a model or the report of its proof,
    and its default levels: of all jobs, and of `ci` for a model that is new to the lock.
    """

    name: str
    what: str
    model: Callable[[Model], Iterator[str]] | None = None
    report: Callable[[Report], Iterator[str]] | None = None
    level: LintLevel = "warn"
    new: LintLevel = "warn"


LINTS = {
    lint.name: lint
    for lint in (
        Lint(
            "nan-weights",
            "NaN among the numbers of a constant",
            weights.nan_weights,
            new="error",
        ),
        Lint(
            "infinite-weights",
            "infinities beside numbers other than 0 and 1; masks and bounds are left out",
            weights.infinite_weights,
        ),
        Lint(
            "zero-weights",
            "weights of products and tables, all of whose numbers are zero",
            graph.zero_weights,
            new="error",
        ),
        Lint("missing-weights", "external data that cannot be read", weights.missing_weights),
        Lint(
            "dead-outputs",
            "outputs that no input reaches, also behind a product with zeros",
            graph.dead_outputs,
        ),
        Lint(
            "nan-outputs",
            "outputs with NaN or infinities on the inputs of the proof",
            report=_nan_outputs,
        ),
        Lint(
            "training-mode",
            "BatchNormalization with training_mode = 1, Dropout whose training_mode is true",
            graph.training_mode,
        ),
        Lint("random-operators", "operators that draw random numbers", graph.random_operators),
        Lint("unread-inputs", "inputs that nothing reads", graph.unread_inputs),
        Lint(
            "float64-islands",
            "nodes that compute in float64 if no input is float64 and others are float32 or less",
            graph.float64_islands,
        ),
        Lint(
            "missing-kernels",
            "an opset that the installed onnxruntime does not read, and operators of it for which "
            "the CPU has no kernel",
            graph.missing_kernels,
        ),
        Lint(
            "host-paths",
            "absolute paths and lines of your source code in doc strings and metadata; frames of "
            "installed packages count only below a home folder",
            machine.host_paths,
        ),
    )
}


def lint(program: Program, levels: Mapping[str, LintLevel] | None = None) -> list[Finding]:
    """Returns the findings about a model, the errors first."""
    model = Model(program)
    return _found(levels, lambda one: one.model(model) if one.model else ())


# levels of `ci` for a model that is new to the lock, which holds no former weights to judge it by
NEW: Mapping[str, LintLevel] = {name: one.new for name, one in LINTS.items() if one.new != "warn"}


def lint_report(
    report: Report,
    levels: Mapping[str, LintLevel] | None = None,
    allowed: str | Iterable[str] = (),
) -> list[Finding]:
    """Returns the findings about the runs of a proof; `allowed` outputs may be infinite."""
    allowed = names_among([*several(allowed, "allow_empty")], report.infinite, "allow_empty")
    report = replace(report, infinite=tuple(n for n in report.infinite if n not in allowed))
    return _found(levels, lambda one: one.report(report) if one.report else ())


def _found(
    levels: Mapping[str, LintLevel] | None, find: Callable[[Lint], Iterable[str]]
) -> list[Finding]:
    wanted = {name: (levels or {}).get(name, one.level) for name, one in LINTS.items()}
    found = [
        Finding(name, wanted[name], text)
        for name, one in LINTS.items()
        if wanted[name] != "off"
        for text in find(one)
    ]
    return sorted(found, key=lambda f: f.level != "error")


def refuse(findings: Iterable[Finding]) -> None:
    """Raises Refused if a finding is an error."""
    errors = [f"{f.text} [{f.lint}]" for f in findings if f.level == "error"]
    if errors:
        raise Refused(f"lint: {'; '.join(errors)}; nothing was written")
