"""`float16` as Python has it, and what is said of it on the command line too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.load import ModelLike, check_room, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.save import to_bytes
from onnxgrad.jobs.observed import values_beyond
from onnxgrad.jobs.optimize import RewriteRefuted, optimize_program
from onnxgrad.jobs.outcome import Clock, Outcome
from onnxgrad.laws.float16.forms import FAR, LARGEST
from onnxgrad.limits import bounded
from onnxgrad.options import known_keywords, providers_of, several
from onnxgrad.passes.float16 import Float16
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.report.optimized import OptimizedModel
from onnxgrad.report.parts import Part, cell, number, table
from onnxgrad.verify.bounds import Bounds, PerOutput
from onnxgrad.verify.feeds.proof_cases import Inputs
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session, versions
from onnxgrad.vocabulary import FLOAT16_BOUND
from onnxgrad.wording import counted, option

_ROWS = 20


@known_keywords
@bounded
def float16(
    model: ModelLike,
    *,
    keep: Sequence[str] = (),
    convert: Sequence[str] = (),
    io: bool = False,
    rtol: PerOutput = None,
    atol: PerOutput = None,
    metric: str | Iterable[str] | None = None,
    verify: bool = True,
    provider: str = "cpu",
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    report: bool = False,
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """The model with its float32 weights and computations in float16, in the kind that was given;
    with `report=True` an `OptimizedModel`: that, what stays and why (`near_misses`), the proof.

    `keep`: nodes, values and operators, or globs of these, that stay in float32. What passes 65504,
    by its nature or on the inputs of the proof, or needs its digits (sums, powers, positions) stays
    by itself, unless `convert` names it as well, and so does what has no form in float16. Inputs
    and outputs stay float32, or with `io` become float16. Calls of local functions are opened,
    unless `keep` names the function. Constants that stand for infinity become 65504, and an epsilon
    does not become 0. `rtol`, `atol`, `metric`: bounds of the proof, as in `verify`; by default an
    output may be off by 0.02 of its largest value. Other options as those of `optimize`.

    Raises InputError for a name in `keep` or `convert` that meets nothing, and what `optimize`
    raises where the proof fails: then the operator that it names may be one to keep.

    >>> half = onnxgrad.float16("models/resnet18.onnx", keep=["Gemm"])
    >>> [t.data_type for t in half.graph.initializer if t.name == "conv1.weight"]
    [10]
    """
    given = settled(model)
    given_bounds = {"rtol": rtol, "atol": atol, "metric": metric}
    proof = bounded_by({"provider": provider, "inputs": inputs, "dims": dims} | given_bounds)
    outcome, halving = (
        Outcome("", None, "the model"),
        Float16(names_of(keep), io, (), names_of(convert)),
    )
    done = converted(given, outcome, halving, proof if verify else None)
    check_room(done.program, model)
    outcome.written = True
    result = to_kind_of(done.program, model)
    return OptimizedModel(result, outcome) if report else result


def bounded_by(proof: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `verify` with the bounds of float16, unless some are given for all outputs: those
    of single outputs are beside it.
    """
    metric = proof.get("metric") or []
    metrics = [metric] if isinstance(metric, str) else list(metric)
    bounds = Bounds.of(proof.get("atol"), proof.get("rtol"), metrics)
    return {**proof, "metric": [*([] if bounds.common else [FLOAT16_BOUND]), *metrics]}


def converted(
    model: ModelLike,
    outcome: Outcome,
    halving: Float16,
    proof: Mapping[str, Any] | None,
) -> Outcome:
    """Convert and prove (not without `proof`); `outcome` filled in. Errors as `float16`."""
    clock = Clock()
    large = [] if proof is None else values_beyond(model, LARGEST, FAR, proof)
    halving = replace(halving, large=tuple(large))

    def made(halving: Float16) -> Outcome:
        return optimize_program(
            model,
            Pipeline((halving,)),
            prove=proof is not None,
            proof=proof,
            explain=True,
            on_stage=clock.switch,
        )

    try:
        try:
            done = made(halving)
        except RewriteRefuted as error:
            fault = _fault(error, proof or {})
            if not fault:
                raise
            done = made(replace(halving, keep=f"{halving.keep} Transpose"))
            done.trace.notes[f"Transpose: all stay in float32, since {fault}"] = None
    except RewriteRefuted as error:
        names = option("--keep NAME", "keep=[NAME]")
        more = option("--metric worst=X", "metric='worst=X'")
        hint = f"{names} leaves an operator in float32, {more} allows more"
        error.args = (f"{error}; {hint}",)
        raise
    clock.switch("done")
    outcome.came_of(done)
    outcome.seconds = clock.spent
    return done


def _fault(refuted: RewriteRefuted, proof: Mapping[str, Any]) -> str:
    """How onnxruntime dies of the refuted result while it loads it; empty if it does not, or if no
    Transpose can be to blame.
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
            return f"onnxruntime {version} dies while it loads them in float16 ({error.reason})"
    return ""


def names_of(given: Sequence[str]) -> str:
    """As the pass takes them: a blank parts names there, and a ? matches it."""
    return " ".join(name.replace(" ", "?") for name in several(given, "names to keep or convert"))


def staying(outcome: Outcome, verbose: bool = False) -> Iterator[Part]:
    """What stays in float32, and which numbers float16 does not have."""
    trace = outcome.trace
    opened = sum(f.rule == "inline_call" for f in trace.firings)
    if opened:
        yield cell(
            f"{counted(opened, 'call')} of functions opened, whose bodies have no types; "
            f"{option('--keep DOMAIN::NAME', 'keep=[NAME]')} leaves one in float32 as it is"
        )
    why = Counter(reason for _, _, reason in trace.declined)
    first = {reason: where for _, where, reason in reversed(list(trace.declined))}
    if why:
        yield ""
        made = table("stays in float32 because", ">nodes", "such as")
        for reason, count in why.most_common(None if verbose else _ROWS):
            made.add_row(cell(reason), number(count), cell(first[reason].split(" = ")[0], "dim"))
        yield made
    if trace.notes:
        yield ""
        made = table("constant", "what float16 does not have of it")
        for note in list(trace.notes)[: None if verbose else _ROWS]:
            name, _, words = note.partition(": ")
            made.add_row(cell(name), cell(words))
        yield made
        if not verbose and len(trace.notes) > _ROWS:
            yield cell(f"and {len(trace.notes) - _ROWS} more (-v)", "dim")
