"""Flags that several commands share: limits, bounds, pages, tuning."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.errors import InputError
from onnxgrad.jobs.hooks import Hooks, Proved
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.limits import SECONDS
from onnxgrad.report.parts import cell, heading
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.vocabulary import TUNE_FILE, TUNE_SECONDS


def within_limits(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Returns a context that bounds the work on one model by the options. Raises LimitReached."""
    seconds = SECONDS if args.timeout is None else args.timeout
    return bounding_us(seconds, args.max_memory)


def write_html(args: argparse.Namespace, made: Callable[[], str], out: Output) -> None:
    """Makes the page and writes it to the file of --html, if given. Raises InputError."""
    if args.html is None:
        return
    with out.progress(Path(args.html).name, 1) as advance:
        advance("drawing", None)
        text = made()
    out.write("--html", args.html, text)


def converted(
    args: argparse.Namespace, out: Output, convert: Callable[[Path | bytes, Hooks, Outcome], object]
) -> Outcome:
    """Runs a job that converts one model, proves the result and writes it. Raises the job's error,
    which names the model.
    """
    target = target_of(args.output)
    if args.verify:
        require_runtime(args.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model))
    with out.progress(args.command, 1) as advance:
        advance("running both models", None)
        convert(source(args.model), Hooks(write=writer(target, out), limits=bounding_us), outcome)
    if outcome.error is not None:
        raise named(outcome.error, args.model)
    return outcome


def show_proved(
    found: Proved, args: argparse.Namespace, out: Output, models: Mapping[str, str], change: str
) -> None:
    """Prints the interface, the `change` and the proof of a model. `models` are the originals, by
    the arguments that name them. Raises NotProved.
    """
    block, report = found.program.main, found.report
    named = ", ".join(map(shown, models.values()))
    out.show(heading(named))
    out.show(*(cell(f"input {v.name}: {v.type or '?'}") for v in block.inputs))
    out.show(*(cell(f"output {v.name}: {v.type or '?'}") for v in block.outputs))
    out.show(change)
    for note in found.notes:
        out.note(note)
    out.json(
        {
            **models,
            "output": args.output,
            "inputs": [v.name for v in block.inputs],
            "outputs": [v.name for v in block.outputs],
            "notes": [*found.notes],
            "proof": None if report is None else report.to_dict(),
        }
    )
    if report is not None:
        out.show(*proof_lines(report, out.verbose))
        found.proved(named)


def tuning_of(args: argparse.Namespace) -> Path | float | None:
    """Returns the value of `tune` of `optimize`. Raises InputError for flags that do not go
    together.
    """
    if args.tune_from is not None:
        if args.tune or args.tune_time is not None or args.tune_file is not None:
            raise InputError(
                "--tune-from repeats recorded decisions: remove the other --tune options"
            )
        return Path(args.tune_from)
    if not args.tune and (args.tune_time is not None or args.tune_file is not None):
        raise InputError("--tune-time and --tune-file need --tune")
    return args.tune_time or TUNE_SECONDS if args.tune else None


def keep_decisions(
    args: argparse.Namespace, target: Path | None, data: Mapping[str, Any] | None, out: Output
) -> None:
    """Writes the decisions, if there are any."""
    file = decisions_file(args, target) if args.tune else None
    if data is not None and file is not None:
        from onnxgrad.jobs.tuning.record import write  # rarely needed

        write(file, data)
        out.wrote(file)


def decisions_file(args: argparse.Namespace, target: Path | None) -> Path | None:
    """Returns the file for the decisions: one for each model of --out-dir, None for stdout."""
    if args.tune_file is not None:
        return Path(args.tune_file)
    if target is None:
        return None
    name = f"{target.stem}.{TUNE_FILE}" if args.out_dir is not None else TUNE_FILE
    return target.with_name(name)
