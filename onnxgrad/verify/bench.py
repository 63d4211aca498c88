"""The latency and peak memory of models with the same interface, on the same inputs."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from onnxgrad.errors import InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.feeds.proof_cases import Chosen, Inputs, Results, choose_cases
from onnxgrad.verify.proof_model import Model, ProofModel, proof_model
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, close_sessions, open_session
from onnxgrad.wording import counted, option

WARM_UP = 3
# the fastest run of a group counts: a single round may have no undisturbed run
_ROUNDS_PER_RATIO = 4
# notches of a box plot: two medians differ if their notches do not overlap
_NOTCH = 1.57
_MOST_PER_BURST = 1000


@frozen
class Spread(Plain):
    """A median, its quartiles and the number of values."""

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
        """The half width of the median's confidence interval."""
        return _NOTCH * (self.high - self.low) / math.sqrt(self.values)


@frozen
class Timing(Plain):
    """The times of one model: seconds per run, and ratios of its fastest runs to those of the first
    model.
    """

    json_keys = "name runs wall cpu wall_ratio cpu_ratio"

    name: str
    wall: Spread
    cpu: Spread
    wall_ratio: Spread
    cpu_ratio: Spread
    runs: int


@dataclass(frozen=True)
class Conditions:
    """How models run when they are measured: on the caller's own inputs, or on inputs generated
    from `seed` with the sizes `dims`, as in `verify`.
    """

    inputs: Inputs | None = None
    dims: Mapping[str, int] | None = None
    seed: int = 0
    provider: str = "cpu"
    threads: int = 1
    optimize: bool = True

    def open(self, source: Any, **more: Any) -> Session:
        """Opens a session for a model."""
        return open_session(
            source, provider=self.provider, threads=self.threads, optimize=self.optimize, **more
        )

    def case(self, model: ProofModel, session: Session) -> Chosen:
        """Returns inputs with which the model runs."""
        run = session.run
        cases = choose_cases(model.proto, self.inputs, self.dims, (self.seed,), run, edges=False)
        return cases[0]


@frozen
class BenchReport(Plain):
    """The timings, in the order of the models. `refused`: models that do not load or run, and why.
    `require`: the largest allowed ratio of a model's wall time to that of the first model.
    """

    json_keys = "provider threads dims timings refused exit_code"

    timings: tuple[Timing, ...]
    refused: Mapping[str, str]
    provider: str
    threads: int
    dims: Mapping[str, int]
    rounds: int
    require: float | None = None

    @property
    def missed(self) -> list[str]:
        """One line for each model that is slower than required."""
        return [
            f"{t.name} takes {t.wall_ratio.median:.3f} times the wall time of "
            f"{self.timings[0].name} (fastest runs of {counted(self.rounds, 'round')}), "
            f"{option('--require', 'require')} allows {self.require:g}: "
            f"{100 * (t.wall_ratio.median / self.require - 1):.3g} % too much"
            for t in self.timings[1:]
            if self.require is not None and t.wall_ratio.median > self.require
        ]

    @property
    def ok(self) -> bool:
        """True if every model runs and is as fast as required."""
        return not (self.refused or self.missed)

    @property
    def exit_code(self) -> int:
        """The exit code of `onnxgrad bench`."""
        return 0 if self.ok else NotProved.exit_code

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
    """Returns 'median (low..high)'."""
    return f"{spread.median * factor:.3g} ({spread.low * factor:.3g}..{spread.high * factor:.3g})"


def bench(
    models: Mapping[str, Model],
    conditions: Conditions = Conditions(),
    *,
    rounds: int,
    seconds: float,
    on_round: Callable[[int], None] | None = None,
) -> BenchReport:
    """Measures models, by label, on one set of inputs. Each model runs for `seconds` seconds over
    `rounds` rounds; ratios are relative to the first model. `on_round` receives the number of
    finished rounds, from 0 on.

    On a GPU, times include the copies of inputs and outputs. Raises InputError if there is no
    model, if the first model does not run, or if another model has different inputs.
    """
    if not models:
        raise InputError("bench needs at least one model")
    subjects = {name: proof_model(model) for name, model in models.items()}
    keep = len(models)
    first = next(iter(subjects))
    # sessions of an earlier proof lie elsewhere in memory: the same file then differed by up to 8 %
    close_sessions(conditions.provider)
    sessions = {first: _open_first(subjects[first], conditions, keep)}
    chosen = conditions.case(subjects[first], sessions[first])
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
            sessions[name] = sessions.get(name) or conditions.open(other.source, keep=keep)
            sessions[name].time(feeds, WARM_UP)
        except RunFailed as error:
            refused[name] = error.reason
            sessions.pop(name, None)
    if first in refused:
        raise InputError(f"{first} does not run: {refused[first]}")
    bursts = _bursts(sessions, feeds, rounds, seconds, on_round or (lambda _: None))
    wall = {name: [[w for w, _ in burst] for burst in found] for name, found in bursts.items()}
    cpu = {name: cpu_of_runs([[c for _, c in b] for b in found]) for name, found in bursts.items()}
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
    where = conditions.provider, conditions.threads
    return BenchReport(timings, refused, *where, chosen.case.dims, rounds)


def _open_first(model: ProofModel, conditions: Conditions, keep: int) -> Session:
    try:
        return conditions.open(model.source, keep=keep)
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
    """Returns the (wall, CPU) seconds of every run, by model and rounds."""
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
        # every other round runs backwards, so that no model always follows the same neighbour
        for name in reversed(order) if i % 2 else order:
            # one run warms the caches, which the other models have just evicted
            found[name].append(sessions[name].time(feeds, counts[name] + 1)[1:])
    return found


def cpu_of_runs(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns the CPU seconds of every run, by round. Where the system counts them in ticks longer
    than a run, most runs read 0: each run then counts as the mean of its round.
    """
    if all(all(times) for times in rounds):
        return [list(times) for times in rounds]
    return [[statistics.fmean(times)] * len(times) for times in rounds]


def ratio_of_fastest(times: Sequence[Sequence[float]], first: Sequence[Sequence[float]]) -> Spread:
    """Returns the ratio of the fastest runs of two models, for every group of rounds. Both
    arguments hold the seconds of every run, by round. A run of no measurable time counts as equal.
    """
    return Spread.of(
        [a / b if b > 0 else 1.0 for a, b in zip(_fastest(times), _fastest(first), strict=True)]
    )


def _fastest(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Returns the fastest run of each group of rounds. The rounds of a group are spread over the
    whole measurement.
    """
    groups = max(1, len(rounds) // _ROUNDS_PER_RATIO)
    return [min(map(min, rounds[i::groups])) for i in range(groups)]


def peak_memory(
    models: Mapping[str, str | os.PathLike[str]], conditions: Conditions
) -> dict[str, int | None]:
    """Returns the memory that loading a file and one run need beyond onnxruntime itself, in bytes
    by label. On the CPU this is resident memory: it varies by some 100 kB from run to run on small
    models, and is None on systems that do not report it. On a device it is the memory of
    onnxruntime's arena.

    All models run on inputs of the first. Raises InputError if the first model does not run or a
    device's memory cannot be counted, and RunFailed if another model does not run.
    """
    sessions = {name: conditions.open(model) for name, model in models.items()}
    first = next(iter(models))
    chosen = conditions.case(proof_model(models[first]), sessions[first])
    return {name: session.peak_memory(chosen.feeds) for name, session in sessions.items()}
