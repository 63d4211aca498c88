"""The jobs as Python functions. Their keywords come from the declarations of `onnxgrad.jobs`;
`functions.pyi`, for editors and mypy, is written by scripts/make_stubs.py.
"""

from __future__ import annotations

import os
from typing import Any

from onnxgrad.errors import NotProved
from onnxgrad.ir.load import ModelLike, check_room, load_own, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.jobs import extract as extracting
from onnxgrad.jobs import float16 as halving
from onnxgrad.jobs import optimize as driver
from onnxgrad.jobs.declarations import (
    ConvertOpsetOptions,
    DiffOptions,
    ExtractOptions,
    Float16Options,
    InspectOptions,
    MetadataOptions,
    OptimizeOptions,
    VerifyOptions,
)
from onnxgrad.jobs.declared import from_keywords
from onnxgrad.jobs.metadata import change
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.training import make_step
from onnxgrad.jobs.training_declarations import StepOptions
from onnxgrad.limits import limited
from onnxgrad.report import diff as comparing
from onnxgrad.report import inspection
from onnxgrad.report.diff import Diff
from onnxgrad.report.inspection import Summary
from onnxgrad.report.optimized import OptimizedModel
from onnxgrad.train.step import TrainingStep
from onnxgrad.verify import proof
from onnxgrad.verify.report import Report


@from_keywords(OptimizeOptions)
def optimize(model: ModelLike, *, options: OptimizeOptions, report: bool = False) -> Any:
    """Rewrite a model into a smaller, faster one that computes the same, and prove it.

    Returns the optimised model in the type you passed in; paths, bytes and streams return a
    ModelProto. With `report=True` returns an `OptimizedModel`: that model, its rewrites and their
    proof. `passes` accepts text, and in a list passes, rules and families too; `inputs` accepts
    files, and arrays by name. Options set here overrule the `recipe`; None: no recipe.

    Raises InputError, RewriteRefuted if the proof fails, NotProved if it proves nothing or the
    result misses what the recipe requires, LimitReached.

    >>> done = onnxgrad.optimize("models/lstmcell.onnx", report=True)
    >>> done.proof.verdict, done.rewrites[0].rule
    ('equal', 'fold_constant')
    """
    return _optimized(model, options, report)


@from_keywords(ConvertOpsetOptions)
def convert_opset(model: ModelLike, *, options: ConvertOpsetOptions, report: bool = False) -> Any:
    """Convert a model to opset `to` of the default domain (7 to 28), and prove both equal.

    Returns the model in the type you passed in; with `report=True` an `OptimizedModel`.
    Local functions, nested graphs, names, metadata and external data stay; a node is written anew
    only if its operator changed in between, and to an older opset only if that means the same
    there. Raises InputError for an operator that cannot be what it was, and as `optimize` if the
    proof fails.

    >>> onnxgrad.convert_opset("models/lstmcell.onnx", 23).opset_import[0].version
    23
    """
    return _optimized(model, options.optimizing(), report)


@from_keywords(Float16Options)
def float16(model: ModelLike, *, options: Float16Options, report: bool = False) -> Any:
    """Convert the float32 weights and computations of a model to float16, proved within a bound.

    Returns the model in the type you passed in; with `report=True` an `OptimizedModel`, whose
    `near_misses` say what stays in float32 and why. Values that pass 65504, by their nature or on
    the inputs of the proof, values that need their digits (sums, powers, positions) and operators
    without a form in float16 stay unless `convert` names them. Calls of local functions are opened,
    unless `keep` names the function. Constants that stand for infinity become 65504, and an epsilon
    does not become 0. By default an output may be off by 0.02 of its largest value.

    Raises InputError for a name in `keep` or `convert` that meets nothing, and as `optimize` if the
    proof fails: the operator that the error names may be one to keep.

    >>> half = onnxgrad.float16("models/resnet18.onnx", keep=["Gemm"])
    >>> [t.data_type for t in half.graph.initializer if t.name == "conv1.weight"]
    [10]
    """
    outcome = Outcome("", None, "the model")
    hooks = Hooks(accept=lambda found: check_room(found.program, model))
    result = to_kind_of(halving.float16(model, options, hooks, outcome).program, model)
    outcome.written = True
    return OptimizedModel(result, outcome) if report else result


@from_keywords(ExtractOptions)
def extract(model: ModelLike, *, options: ExtractOptions) -> Any:
    """Return the part of a model that computes `outputs` from `inputs`, in the type you passed in.

    Both are values of the main graph; None: the model's own. The proof runs the part on the values
    that the whole model has at its inputs. Raises InputError for a name that does not exist, an
    input whose type is unknown, and outputs that depend on more than the inputs; NotProved if the
    part computes something else.

    >>> part = onnxgrad.extract("models/training/mlp.onnx", outputs=["linear_2"])
    >>> [v.name for v in part.graph.output]
    ['linear_2']
    """
    given = settled(model)
    hooks = Hooks(on_read=lambda program: check_room(program, model))
    found = extracting.extract(given, options, hooks)
    if found.report is not None and not found.ok:
        raise NotProved(f"the part: {found.report.summary}; nothing was written")
    return to_kind_of(found.program, model)


