"""Proves models whose interface differs from that of their originals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from onnx import ModelProto, parser

from onnxgrad.errors import NotProved
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.jobs.groups import Proof
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.options import providers_of
from onnxgrad.verify import Check, Difference, Report, open_session, run, verify
from onnxgrad.verify.compare import worst
from onnxgrad.verify.feeds.proof_cases import choose_cases
from onnxgrad.verify.report import of_all
from onnxgrad.verify.running.child_process import pooled
from onnxgrad.verify.values import Value

Values = Mapping[str, Value]
Run = Callable[[Values], dict[str, Value]]
P = TypeVar("P", bound="Proved")


@dataclass(frozen=True)
class Proved:
    """The model that a job made, the report of its proof (None if it was not proved), and notes."""

    program: Program
    report: Report | None
    notes: Sequence[str] = field(default=(), kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether the proof found no difference."""
        return self.report is None or self.report.ok

    def proved(self, what: str) -> Program:
        """Returns the program. Raises NotProved, with `what` in the message, if its proof
        failed.
        """
        if self.report is not None and not self.ok:
            raise NotProved(f"{what}: {self.report.summary}; nothing was written")
        return self.program


def write_if_proved(found: P, hooks: Hooks) -> P:
    """Returns the model, after the hooks have written it unless its proof failed."""
    if found.ok and hooks.write is not None:
        hooks.write(found.program)
    return found


def require_runtime(provider: str) -> None:
    """Raises InputError early if onnxruntime or one of the providers is missing or does
    not start.
    """
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    )
    pooled("float64")  # starts while we wait for the other
    for name in providers_of(provider):
        open_session(parser.parse_model(text), provider=name)


@contextlib.contextmanager
def original_of(program: Program) -> Iterator[ModelProto | Path]:
    """Yields the original of `program` in the form that onnxruntime loads: its file if
    there is one.
    """
    with sharing() as files:
        yield files.original(program)


@contextlib.contextmanager
def runnable(program: Program) -> Iterator[ModelProto | Path]:
    """Yields the program in the form that onnxruntime loads."""
    with sharing() as files:
        yield files.of(program)


@contextlib.contextmanager
def running(opened: AbstractContextManager[Any], options: Proof) -> Iterator[Run]:
    """Yields a function that runs a model from `original_of` or `runnable` in onnxruntime."""
    provider = providers_of(options.provider)[0]
    with opened as model:
        yield lambda feeds: run(model, feeds, provider=provider, threads=options.threads)


def proved(program: Program, expected: Run, options: Proof) -> Report:
    """Compares a program with `expected`, which computes its outputs by running the originals in
    onnxruntime, on every case of the proof. Raises CannotRun if the originals run on none.
    """
    proof = options.proof()
    inputs, dims = proof.pop("inputs", None), proof.pop("dims", None)
    seeds = proof.pop("seeds", options.seeds)
    with runnable(program) as candidate:
        cases = choose_cases(to_proto(program), inputs, dims, seeds, expected, edges=False)
        reports = [
            replace(verify(candidate, expect=c.results, inputs=c.feeds, **proof), cases=(c.case,))
            for c in cases
        ]
    return _together(reports)


def _together(reports: Sequence[Report]) -> Report:
    """Returns the reports of several cases as one, or the first that refutes or proves nothing."""
    bad = next((r for r in reports if not r.ok), None)
    if bad is not None:
        return bad
    found: dict[tuple[str, str], list[Difference]] = {}
    for d in (d for r in reports for d in r.differences):
        found.setdefault((d.check, d.output), []).append(d)
    return replace(
        reports[0],
        differences=tuple(w for group in found.values() if (w := worst(group)) is not None),
        checks={name: _check([r.checks[name] for r in reports]) for name in reports[0].checks},
        compared={n: sum(r.compared.get(n, 0) for r in reports) for n in reports[0].compared},
        notes=tuple(dict.fromkeys(note for r in reports for note in r.notes)),
        **of_all(reports),
    )


def _check(checks: Sequence[Check]) -> Check:
    """Returns one check of several cases."""
    return replace(
        next((check for check in checks if check.why), checks[0]),
        ran=any(check.ran for check in checks),
        cases=sum(check.cases for check in checks),
        compared=sum(check.compared for check in checks),
        worst=worst(check.worst for check in checks if check.worst is not None),
    )
