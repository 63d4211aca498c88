"""Chooses the feeds of a proof: the user's own, or generated ones at sizes with which the original
runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from onnx import ModelProto

from onnxgrad.errors import CannotRun, InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import model_nodes, weight_elements
from onnxgrad.verify.compare import has_finite
from onnxgrad.verify.feeds.dims import (
    dim_plans,
    evaluate,
    named_dims,
    required_inputs,
    roles,
    symbols_in,
    unknown_ranks,
)
from onnxgrad.verify.feeds.edge_cases import variants
from onnxgrad.verify.feeds.generate import Feeder, bound_by
from onnxgrad.verify.feeds.input_files import load_inputs
from onnxgrad.verify.report import Case
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.values import Value
from onnxgrad.wording import dim_option, input_option

_JUMPS = {
    *domains.COMPARISONS, *domains.LOGICAL, *domains.ROUNDINGS, "ArgMax", "ArgMin", "Binarizer",
    "Clip", "Compress", "HardSigmoid", "Hardmax", "If", "IsInf", "IsNaN", "Loop", "Max", "Min",
    "Mod", "NonMaxSuppression", "NonZero", "Not", "QuantizeLinear", "ThresholdedRelu", "TopK",
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "Unique", "Where",
}  # fmt: skip
_NODES = 128
_WEIGHTS = 1 << 17


def jumps(model: ModelProto) -> bool:
    """True if the model is small and contains, also nested or in a function, an operator whose
    result jumps or saturates.
    """
    return small(model) and any(node.op_type in _JUMPS for node in model_nodes(model))


def small(model: ModelProto) -> bool:
    """True if a model is small enough for many runs in a proof."""
    nodes = itertools.islice(model_nodes(model), _NODES + 1)
    return len(list(nodes)) <= _NODES and weight_elements(model.graph) <= _WEIGHTS


Results: TypeAlias = "dict[str, Value]"
Inputs: TypeAlias = (
    "Mapping[str, Value] | Sequence[Mapping[str, Value]] | str | os.PathLike[str] | Sequence[str | "
    "os.PathLike[str]]"
)
Attempt: TypeAlias = "Callable[[Results], Results]"
Refused: TypeAlias = "Callable[[Mapping[str, int], RunFailed], None]"

_PLANS = 2  # sizes per symbolic dimension
_TRY_ON = ("run", "reference")  # stages of a RunFailed after which other feeds are tried
_ROOM = 8  # elements that an input needs for zeros, ties and other values
_EDGE_CASES = 2  # the most edge cases at one plan
_MORE_SEEDS = 5  # the most cases of small models whose results jump
_PATIENCE = 30.0  # seconds to spend on finding the second plan


@frozen
class Chosen:
    """One case of a proof: its feeds and the original's results."""

    case: Case
    feeds: Results
    results: Results


def choose_cases(
    model: onnx.ModelProto,
    inputs: Inputs | None,
    dims: Mapping[str, int] | None,
    seeds: Sequence[int],
    attempt: Attempt,
    *,
    edges: bool = True,
    on_refused: Refused | None = None,
    feeder: Feeder | None = None,
) -> list[Chosen]:
    """Returns the cases of a proof. `attempt` runs the original and raises RunFailed if it does not
    accept the feeds.

    Generated feeds combine the first two plans that run with the seeds, each at least once. With
    `edges`, the last case is an edge case (`edge_cases`). If the inputs have little room for one,
    edge cases at every plan are added; if the model is small and its results jump (`jumps`), edge
    cases of more seeds are added. `on_refused` receives the sizes with which the original does not
    run; `feeder` is the Feeder of this model, if one exists. Raises InputError, which names the
    option to pass, if there are no feeds, and RunFailed if a limit was reached.
    """
    seeds = seeds or (0,)
    feeder = feeder or Feeder(model)
    if inputs is not None:
        return [
            _given_case(feeder, given, dims, seeds[0], attempt) for given in sets_of(inputs, model)
        ]
    first = _running(feeder, dims, seeds[0], attempt, _PLANS, on_refused)
    plans = [dict(chosen.case.dims) for chosen in first]
    pairs = itertools.islice(
        zip(itertools.cycle(plans), itertools.cycle(seeds)), max(len(plans), len(seeds))
    )
    *earlier, (plan, seed) = pairs
    pick = _Picker(feeder, attempt, first)
    if not edges:
        return pick.usual([*earlier, (plan, seed)])
    more = pick.more(plans[0], seeds) if len(seeds) > 1 and jumps(model) else []
    more += pick.named_like_formulas(plans[0], seeds[0])
    if earlier and pick.roomy(plan, seed):
        last = pick.edge(plan, seed)
        if last and _alive(last[-1].results):
            return [*pick.usual(earlier), *last, *more]
    usual = pick.usual([*earlier, (plan, seed)])
    tight = [p for i, p in enumerate(plans) if i == 0 or not pick.wide(p, seeds[0])]
    return [*usual, *(chosen for p in tight for chosen in pick.edge(p, seeds[0])), *more]


