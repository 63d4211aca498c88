"""What only running the models tells: latency and memory, where the recipe asks for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxgrad.errors import NotProved
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save
from onnxgrad.jobs.recipe_options import proof_of
from onnxgrad.jobs.requirements import INPUT, Facts, Latency, bound_of
from onnxgrad.options import providers_of
from onnxgrad.verify.bench import bench
from onnxgrad.verify.peak_memory import peak_memory

_RESULT = "result"
SECONDS, ROUNDS = 2.0, 20  # of bench, for each model


def seconds_of(options: Mapping[str, Any]) -> float:
    """How long measuring takes by request, which no limit on the work counts."""
    return 4 * float(options.get("bench.seconds", SECONDS)) if _latency(options) else 0.0


def measures(options: Mapping[str, Any]) -> bool:
    """Whether something is to be measured."""
    return _latency(options) or _memory(options)


def measured(
    path: str, folder: str, program: Program, options: Mapping[str, Any], facts: tuple[Facts, Facts]
) -> tuple[Facts, Facts]:
    """The facts of a model before (in the file `path`) and after, with what the options want
    measured; other models lie in `folder`. Raises InputError for one that cannot be measured
    beside it, NotProved where the result does not run.
    """
    given, result = facts
    if not measures(options):
        return facts
    with tempfile.TemporaryDirectory(prefix="onnxgrad-") as scratch:
        made = Path(scratch) / "result.onnx"
        save(program, made, sync=False)
        if _latency(options):
            result = replace(result, latency=_timed(path, folder, made, options))
        if _memory(options):
            provider = _provider(options)
            found = peak_memory(
                {INPUT: path, _RESULT: made}, provider=provider, **_running(options)
            )
            given = replace(given, memory=found[INPUT], memory_on=provider)
            result = replace(result, memory=found[_RESULT], memory_on=provider)
    return given, result


def _latency(options: Mapping[str, Any]) -> bool:
    return "latency" in options.get("require", {}) or bool(options.get("bench.run"))


def _memory(options: Mapping[str, Any]) -> bool:
    return "memory" in options.get("require", {})


def _provider(options: Mapping[str, Any]) -> str:
    """What is measured runs on the first of the proof's providers."""
    return providers_of(options.get("verify.provider", "cpu"))[0]


def _running(options: Mapping[str, Any]) -> dict[str, Any]:
    """How models are run to be measured: as the proof runs them."""
    proof = proof_of(options)
    seeds = proof.get("seeds") or (0,)
    return {"seed": seeds[0]} | {
        key: proof[key] for key in ("inputs", "dims", "threads") if key in proof
    }


def _timed(path: str, folder: str, made: Path, options: Mapping[str, Any]) -> Latency:
    required = options.get("require", {})
    other = bound_of("latency", required["latency"]).of if "latency" in required else ""
    against = other or INPUT
    provider = _provider(options)
    report = bench(
        {against: os.path.join(folder, other) if other else path, _RESULT: made},
        provider=provider,
        seconds=options.get("bench.seconds", SECONDS),
        rounds=options.get("bench.rounds", ROUNDS),
        **_running(options),
    )
    if report.refused:
        raise NotProved(f"the result does not run: {report.refused[_RESULT]}")
    timing = report.timings[1]
    # the CPU waits while a device computes
    clock, ratio = ("CPU", timing.cpu_ratio) if provider == "cpu" else ("wall", timing.wall_ratio)
    return Latency(against, ratio.median, ratio.low, ratio.high, clock)
