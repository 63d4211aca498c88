"""Compares a model with stored results, such as those of the framework that exported it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import CannotRun, InputError
from onnxgrad.ir.storage.numpy_files import read_arrays
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import compare
from onnxgrad.verify.coverage.summary import NOT_ASKED, Coverage
from onnxgrad.verify.feeds.generate import Feeder, bound_by
from onnxgrad.verify.feeds.input_files import load_inputs
from onnxgrad.verify.feeds.proof_cases import Inputs
from onnxgrad.verify.float64_check import Oracle
from onnxgrad.verify.interface import Demands, correspondence
from onnxgrad.verify.layers.comparison import keep_run, stored_inside
from onnxgrad.verify.layers.pairs import makers_of
from onnxgrad.verify.onnxruntime_check import as_computed, calibrate, held_against, open_original
from onnxgrad.verify.output_dependencies import float_types
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.random_operators import Draws, left_random, randoms
from onnxgrad.verify.report import Case, Check, Report
from onnxgrad.verify.request import Request, Stored, with_outputs
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.tolerance import in_onnxruntime, is_float
from onnxgrad.verify.trials import Found, Trial, same_bits
from onnxgrad.verify.values import Value
from onnxgrad.wording import option

_OF = "the model"


def against_stored(model: ProofModel, stored: Stored, request: Request) -> Report:
    """Compares stored results with those of `model`, as `_compared` does. If the request has no
    inputs, the inputs stored with the results are used. If the request is for layers, values inside
    the model may be stored too.
    """
    names, proto = request.map, model.proto
    expected, inner = _loaded(stored, proto, names), dict[str, Value]()
    given = _taken(expected, {v.name for v in proto.graph.input}, proto, names)
    if given and request.inputs is None:
        request = replace(request, inputs=given)
    if request.layers:
        inner = _taken(expected, {names.get(name, name) for name in expected}, proto, names)
        names = {ours: theirs for ours, theirs in names.items() if ours not in inner}
    demands = _demands(proto, expected, names, request.bounds, alone=not inner)
    report, own = _compared(model, expected, replace(request, map=names), demands)
    lacking = "" if request.share is None else report.coverage.lacks(request.share)
    if report and lacking:
        report = replace(report, ok=False, unproved=(lacking,))
    if request.keep is not None:
        notes = keep_run(request.keep, own, proto)
        report = replace(report, notes=(*report.notes, *notes))
    if request.layers:
        found = stored_inside(model, inner, own, request, demands)
        report = replace(report, layers=found)
    return report


def _compared(
    model: ProofModel, expected: dict[str, Value], request: Request, demands: Demands
) -> tuple[Report, Trial]:
    """Compares results of `model` with stored ones, in onnxruntime with optimisations on and off
    and in float64. The tolerance is a small multiple of the model's own noise, or the bounds of the
    request. The request's `names` map stored inputs and outputs to the model's names.

    An output without stored results leaves the verdict at "not proved", unless the request allows
    it to be empty. Raises InputError for a missing input or an unknown name, and CannotRun if the
    model does not run on the inputs.
    """
    start, bounds = time.monotonic(), request.bounds
    settings, checks = request.settings, request.checks
    left = left_random(model.proto, randoms(model.proto))
    back = {theirs: ours for ours, theirs in demands.names.outputs.items()}
    outputs = [back.get(v.name, v.name) for v in model.proto.graph.output]
    request = with_outputs(request, outputs)
    depends = {back.get(n, n): nodes for n, nodes in left.items()}
    draws = Draws(model, model, left=depends, why="that differ from run to run")
    demands = replace(demands, random=frozenset(draws.left))
    feeds = _feeds(model.proto, request.inputs, demands)
    case = Case(bound_by(model.proto, feeds), None)
    masks = {demands.names.outputs.get(n, n): mask for n, mask in request.excuse.items()}
    own = Trial(case, feeds, {}, excuse=masks)
    found = Found(unproved=draws.reasons(bounds), random=demands.random)
    ran = dict[str, Check]()
    oracle = Oracle(model, model, request.float64_budget) if "float64" in checks else None
    if oracle is not None:
        own.exact = oracle.original(feeds)
    why = ""
    if "onnxruntime" in checks:
        try:
            own.expected = open_original(model, settings).run(feeds)
        except RunFailed as error:
            if error.limit:
                raise
            raise CannotRun(
                f"the model does not run on the given inputs: {error.reason}"
            ) from error
        why = calibrate(model, [own], settings)
    noise = {back.get(name, name): size for name, size in own.noise.items()}
    ranges = {back.get(name, name): legal for name, legal in own.ranges.items()}
    given = Trial(case, feeds, expected, noise=noise, ranges=ranges, excuse=request.excuse)
    if "onnxruntime" in checks:
        fed = replace(demands, names=replace(demands.names, inputs={}, casts={}))
        ran["onnxruntime"] = held_against(model, [given], found, settings, fed, why)
    if oracle is not None:
        ran["float64"] = _in_float64(oracle, own, given, demands, found)
    runs = (demands.names.results(values) for values in (own.expected, own.deployed or {}))
    found.accept_own_noise({name for results in runs for name in same_bits(expected, results)})
    if not any(check.ran for check in ran.values()):
        found.unproved.append(f"the float64 check could not run ({ran['float64'].why})")
    missing = found.empty(outputs, request.allow_empty)
    if missing:
        accept = option(" ".join(f"--allow-empty {n}" for n in missing), f"allow_empty={missing}")
        found.unproved.append(
            f"nothing finite was stored of {', '.join(missing)} (accept it: {accept})"
        )
    report = Report(
        ok=all(d.ok for d in found.differences.values()) and not found.reasons(),
        differences=tuple(found.differences.values()),
        checks=ran,
        cases=(own.case,),
        provider=found.ran_on(settings.provider),
        idle=tuple(found.idle),
        notes=found.remarks(),
        noise=noise,
        seconds=time.monotonic() - start,
        compared=found.compared(),
        unproved=found.reasons(),
        bounds=str(bounds),
        coverage=_covered(oracle, own),
    )
    return report, own


def _covered(oracle: Oracle | None, own: Trial) -> Coverage:
    """Returns the coverage of the given inputs."""
    if oracle is None or own.exact is None:
        return Coverage(why=f"the float64 check did not run: {oracle.why}" if oracle else NOT_ASKED)
    return Coverage(items=tuple(oracle.covered("original")))


def _in_float64(oracle: Oracle, own: Trial, given: Trial, demands: Demands, found: Found) -> Check:
    if own.exact is None:
        return found.check("float64", 0, oracle.why)
    exact = as_computed(demands.names.results(own.exact), given.expected)
    limits = demands.allows(in_onnxruntime(given.expected, given.noise, demands.dtypes))
    found.add("float64", compare(given.expected, exact, limits, alive=given.alive), given.expected)
    return found.check("float64", 1)


def _loaded(stored: Stored, model: onnx.ModelProto, names: Mapping[str, str]) -> dict[str, Value]:
    """Returns the stored results under their own names."""
    if isinstance(stored, Mapping):
        return {name: value if value is None else _plain(value) for name, value in stored.items()}
    path = Path(stored)
    loaded = read_arrays(path)
    if not isinstance(loaded, np.ndarray):
        return {**loaded}
    outputs = [v.name for v in model.graph.output]
    if len(outputs) != 1:
        raise InputError(f"{path}: the model has {len(outputs)} outputs: store them as an .npz")
    return {next((a for a, b in names.items() if b == outputs[0]), outputs[0]): loaded}


def _taken(
    stored: dict[str, Value],
    known: Collection[str],
    model: onnx.ModelProto,
    names: Mapping[str, str],
) -> dict[str, Value]:
    """Removes and returns the stored values whose names the model has, outputs excluded."""
    outputs = {v.name for v in model.graph.output}
    found = [n for n in stored if names.get(n, n) in known and names.get(n, n) not in outputs]
    return {name: stored.pop(name) for name in found}


def _plain(value: Any) -> Any:
    return value if isinstance(value, list) else np.asarray(value)


def _demands(
    model: onnx.ModelProto,
    expected: Mapping[str, Value],
    names: Mapping[str, str],
    bounds: Bounds,
    *,
    alone: bool = True,
) -> Demands:
    """Returns the demands that map stored results to the model's outputs. `alone`: at least one
    result must be stored. Raises InputError for a name that the model lacks.
    """
    theirs = {v.name for v in model.graph.output}
    where = option("--expect", "expect:")
    inside = makers_of(model)
    for name in expected:
        if names.get(name, name) not in theirs:
            if names.get(name, name) in inside:
                raise InputError(
                    f"{where} {name!r} was stored, which is not an output: "
                    f"{option('--layers', 'layers=True')} compares values inside the model"
                )
            raise InputError(
                f"{where} {name!r} was stored, but the model has no such output (outputs: "
                f"{', '.join(sorted(theirs))}); {option('--map', 'map=')} names the output there"
            )
    if not expected and alone:
        raise InputError(f"{where} nothing was stored")
    bounds.check(list(expected))
    stored = onnx.ModelProto()  # stands for the model that computed the results: it has only names
    back = {b: a for a, b in names.items()}
    for values, made in (
        (model.graph.input, stored.graph.input),
        (model.graph.output, stored.graph.output),
    ):
        made.extend(onnx.ValueInfoProto(name=back.get(v.name, v.name), type=v.type) for v in values)
    demands, _ = correspondence(stored, model, names, bounds)
    dtypes = {back.get(name, name): on for name, on in float_types(model).items()}
    return Demands(replace(demands.names, wanted=set(expected)), bounds, _OF, dtypes)


def _feeds(model: onnx.ModelProto, inputs: Inputs | None, demands: Demands) -> dict[str, Value]:
    """Returns the given inputs under the model's names. Raises InputError if one is missing."""
    where = option("--input", "inputs=")
    if inputs is None:
        raise InputError(f"stored results need the inputs that produced them: {where}")
    if isinstance(inputs, Mapping):
        given = {name: _plain(value) for name, value in inputs.items()}
    elif isinstance(inputs, (str, os.PathLike)) or all(
        isinstance(item, (str, os.PathLike)) for item in inputs
    ):
        given = load_inputs(inputs, model)  # type: ignore[arg-type]  # seen above
    else:
        raise InputError(f"stored results belong to one set of inputs: {where} gives several")
    feeds = demands.names.feeds(given)
    missing = [
        v.name
        for v in model.graph.input
        if v.name not in feeds
        and v.name not in {t.name for t in model.graph.initializer}
        and v.type.WhichOneof("value") != "optional_type"
    ]
    if missing:
        raise InputError(
            f"stored results need all inputs that produced them: {missing[0]!r} is not among "
            f"{', '.join(feeds)}"
        )
    if demands.bounds:
        feeds = {v.name: _as_wide(feeds[v.name], v) for v in model.graph.input if v.name in feeds}
    return Feeder(model).feeds(seed=0, given=feeds)


def _as_wide(value: Value, taken: onnx.ValueInfoProto) -> Value:
    """Returns floats in the width that the model accepts."""
    code = taken.type.tensor_type.elem_type
    if not isinstance(value, np.ndarray) or not is_float(value) or not code:
        return value
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    return value.astype(dtype) if is_float(np.zeros(0, dtype)) else value
