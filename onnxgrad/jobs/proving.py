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
from onnxgrad.verify import Report, open_session, run, verify
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.verify.feeds.proof_cases import choose_cases
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
    seeds, share = proof.pop("seeds", options.seeds), proof.pop("coverage", None)
    with runnable(program) as candidate:
        cases = choose_cases(to_proto(program), inputs, dims, seeds, expected, edges=False)
        reports = [
            replace(verify(candidate, expect=c.results, inputs=c.feeds, **proof), cases=(c.case,))
            for c in cases
        ]
    report = Report.merge(reports)
    lacking = "" if share is None else report.coverage.lacks(wanted_share(share))
    return replace(report, ok=False, unproved=(lacking,)) if report and lacking else report
