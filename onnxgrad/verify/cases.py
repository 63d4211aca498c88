"""Which feeds a proof runs on: the user's own, or generated ones at sizes that the original takes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx

from onnxgrad.errors import InputError
from onnxgrad.verify.dims import dim_plans, roles
from onnxgrad.verify.files import load_inputs
from onnxgrad.verify.inputs import bound_by, feeds_for
from onnxgrad.verify.report import Case
from onnxgrad.verify.run import RunFailed, Value

Results: TypeAlias = "dict[str, Value]"
File: TypeAlias = "str | os.PathLike[str]"
Inputs: TypeAlias = "Mapping[str, Value] | Sequence[Mapping[str, Value]] | File | Sequence[File]"

_PLANS = 2  # sizes per symbolic dimension
_PATIENCE = 30.0  # seconds to spend on finding the second plan


def choose_cases(
    model: onnx.ModelProto,
    inputs: Inputs | None,
    dims: Mapping[str, int] | None,
    seeds: Sequence[int],
    attempt: Callable[[Results], None],
) -> list[tuple[Case, Results]]:
    """The feeds of a proof. `attempt` runs the original and raises RunFailed where it does not take some.

    Generated feeds pair the first two plans that run with the seeds, each at least once. Raises InputError naming the
    option to pass when there are none.
    """
    seeds = seeds or (0,)
    if inputs is not None:
        return [_given_case(model, given, dims, seeds[0], attempt) for given in _sets(inputs, model)]
    plans = runnable(model, dims, seeds[0], attempt)
    pairs = itertools.islice(zip(itertools.cycle(plans), itertools.cycle(seeds)), max(len(plans), len(seeds)))
    cases = [(Case(plan, seed), feeds_for(model, seed=seed, dims=plan)) for plan, seed in pairs]
    return [cases[0], *(case for case in cases[1:] if _runs(case[1], attempt))]


def _runs(feeds: Results, attempt: Callable[[Results], None]) -> bool:
    """False where another seed's values are refused: the first seed's were not."""
    try:
        attempt(feeds)
    except RunFailed:
        return False
    return True


def _given_case(
    model: onnx.ModelProto,
    given: Mapping[str, Value],
    dims: Mapping[str, int] | None,
    seed: int,
    attempt: Callable[[Results], None],
) -> tuple[Case, Results]:
    feeds = feeds_for(model, seed=seed, dims=dims, given=given)
    try:
        attempt(feeds)
    except RunFailed as error:
        raise InputError(
            f"the original model does not run on the given inputs: {error.reason}; skip the proof with --no-verify"
        ) from error
    return Case(bound_by(model, feeds), None), feeds


def _sets(inputs: Inputs, model: onnx.ModelProto) -> list[Mapping[str, Value]]:
    if isinstance(inputs, Mapping):
        return [inputs]
    if isinstance(inputs, (str, os.PathLike)):
        return [load_inputs(inputs, model)]
    arrays = [item for item in inputs if isinstance(item, Mapping)]
    files = [item for item in inputs if isinstance(item, (str, os.PathLike))]
    return arrays if arrays else [load_inputs(files, model)]


def runnable(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None,
    seed: int,
    attempt: Callable[[Results], None],
    *,
    count: int = _PLANS,
) -> list[dict[str, int]]:
    """The first `count` plans of `dim_plans` at which the model runs; InputError when it runs at none."""
    good: list[dict[str, int]] = []
    first: RunFailed | None = None
    started = time.monotonic()
    for plan in dim_plans(model, dims):
        try:
            attempt(feeds_for(model, seed=seed, dims=plan))
        except RunFailed as error:
            first = first or error
            if error.stage != "run" and not good:
                break  # it died or hung: other sizes would cost as much again
        else:
            good.append(plan)
        if len(good) == count or (good and time.monotonic() - started > _PATIENCE):
            break
    if not good and first is not None:
        raise InputError(
            f"the original model does not run on generated inputs: {first.reason}; {_advice(model)}"
        ) from first
    return good


def _advice(model: onnx.ModelProto) -> str:
    names = [value.name for value in model.graph.input]
    option = f"pass real inputs with --input {names[0] if names else 'NAME'}=FILE"
    symbols = list(roles(model.graph))[:4]
    if symbols:
        option += f" or sizes with {' '.join(f'--dim {symbol}=SIZE' for symbol in symbols)}"
    return f"{option}, or skip the proof with --no-verify"
