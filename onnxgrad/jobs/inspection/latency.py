"""The driver of `bench`: measures models in turns, and checks the required ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.model_kinds import settled
from onnxgrad.jobs.declarations import BenchOptions
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.limits import SECONDS
from onnxgrad.verify.bench import BenchReport, Conditions, bench
from onnxgrad.wording import option


def measure(
    models: Mapping[str, ModelLike],
    options: BenchOptions,
    hooks: Hooks | None = None,
    on_round: Callable[[int], None] | None = None,
) -> BenchReport:
    """Measures models, by label, on the same inputs; `on_round` receives the number of finished
    rounds.

    The limits do not include the time of measuring. Raises InputError if the first model does not
    run, if another has other inputs, and if a ratio is required of a single model.
    """
    hooks = hooks or Hooks()
    if options.require is not None and len(models) < 2:
        raise InputError(
            f"{option('--require', 'require')} compares with the first model: name two models "
            "or more"
        )
    seconds = SECONDS if options.timeout is None else options.timeout
    with hooks.limits(seconds + 2 * len(models) * options.seconds, options.max_memory):
        conditions = Conditions(**options.running(), seed=options.seed, optimize=options.optimize)
        taken = {name: settled(model) for name, model in models.items()}
        found = bench(
            taken, conditions, rounds=options.rounds, seconds=options.seconds, on_round=on_round
        )
    return replace(found, require=options.require)
