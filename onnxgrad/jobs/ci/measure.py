"""Measures latency and memory, if the recipe requires them."""

from __future__ import annotations

import filecmp
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from onnxgrad.errors import NotProved
from onnxgrad.ir.load import program_of
from onnxgrad.ir.save import save, to_proto
from onnxgrad.jobs.ci.declarations import Gates
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import INPUT, Facts, Latency, bound_of
from onnxgrad.options import providers_of
from onnxgrad.verify.bench import Conditions, bench, peak_memory

_RESULT = "result"


def seconds_of(gates: Gates) -> float:
    """Returns the seconds that two measurements take by request, which no limit includes."""
    return 2 * 4 * gates.bench_seconds if _latency(gates) else 0.0


def measures(gates: Gates) -> bool:
    """Whether anything must be measured."""
    return _latency(gates) or _memory(gates)


def measured(
    path: str,
    folder: str,
    done: Outcome,
    wanted: tuple[OptimizeOptions, Gates],
    facts: tuple[Facts, Facts],
) -> tuple[Facts, Facts]:
    """Returns the facts of a model before (in the file `path`) and after, with the required
    measurements; other models are relative to `folder`. Edits around the passes are not measured,
    because their models have other interfaces. Raises InputError for a model that cannot be
    measured beside it, NotProved if the result does not run.
    """
    given, result = facts
    options, gates = wanted
    if not measures(gates):
        return facts
    with tempfile.TemporaryDirectory(prefix="onnxgrad-") as scratch:
        made, first = Path(scratch) / "result.onnx", Path(scratch) / "input.onnx"
        passed = done.program if done.rewritten is None else done.rewritten
        save(passed if done.halved is None else done.halved.program, made, sync=False)
        if done.given is not None or options.fix_dims:
            given_to_passes = program_of(passed.proto, passed.folder, None, passed.digests)
            save(given_to_passes, first, sync=False)
            path = str(first)
        if _latency(gates):
            same = done.given is None and done.halved is None
            unchanged = same and passed.proto == to_proto(passed)
            timed = _timed(path, folder, made, options, gates, unchanged=unchanged)
            result = replace(result, latency=timed)
        if _memory(gates):
            conditions = _conditions(options)
            found, on = peak_memory({INPUT: path, _RESULT: made}, conditions), conditions.provider
            given = replace(given, memory=found[INPUT], memory_on=on)
            result = replace(result, memory=found[_RESULT], memory_on=on)
    return given, result


def _latency(gates: Gates) -> bool:
    return "latency" in (gates.require or {}) or gates.bench


def _memory(gates: Gates) -> bool:
    return "memory" in (gates.require or {})


def _conditions(options: OptimizeOptions) -> Conditions:
    """Returns the conditions of measurements: those of the proof, on the first of its providers."""
    provider, seed = providers_of(options.provider)[0], options.seeds[0]
    return Conditions(options.inputs, options.dims, seed, provider, options.threads)


def _timed(
    path: str, folder: str, made: Path, options: OptimizeOptions, gates: Gates, *, unchanged: bool
) -> Latency:
    """Returns the time of the result over that of the model `path`, or of the model in the
    requirement. It is 1, and nothing is measured, if both have the same bytes.
    """
    required = gates.require or {}
    other = bound_of("latency", required["latency"]).of if "latency" in required else ""
    against = other or INPUT
    base = os.path.join(folder, other) if other else path
    if (not other and unchanged) or filecmp.cmp(base, made, shallow=False):
        return Latency(against, 1.0, 1.0, 1.0, _clock(_conditions(options).provider))
    report = bench(
        {against: base, _RESULT: made},
        _conditions(options),
        seconds=gates.bench_seconds,
        rounds=gates.bench_rounds,
    )
    if report.refused:
        raise NotProved(f"the result does not run: {report.refused[_RESULT]}")
    timing = report.timings[1]
    clock = _clock(report.provider)
    ratio = timing.cpu_ratio if clock == "CPU" else timing.wall_ratio
    return Latency(against, ratio.median, ratio.low, ratio.high, clock)


def _clock(provider: str) -> str:
    """Returns the clock of a provider: the CPU waits while a device computes."""
    return "CPU" if provider == "cpu" else "wall"
