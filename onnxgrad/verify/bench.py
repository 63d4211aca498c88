"""Latency and peak memory of one or more models of the same interface, on the same inputs."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from onnxgrad.errors import InputError
from onnxgrad.limits import bounded
from onnxgrad.results import Plain
from onnxgrad.verify.feeds.proof_cases import Inputs, Results, choose_cases
from onnxgrad.verify.proof_model import Model, ProofModel, proof_model
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, close_sessions, open_session

WARM_UP = 3
# of which the fastest run counts: in one round alone it is not always an undisturbed one
_ROUNDS_PER_RATIO = 4
# notches of a box plot: the medians of two samples differ if theirs do not meet
_NOTCH = 1.57
_MOST_PER_BURST = 1000


@dataclass(frozen=True)
class Spread(Plain):
    """A median with its quartiles, and of how many values."""

    json_keys = "median low high"

    median: float
    low: float
    high: float
    values: int = field(default=1, compare=False)

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, len(values))

    @property
    def uncertainty(self) -> float:
        """How far the median may be off."""
        return _NOTCH * (self.high - self.low) / math.sqrt(self.values)


@dataclass(frozen=True)
class Timing(Plain):
    """One model: seconds per run, and ratios of the fastest runs to those of the first model."""

    json_keys = "name runs wall cpu wall_ratio cpu_ratio"

    name: str
    wall: Spread
    cpu: Spread
    wall_ratio: Spread
    cpu_ratio: Spread
    runs: int


@dataclass(frozen=True)
class BenchReport(Plain):
    """Timings in the order given; `refused`: models that do not load or run, and why."""

    json_keys = "provider threads dims timings refused"

    timings: tuple[Timing, ...]
    refused: Mapping[str, str]
    provider: str
    threads: int
    dims: Mapping[str, int]

    def __str__(self) -> str:
        width = max(len(name) for name in (*(t.name for t in self.timings), *self.refused, "model"))
        lines = [
            f"{'model':<{width}}  {'wall ms':>17}  {'CPU ms':>17}  {'wall ratio':>16}  "
            f"{'CPU ratio':>16}  runs"
        ]
        for t in self.timings:
            cells = [_cell(t.wall, 1e3), _cell(t.cpu, 1e3)]
            ratios = [_cell(t.wall_ratio, 1), _cell(t.cpu_ratio, 1)]
            lines.append(
                f"{t.name:<{width}}  {cells[0]:>17}  {cells[1]:>17}  {ratios[0]:>16}  "
                f"{ratios[1]:>16}  {t.runs:4d}"
            )
        lines += [f"{name:<{width}}  does not run: {why}" for name, why in self.refused.items()]
        return "\n".join(lines)


def _cell(spread: Spread, factor: float) -> str:
    """'median (low..high)'."""
    return f"{spread.median * factor:.3g} ({spread.low * factor:.3g}..{spread.high * factor:.3g})"


@bounded
def bench(
    models: Mapping[str, Model],
    *,
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    provider: str = "cpu",
    threads: int = 1,
    optimize: bool = True,
    rounds: int = 20,
    seconds: float = 2.0,
    timeout: float | None = None,
    max_memory: int | str | None = None,
    on_round: Callable[[int], None] | None = None,
) -> BenchReport:
    """Measure models, by label, on one set of inputs; `seconds` for each, over `rounds` rounds;
    ratios to the first. `on_round` receives the number of rounds done, from 0 on.

    Feeds as for `verify`: the user's own or generated from `seed`. On a GPU a time includes the
    copies of inputs and outputs. `timeout` and `max_memory` as for `verify`. Raises InputError when
    there is no model, when the first does not run, or another has other inputs.
    """
    if not models or rounds < 1 or seconds <= 0:
        raise InputError("bench needs at least one model, one round and a time above 0")
    subjects = {name: proof_model(model) for name, model in models.items()}
    options: dict[str, Any] = {
        "provider": provider,
        "threads": threads,
        "optimize": optimize,
        "keep": len(models),
    }
    first = next(iter(subjects))
    # those of a proof before this lie elsewhere in memory: the same file was up to 8 per cent off
    close_sessions(provider)
    sessions = {first: _open_first(subjects[first], options)}
    chosen = choose_cases(
        subjects[first].proto, inputs, dims, (seed,), lambda f: sessions[first].run(f), edges=False
    )[0]
    feeds = chosen.feeds
    refused: dict[str, str] = {}
    for name, other in subjects.items():
        needed, wanted = _required(subjects[first].proto), _required(other.proto)
        if needed != wanted:
            raise InputError(
                f"{name} has inputs {sorted(wanted)}, {first} has {sorted(needed)}: they cannot "
                "share feeds"
            )
        try:
            sessions[name] = sessions.get(name) or open_session(other.source, **options)
            sessions[name].time(feeds, WARM_UP)
        except RunFailed as error:
            refused[name] = error.reason
            sessions.pop(name, None)
    if first in refused:
        raise InputError(f"{first} does not run: {refused[first]}")
    bursts = _bursts(sessions, feeds, rounds, seconds, on_round or (lambda _: None))
    wall = {name: [[w for w, _ in burst] for burst in found] for name, found in bursts.items()}
    cpu = {name: [[c for _, c in burst] for burst in found] for name, found in bursts.items()}
    timings = tuple(
        Timing(
            name,
            Spread.of([*itertools.chain.from_iterable(wall[name])]),
            Spread.of([*itertools.chain.from_iterable(cpu[name])]),
            ratio_of_fastest(wall[name], wall[first]),
            ratio_of_fastest(cpu[name], cpu[first]),
            sum(map(len, b)),
        )
        for name, b in bursts.items()
    )
    return BenchReport(timings, refused, provider, threads, chosen.case.dims)


def _open_first(model: ProofModel, options: Mapping[str, Any]) -> Session:
    try:
        return open_session(model.source, **options)
    except RunFailed as error:
        if error.limit:
            raise
        raise InputError(f"the model does not load in onnxruntime: {error.reason}") from error


def _required(model: onnx.ModelProto) -> set[str]:
    return {v.name for v in model.graph.input} - {t.name for t in model.graph.initializer}


_Bursts = dict[str, list[list[tuple[float, float]]]]


def _bursts(
    sessions: Mapping[str, Session],
    feeds: Results,
    rounds: int,
    seconds: float,
    on_round: Callable[[int], None],
) -> _Bursts:
    """(wall, CPU) seconds of every run, by model and round."""
    names = list(sessions)
    counts = {}
    for name in names:
        once = min(w for w, _ in sessions[name].time(feeds, WARM_UP))
        counts[name] = max(1, min(_MOST_PER_BURST, round(seconds / rounds / max(once, 1e-6))))
    found: _Bursts = {name: [] for name in names}
    for i in range(rounds):
        on_round(i)
        turn = i // 2 % len(names)
        order = names[turn:] + names[:turn]
        # every other round backwards, so that nobody always runs behind the same neighbour
        for name in reversed(order) if i % 2 else order:
            # one run to warm the caches that the other models have just emptied
            found[name].append(sessions[name].time(feeds, counts[name] + 1)[1:])
    return found


def ratio_of_fastest(times: Sequence[Sequence[float]], first: Sequence[Sequence[float]]) -> Spread:
    """Seconds of every run, by round, over those of another model: the ratio of the fastest runs of
    every few rounds. A run of no measurable time counts as equal.
    """
    return Spread.of(
        [a / b if b > 0 else 1.0 for a, b in zip(_fastest(times), _fastest(first), strict=True)]
    )


def _fastest(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The fastest run of each group of rounds, taken from all over the time of measuring."""
    groups = max(1, len(rounds) // _ROUNDS_PER_RATIO)
    return [min(map(min, rounds[i::groups])) for i in range(groups)]


@bounded
def peak_memory(
    models: Mapping[str, str | os.PathLike[str]],
    *,
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    provider: str = "cpu",
    threads: int = 1,
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> dict[str, int | None]:
    """Bytes by label: what loading a file and one run take beyond onnxruntime itself. On the CPU
    these are resident bytes, which on small models vary by some 100 kB from run to run, and None on
    systems that do not tell; on a device they are those of onnxruntime's arena there.

    The inputs are those that the first model takes, given or generated from `seed` as for `verify`.
    `timeout` and `max_memory` as for `verify`. Raises InputError if there is no model, the first
    does not run, or a device's memory is not counted; RunFailed if another does not run.
    """
    if not models:
        raise InputError("peak_memory needs at least one model")
    sessions = {
        name: open_session(model, provider=provider, threads=threads)
        for name, model in models.items()
    }
    first = next(iter(models))
    chosen = choose_cases(
        proof_model(models[first]).proto, inputs, dims, (seed,), sessions[first].run, edges=False
    )[0]
    return {name: session.peak_memory(chosen.feeds) for name, session in sessions.items()}