@frozen
class _Picker:
    """Makes the cases of one model, without those that the original refuses."""

    feeder: Feeder
    attempt: Attempt
    ran: Sequence[Chosen]

    def usual(self, pairs: Sequence[tuple[dict[str, int], int]]) -> list[Chosen]:
        """Returns cases in general position. The model is known to run the first; it may refuse
        those of other seeds.
        """
        found = []
        for plan, seed in pairs:
            known = [chosen for chosen in self.ran if chosen.case == Case(plan, seed)]
            if not known:
                feeds = self.feeder.feeds(seed=seed, dims=plan)
                with contextlib.suppress(RunFailed):
                    known = [Chosen(Case(plan, seed), feeds, self.attempt(feeds))]
            found += known
        return found

    def edge(self, plan: dict[str, int], seed: int) -> list[Chosen]:
        """Returns the strongest edge case that the original accepts, or two if one leaves nothing
        finite or varies only one data-dependent size. The list is empty if the original accepts
        none or has no inputs.
        """
        found: list[Chosen] = []
        names = [value.name for value in required_inputs(self.feeder.model.graph)]
        for edges in variants(names) if names else ():
            feeds = self.feeder.feeds(seed=seed, dims=plan, edges=edges)
            try:
                found.append(Chosen(Case(plan, seed, True), feeds, self.attempt(feeds)))
            except RunFailed as error:
                if error.stage not in _TRY_ON:
                    break  # it died or hung, and might do so with the next feeds
                continue
            # too few finite values: add a milder case
            if (edges.only is None and _alive(found[-1].results)) or len(found) == _EDGE_CASES:
                break
        return found

    def more(self, plan: dict[str, int], seeds: Sequence[int]) -> list[Chosen]:
        """Returns usual and edge cases of other seeds in turn, for models that few cases test too
        little.
        """
        found: list[Chosen] = []
        for seed in range(max(seeds) + 1, max(seeds) + 1 + _MORE_SEEDS):
            found += [*self.usual([(plan, seed)]), *self.edge(plan, seed)[:1]]
        return found

    def named_like_formulas(self, plan: dict[str, int], seed: int) -> list[Chosen]:
        """Returns a case in which each size with a name such as "N+M" is another than the formula
        says, because no input has to obey it; none if the original refuses.
        """
        formulas = {
            dim: evaluate(dim, plan) + 1 + i
            for i, dim in enumerate(named_dims(self.feeder.model.graph))
            if symbols_in(dim) != {dim}
        }
        return self.usual([({**plan, **formulas}, seed)]) if formulas else []

    def roomy(self, plan: dict[str, int], seed: int) -> bool:
        """True if every input has room for zeros, ties and other values at this plan."""
        feeds = self.feeder.feeds(seed=seed, dims=plan)
        return all(isinstance(v, np.ndarray) and v.size >= _ROOM for v in feeds.values())

    def wide(self, plan: dict[str, int], seed: int) -> bool:
        """True if no input shrinks to one element, with which a mask has only one value."""
        feeds = self.feeder.feeds(seed=seed, dims=plan)
        return not any(isinstance(v, np.ndarray) and v.ndim and v.size <= 1 for v in feeds.values())