@from_keywords(MetadataOptions)
def set_metadata(model: ModelLike, *, options: MetadataOptions) -> Any:
    """Set and unset entries of a model's metadata, and the other fields of its header ("" and 0:
    none).

    Returns the model in the type you passed in; everything else stays field for field, which is
    checked. `inspect(model).metadata` has the entries. Raises InputError for an entry to `unset`
    that does not exist.

    >>> model = onnxgrad.set_metadata("models/lstmcell.onnx", {"author": "me"}, model_version=2)
    >>> onnxgrad.inspect(model).metadata["author"], model.model_version
    ('me', 2)
    """
    with limited(options.timeout, options.max_memory):
        program = load_own(model)
        check_room(program, model)
        change(program, options.values or {}, options.unset, options.header())
        return to_kind_of(program, model)


@from_keywords(VerifyOptions)
def verify(a: ModelLike, b: ModelLike | None = None, *, options: VerifyOptions) -> Report:
    """Compare model `b` with the original `a` by running both.

    Returns a report. A difference is in the report and raises nothing; neither does an output
    without one finite element to compare, or a limit that was reached: the verdict is "not proved".

    `inputs` accepts one or several sets of arrays by input name, or files (.npz, .npy, .pb). None
    generates them from `seeds`, at two sizes of every symbolic dimension if the original runs at
    two. `atol`, `rtol`: |a - b| <= atol + rtol * |a| replaces the calibrated tolerance, for every
    output of floats or for each in a mapping by name; `metric` is "cosine=0.999", "psnr=40",
    "top1=0.99" or "worst=0.01", one or several, "logits:top1=1" for one output. With bounds a float
    may have another width in `b`, which receives `a`'s inputs rounded to it; the verdict is "within
    bounds". `expect` compares the outputs of `a` with stored results in place of `b`.

    Raises InputError if the original cannot be run or fed or if a provider is missing, and
    LimitReached.

    >>> onnxgrad.verify("models/lstmcell.onnx", "models/lstmcell.onnx").verdict
    'equal'
    """
    return proof.verify(a, b, **options.shared(VerifyOptions))


@from_keywords(InspectOptions)
def inspect(model: ModelLike, *, options: InspectOptions) -> Summary:
    """Return the contents of a model: interface, operators, parameters, metadata, and the costs
    of a run. Runs nothing and reads no external data.

    `costs` are FLOPs (two for a multiplication and an addition) and bytes, if sizes are known;
    `dims` sets sizes of symbols for the costs alone. Unknown costs are counted as unknown.

    Raises InputError if the model cannot be read or lacks a symbol of `dims`.

    >>> onnxgrad.inspect("models/training/mlp.onnx").stats.operators["Gemm"]
    3
    """
    with limited(options.timeout, options.max_memory):
        return inspection.inspect(model, options.dims)


@from_keywords(DiffOptions)
def diff(a: ModelLike, b: ModelLike, *, options: DiffOptions) -> Diff:
    """Return the differences from model `a` to model `b`. Runs neither, and accepts operators that
    do not exist.

    Nodes are matched by the name of their first output, initializers by name. Weights are compared
    by content, wherever they lie. Raises InputError if a model or its external data cannot be
    read.
    """
    with limited(options.timeout, options.max_memory):
        return comparing.diff(a, b)


@from_keywords(StepOptions)
def training_step(model: ModelLike, *, options: StepOptions) -> TrainingStep:
    """Return one step of training as a graph, for any model whose gradient can be formed.

    `loss` is a Loss, its text as `parse_loss` reads it, the name of a scalar value, a function of
    the model's values by name, or None for the only output. `optimizer` is AdamW by default;
    weights narrower than float32 follow master weights, which are states. `wrt` names the weights
    to train as `gradient` does. `metrics` are outputs of the model that the step returns beside
    the loss, and "gradient_norm", the norm of all gradients before `clip_norm`.

    `groups` are optimisers, or the hyperparameters that differ, by globs of weights; the first that
    fits decides, and `lr` counts in proportion to that of `optimizer`. Gradients are clipped by
    value, then by norm. `loss_scale` ("dynamic", or a number) multiplies the loss of a float16
    model; a step whose gradient overflows updates nothing. `schedule` is the learning rate inside
    the graph, in place of an input. `batch_norm` and `dropout` are as the file has them by default.
    `inputs_at` are values that become inputs, which `features` computes.

    Raises InputError for a loss that does not fit, for a weight that the file does not hold as
    floating-point numbers, and for an option of another type.

    >>> onnxgrad.training_step("models/training/mlp.onnx", "loss", "sgd{lr=0.1}")
    TrainingStep(sgd on 6 weights; a batch holds x, target)
    """
    return make_step(model, options)


def _optimized(model: ModelLike, options: OptimizeOptions, report: bool) -> Any:
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    outcome = Outcome(name, None, name or "the model", options.explain)
    hooks = Hooks(on_read=lambda program: check_room(program, model))
    result = to_kind_of(driver.optimize(settled(model), options, hooks, outcome).program, model)
    outcome.written = True
    return OptimizedModel(result, outcome) if report else result
