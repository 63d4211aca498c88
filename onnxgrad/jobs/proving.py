"""Proves models whose interface differs from that of their originals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, parser

from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import Files, sharing
from onnxgrad.jobs.groups import Proof
from onnxgrad.options import providers_of, several
from onnxgrad.verify import Report, open_session, run, verify
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.verify.feeds.proof_cases import choose_cases
from onnxgrad.verify.request import MOST_OPEN
from onnxgrad.verify.running.child_process import pooled
from onnxgrad.verify.values import Value
from onnxgrad.vocabulary import FLOAT16_BOUND

Values = Mapping[str, Value]
Run = Callable[[Values], dict[str, Value]]


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


def running(model: ModelProto | Path, options: Proof) -> Run:
    """Returns a function that runs a model in onnxruntime."""
    provider = providers_of(options.provider)[0]
    return lambda feeds: run(
        model, feeds, provider=provider, threads=options.threads, most=MOST_OPEN
    )


def proved(program: Program, expected: Run, options: Proof, files: Files, **more: Any) -> Report:
    """Compares a program with `expected`, which computes its outputs by running the originals in
    onnxruntime, on every case of the proof. `files`: where large weights lie, also those of the
    originals. `more`: options of `verify`. Raises CannotRun if the originals run on none.
    """
    proof = {**more, **options.proof()}
    inputs, dims = proof.pop("inputs", None), proof.pop("dims", None)
    seeds, share = proof.pop("seeds", options.seeds), proof.pop("coverage", None)
    candidate = files.of(program)
    cases = choose_cases(to_proto(program), inputs, dims, seeds, expected, edges=False)
    reports = [
        replace(verify(candidate, expect=c.results, inputs=c.feeds, **proof), cases=(c.case,))
        for c in cases
    ]
    report = Report.merge(reports)
    lacking = "" if share is None else report.coverage.lacks(wanted_share(share))
    return replace(report, ok=False, unproved=(lacking,)) if report and lacking else report


def with_bound(proof: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a proof with the bound of float16 and a search over scales of the inputs.
    The user's bounds of single outputs extend the bound, bounds of all outputs replace it.
    """
    metrics = several(proof.get("metric") or (), "metric")
    bounds = Bounds.of(proof.get("atol"), proof.get("rtol"), metrics)
    metric = [*([] if bounds.common else [FLOAT16_BOUND]), *metrics]
    return {**proof, "metric": metric, "scales": True}