def _alive(results: Results) -> bool:
    """True if every output has a finite value to compare."""
    return all(has_finite(value) for value in results.values())


def _given_case(
    feeder: Feeder,
    given: Mapping[str, Value],
    dims: Mapping[str, int] | None,
    seed: int,
    attempt: Attempt,
) -> Chosen:
    feeds = feeder.feeds(seed=seed, dims=dims, given=given)
    try:
        results = attempt(feeds)
    except RunFailed as error:
        if error.limit:
            raise
        raise CannotRun(
            f"the original model does not run on the given inputs: {error.reason}"
        ) from error
    return Chosen(Case(bound_by(feeder.model, feeds), None), feeds, results)


def sets_of(inputs: Inputs, model: onnx.ModelProto) -> list[Mapping[str, Value]]:
    """Returns the arrays of each case. Raises InputError if a case has none, or if `inputs` is an
    iterator that may already be exhausted, because the proof would silently use generated values.
    """
    if isinstance(inputs, Mapping):
        return [inputs]
    if isinstance(inputs, (str, os.PathLike)):
        return [load_inputs(inputs, model)]
    if isinstance(inputs, Iterator):
        raise InputError("an iterator of inputs can be read only once: pass a list")
    items = list(inputs) if isinstance(inputs, Sequence) else []
    arrays = [item for item in items if isinstance(item, Mapping)]
    files = [item for item in items if isinstance(item, (str, os.PathLike))]
    if not items or len(items) not in (len(arrays), len(files)):
        kinds = ", ".join(dict.fromkeys(type(item).__name__ for item in items)) or "nothing"
        raise InputError(
            "inputs are arrays by the names of the model's inputs, a list of such, or files, not "
            f"{type(inputs).__name__}{f' of {kinds}' if isinstance(inputs, Sequence) else ''}"
        )
    return arrays or [load_inputs(files, model)]


def runnable(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None,
    seed: int,
    attempt: Attempt,
    *,
    count: int = _PLANS,
    given: Mapping[str, Value] | None = None,
) -> list[dict[str, int]]:
    """Returns the first `count` plans of `dim_plans` at which the model runs, beside the `given`
    arrays. Raises errors as `choose_cases`.
    """
    found = _running(Feeder(model), dims, seed, attempt, count, given=given)
    return [dict(chosen.case.dims) for chosen in found]


def _running(
    feeder: Feeder,
    dims: Mapping[str, int] | None,
    seed: int,
    attempt: Attempt,
    count: int,
    on_refused: Refused | None = None,
    given: Mapping[str, Value] | None = None,
) -> list[Chosen]:
    good: list[Chosen] = []
    first: RunFailed | None = None
    started = time.monotonic()
    for plan in dim_plans(feeder.model, dims):
        feeds = feeder.feeds(seed=seed, dims=plan, given=given)
        try:
            good.append(Chosen(Case(plan, seed), feeds, attempt(feeds)))
        except RunFailed as error:
            first = first or error
            if on_refused is not None:
                on_refused(plan, error)
            if error.limit and not good:
                raise
            if error.stage not in _TRY_ON and not good:
                break  # it died, and other sizes would take as long
        if len(good) == count or (good and time.monotonic() - started > _PATIENCE):
            break
    if not good and first is not None:
        if first.limit:
            raise first
        raise CannotRun(_refused(feeder.model, first)) from first
    return good


def _refused(model: onnx.ModelProto, error: RunFailed) -> str:
    if error.stage == "load":  # whatever the inputs
        return f"the original model does not load in onnxruntime: {error.reason}"
    name = model.graph.input[0].name if model.graph.input else "NAME"
    ranks = unknown_ranks(model.graph)
    axes = [name.replace(".rank", ".0") for name in ranks]
    symbols = [*roles(model.graph), *(n for pair in zip(ranks, axes) for n in pair)][:4]
    sizes = f" or sizes with {dim_option(*symbols)}" if symbols else ""
    return (
        f"the original model does not run on generated inputs: {error.reason}; "
        f"pass real inputs with {input_option(name)}{sizes}"
    )
