"""The driver of `float16`: converts weights and computations to float16 within a bound, and finds
the values that are too large.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load_own, read
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_bytes
from onnxgrad.jobs.declarations import Float16Options
from onnxgrad.jobs.float16_search import Float16Search
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.outcome import Clock, Outcome
from onnxgrad.jobs.proving import original_of, runnable, with_bound
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.laws.float16.forms import FAR, LARGEST
from onnxgrad.laws.float16.keeping import heads, names_of
from onnxgrad.name_lists import names_among
from onnxgrad.options import providers_of
from onnxgrad.passes.float16 import Float16
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify import run
from onnxgrad.verify.feeds.edge_cases import FULL
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results, choose_cases
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session, versions
from onnxgrad.wording import option

# as a name in `keep`: search for the nodes to keep
AUTO = "auto"
# the opset in which Less and Where accept float32
_OLDEST = 9


def float16(
    model: ModelLike,
    options: Float16Options,
    hooks: Hooks | None = None,
    outcome: Outcome | None = None,
    *,
    rebasable: bool = False,
) -> Outcome:
    """Converts a model and proves the result. Errors of the work are stored in the outcome.
    `rebasable`: the outcome has the record for `rebase`.
    """
    outcome, hooks, clock = outcome or Outcome(), hooks or Hooks(), Clock()
    proof = None
    if options.verify:
        proof = with_bound(options.proof())
    try:
        with hooks.limits(options.timeout, options.max_memory):
            model = settled(model)
            known = {AUTO, *_names(model)} if options.keep or options.convert else {AUTO}
            kept = names_among(options.keep, known, "keep")
            if AUTO in kept and proof is None:
                raise InputError(f"keep '{AUTO}' searches by proofs: leave the proof on")
            converted = names_among(options.convert, known, "convert")
            halving = Float16(
                joined(name for name in kept if name != AUTO), options.io, (), joined(converted)
            )
            outcome.adopt(_converted(model, halving, proof, clock, AUTO in kept, rebasable))
            if AUTO in kept and not outcome.trace.rewrites:
                raise NotProved(
                    f"keep '{AUTO}' leaves every node in float32, so nothing is converted; "
                    "nothing was written"
                )
            hooks.accept(outcome)
            if hooks.write is not None:
                outcome.written = hooks.write(outcome.program)
    except OnnxgradError as error:
        outcome.error = error
    clock.switch("done")
    outcome.seconds = clock.spent
    return outcome


def with_large(pipeline: Pipeline, model: ModelLike, proof: Mapping[str, Any]) -> Pipeline:
    """Returns the pipeline with the values that passed 65504 in each pass `float16`."""
    large = tuple(values_beyond(model, LARGEST, FAR, proof))
    return Pipeline(
        tuple(replace(p, large=large) if isinstance(p, Float16) else p for p in pipeline.passes)
    )


def _converted(
    model: ModelLike, halving: Float16, proof: Mapping[str, Any] | None, clock: Clock, auto: bool,
    rebasable: bool,
) -> Outcome:  # fmt: skip
    """Converts, and proves unless `proof` is None; with `auto`, searches for the nodes that must
    stay in float32. Raises errors as `optimize`.
    """
    large = [] if proof is None else values_beyond(model, LARGEST, FAR, proof)
    halving = replace(halving, large=tuple(large))

    def made(halving: Float16, conversions: int | None = None) -> Outcome:
        return optimize_program(
            model,
            Pipeline((halving,)),
            prove=proof is not None,
            proof=proof,
            explain=True,
            on_stage=clock.switch,
            limit=conversions,
            blame=not auto,
            rebasable=rebasable,
        )

    if auto:
        halving = replace(halving, stay=tuple(heads(load_own(model)).items()))
        return Float16Search(made, halving).run()
    try:
        try:
            return made(halving)
        except RewriteRefuted as error:
            fault = _fault(error, proof or {})
            if not fault:
                raise
            done = made(replace(halving, keep=f"{halving.keep} Transpose"))
            done.trace.notes[f"Transpose: all stay in float32, since {fault}"] = None
            return done
    except RewriteRefuted as error:
        names = option("--keep NAME", "keep=[NAME]")
        more = option("--metric worst=X", "metric='worst=X'")
        auto_text = option(f"--keep {AUTO}", f"keep=['{AUTO}']")
        error.args = (
            f"{error}; {names} leaves an operator in float32, {auto_text} searches for those that "
            f"must stay, {more} allows more",
        )
        raise


def _fault(refuted: RewriteRefuted, proof: Mapping[str, Any]) -> str:
    """Returns how onnxruntime crashes while it loads the refuted result; empty if it does not, or
    if no Transpose can be the cause.
    """
    if refuted.done is None:
        return ""
    program = refuted.done.program
    moved = (b.out.dtype for b in program.main.walk() if b.is_op("Transpose"))
    if TensorProto.FLOAT16 not in moved:
        return ""
    try:
        open_session(to_bytes(program), provider=providers_of(proof.get("provider") or "cpu")[0])
    except RunFailed as error:
        if error.stage == "killed":
            version = versions()["onnxruntime"]
            return f"onnxruntime {version} crashes while it loads them in float16 ({error.reason})"
    return ""


def _names(model: ModelLike) -> Iterator[str]:
    """Yields the names by which nodes can be kept or converted."""
    return (name for b in read(model).main.walk() for name in names_of(b))


def joined(names: Iterable[str]) -> str:
    """Returns names in the form of the pass, where a blank separates names and a ? matches it."""
    return " ".join(name.replace(" ", "?") for name in names)


def values_beyond(
    model: ModelLike, least: float, most: float, proof: Mapping[str, Any]
) -> list[str]:
    """Returns the float32 values of the main graph with an element whose magnitude is above `least`
    and below `most`, on the inputs of a proof with these options of `verify`.

    The result is empty if the model does not run; the proof reports the reason.
    """
    program = load_own(model)
    block = program.main
    found = (v for b in block.bindings for v in b.outputs if v is not None)
    values = [v for v in found if v.dtype == TensorProto.FLOAT]
    if program.opset < _OLDEST or not values:
        return []
    maxima = {}
    with emitting(block):
        for v in values:
            size = op.Abs(v)
            near = op.Where(op.Less(size, np.float32(most)), size, np.float32(0))
            maxima[v.name] = op.ReduceMax(near, keepdims=0)
    names = {name: v.name for name, v in maxima.items()}
    for v in maxima.values():
        block.add_output(v)
    with original_of(program) as original, runnable(program) as asking:
        return _large(original, asking, names, least, proof)


def _large(
    model: Any, asking: Any, names: Mapping[str, str], least: float, proof: Mapping[str, Any]
) -> list[str]:
    provider = providers_of(proof.get("provider") or "cpu")[0]
    try:
        proto = proof_model(model).proto
        cases = choose_cases(
            proto,
            proof.get("inputs"),
            proof.get("dims"),
            proof.get("seeds", (0, 1)),
            lambda feeds: run(model, feeds, provider=provider, optimize=False),
        )
        feeds = [case.feeds for case in cases]
        found = [_maxima(asking, given, names, provider) for given in feeds]
    except (RunFailed, InputError):
        return []
    if proof.get("inputs") is None:
        full = Feeder(proto).varied(feeds[0], cases[0].case.dims, FULL)
        with contextlib.suppress(RunFailed):
            found.append(_maxima(asking, full, names, provider))
    return [
        name for name, at in names.items() if any(float(np.asarray(r[at])) > least for r in found)
    ]


def _maxima(asking: Any, feeds: Results, names: Mapping[str, str], provider: str) -> Results:
    return run(asking, feeds, provider=provider, optimize=False, outputs=[*names.values()])
