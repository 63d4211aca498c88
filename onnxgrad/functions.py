"""The jobs as Python functions. Their keywords come from the declarations of `onnxgrad.jobs`;
`functions.pyi`, for editors and mypy, is written by scripts/make_stubs.py.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.grad.derivatives.derivative import Derivative
from onnxgrad.grad.differentiation import Gradient, renamed
from onnxgrad.ir.load import ModelLike, SameType, check_room, load, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.jobs import float16 as halving
from onnxgrad.jobs import gradients as deriving
from onnxgrad.jobs import optimize as driver
from onnxgrad.jobs import reduce as reducing
from onnxgrad.jobs.ci import run as pipeline
from onnxgrad.jobs.ci.declarations import CiOptions
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.declarations import (
    BenchOptions,
    ConvertOpsetOptions,
    DiffOptions,
    Float16Options,
    InspectOptions,
    OptimizeOptions,
    ReduceOptions,
    RunOptions,
    VerifyOptions,
)
from onnxgrad.jobs.gradient_declarations import (
    CheckGradientOptions,
    CheckProductOptions,
    Chosen,
    GradientOptions,
    HessianProductOptions,
    JacobianOptions,
    JvpOptions,
    MarkOptions,
)
from onnxgrad.jobs.hooks import Hooks, with_room, writing
from onnxgrad.jobs.inspection import contents, differences, latency
from onnxgrad.jobs.inspection.contents import Summary
from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.jobs.inspection.one_run import run_once
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.outcome import OptimizedModel, Outcome
from onnxgrad.jobs.reduce import Check, ReducedModel
from onnxgrad.jobs.surgery.lift import Lifted
from onnxgrad.limits import limited
from onnxgrad.report.forms import SHOWN_AS
from onnxgrad.report.parts import file_names
from onnxgrad.results import FORMS
from onnxgrad.verify import proof
from onnxgrad.verify.bench import BenchReport
from onnxgrad.verify.report import Report

_log = logging.getLogger("onnxgrad")
FORMS.update(SHOWN_AS)


@from_keywords(OptimizeOptions)
def optimize(
    model: ModelLike, *, options: OptimizeOptions, report: bool = False
) -> SameType | Lifted | OptimizedModel:
    """Rewrites a model into a smaller, faster one that computes the same, and proves it.

    Returns the optimised model in the type you passed in; paths, bytes and streams return a
    ModelProto. With `report=True`, returns an `OptimizedModel`: the model, its rewrites and their
    proof. `passes` accepts text, or a list of passes, rules and families; `inputs` accepts files,
    or arrays by name. Options set here override those of the `recipe` (None: no recipe). With
    `lift`, returns the preparation and the rest, as the function `lift` does.

    Raises InputError, RewriteRefuted if the proof fails, NotProved if it proves nothing or the
    result misses a requirement of the recipe, LimitReached.

    >>> done = onnxgrad.optimize("models/lstmcell.onnx", report=True)
    >>> done.proof.verdict, done.rewrites[0].rule
    ('equal', 'fold_constant')
    """
    return _optimized(model, options, report)


@from_keywords(ConvertOpsetOptions)
def convert_opset(
    model: ModelLike, *, options: ConvertOpsetOptions, report: bool = False
) -> SameType | OptimizedModel:
    """Converts a model to opset `to` of the default domain (7 to 28), and proves both equal.

    Returns the model in the type you passed in; with `report=True` an `OptimizedModel`. Local
    functions, nested graphs, names, metadata and external data stay. A node changes only if its
    operator changed between the two opsets. Raises InputError for an operator that cannot be
    expressed at opset `to`, and as `optimize` if the proof fails.

    >>> onnxgrad.convert_opset("models/lstmcell.onnx", 23).opset_import[0].version
    23
    """
    return _optimized(model, options.optimizing(), report)


@from_keywords(Float16Options)
def float16(
    model: ModelLike, *, options: Float16Options, report: bool = False
) -> SameType | OptimizedModel:
    """Converts the float32 weights and computations of a model to float16, proved within a bound.

    Returns the model in the type you passed in; with `report=True` an `OptimizedModel`, whose
    `near_misses` list the nodes that stay in float32, with the reason. These are values beyond
    65504 (by their operator, or on the inputs of the proof), values that need more digits (sums,
    powers, positions) and operators without a float16 form, unless `convert` names them. Calls of
    local functions are inlined, unless `keep` names the function. Constants that stand for infinity
    become 65504, and an epsilon does not become 0. By default, an output may differ by 0.02 of its
    largest value.

    Raises InputError for a name in `keep` or `convert` that matches nothing, and as `optimize` if
    the proof fails: try the operator in the error for `keep`.

    >>> half = onnxgrad.float16("models/resnet18.onnx", keep=["Gemm"])
    >>> [t.data_type for t in half.graph.initializer if t.name == "conv1.weight"]
    [10]
    """
    outcome = Outcome("", None, "the model")
    hooks = Hooks(accept=lambda found: check_room(found.program, model))
    result = to_kind_of(halving.float16(model, options, hooks, outcome).program, model)
    outcome.written = True
    return OptimizedModel(result, outcome) if report else result


@from_keywords(VerifyOptions)
def verify(a: ModelLike, b: ModelLike | None = None, *, options: VerifyOptions) -> Report:
    """Compares model `b` with the original `a` by running both.

    Returns a report. A difference raises nothing: the report contains it. If an output has no
    finite element to compare, or a limit was reached, the verdict is "not proved".

    `inputs` accepts one or several sets of arrays by input name, or files (.npz, .npy, .pb). None
    generates them from `seeds`, at two sizes of every symbol if possible. `atol`, `rtol`:
    |a - b| <= atol + rtol * |a| replaces the calibrated tolerance, for all outputs of floats or for
    each in a mapping by name; `metric` is "cosine=0.999", "psnr=40", "top1=0.99" or "worst=0.01",
    or several, "logits:top1=1" for one output. With bounds a float may have another width in `b`,
    which receives `a`'s inputs rounded to it. `expect` compares `a` with stored results.

    Raises InputError if the original cannot be run or fed or if a provider is missing, and
    LimitReached.

    >>> onnxgrad.verify("models/lstmcell.onnx", "models/lstmcell.onnx").verdict
    'equal'
    """
    with writing(options, a, b):
        return proof.verify(a, b, **options.shared(VerifyOptions))


@from_keywords(InspectOptions)
def inspect(model: ModelLike, *, options: InspectOptions) -> Summary:
    """Returns the contents of a model: interface, operators, parameters, metadata, and the costs
    of a run. Runs nothing and reads no external data.

    `costs` are FLOPs (two for a multiplication and an addition) and bytes, if sizes are known;
    `dims` sets sizes of symbols for the costs alone. Unknown costs are counted as unknown.

    Raises InputError if the model cannot be read or lacks a symbol of `dims`.

    >>> onnxgrad.inspect("models/training/mlp.onnx").stats.operators["Gemm"]
    3
    """
    with limited(options.timeout, options.max_memory):
        return contents.inspect(model, options.dims)


@from_keywords(DiffOptions)
def diff(a: ModelLike, b: ModelLike, *, options: DiffOptions) -> Diff:
    """Returns the differences from model `a` to model `b`. Runs neither, and accepts operators that
    do not exist.

    Nodes are matched by the name of their first output, initializers by name. Weights are compared
    by content, wherever they are stored. Raises InputError if a model or its external data cannot
    be read.
    """
    with limited(options.timeout, options.max_memory):
        return differences.diff(a, b)


@from_keywords(BenchOptions)
def bench(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike], *, options: BenchOptions
) -> BenchReport:
    """Measures the latency of models in turns, on the same inputs. Returns the times of each model
    and the ratios to the first.

    `models` is one model, several, or a mapping by the names that the report has. Inputs as for
    `verify`; `timeout` does not include the measurements. A model that does not run, or exceeds
    `require`, is in the report and raises nothing. Raises InputError if the first model does not
    run, or if another has other inputs.

    >>> small = {"rounds": 2, "seconds": 0.05}
    >>> report = onnxgrad.bench({"before": "models/lstmcell.onnx"}, **small)
    >>> report.timings[0].name, report.ok
    ('before', True)
    """
    if isinstance(models, Mapping):
        return latency.measure(models, options)
    several = models if isinstance(models, (list, tuple)) else [models]
    names = [
        Path(m) if isinstance(m, (str, os.PathLike)) else f"model {i}"
        for i, m in enumerate(several, 1)
    ]
    return latency.measure(dict(zip(file_names(names), several, strict=True)), options)


@from_keywords(RunOptions)
def run(model: ModelLike, *, options: RunOptions) -> dict[str, Any]:
    """Runs a model once and returns its outputs by name: arrays, lists for sequences, None for an
    empty optional.

    `inputs`: arrays by the names of inputs, or files; what they lack is generated from `seed`, at
    sizes `dims` if they are given. `evaluator="float64"` computes every float in float64, without
    onnxruntime. Raises InputError for inputs that do not fit, and CannotRun if the model does not
    run on them.

    >>> outputs = onnxgrad.run("models/lstmcell.onnx")
    >>> [(name, array.dtype.name) for name, array in outputs.items()][:1]
    [('states', 'float32')]
    """
    return dict(run_once(model, options, Hooks(limits=limited)).outputs)


@from_keywords(CiOptions)
def ci(*, options: CiOptions) -> CiReport:
    """Optimises and proves every model of a recipe, checks its requirements, compares with the
    lock, and writes the results that pass.

    Returns a report. A model that is refused is in the report and raises nothing; an older result
    in its place is removed. `update` writes the models that pass into the lock. `models`, `out` and
    `lock` replace those keys of the recipe; paths are relative to its folder. `jobs` is the number
    of processes. Raises InputError for a recipe, a lock or a place that cannot be used, before any
    work.
    """
    return pipeline.ci(options)


@from_keywords(ReduceOptions)
def reduce(
    model: ModelLike, check: Check, *, options: ReduceOptions, report: bool = False
) -> SameType | ReducedModel:
    """Returns the smallest model that still fails a check, in the type you passed in.

    `check` is a function that receives a ModelProto and returns true if the model still fails, or a
    command that then exits with a status other than 0. A command is a text or a list of words; it
    runs without a shell, with the path of a candidate last or in place of {}. Every candidate is
    valid. With `report=True` returns a `ReducedModel`. At the deadline of `timeout` the smallest
    model so far is the result. Raises InputError if the check does not fail on the model itself;
    errors of the function are passed on.

    >>> def has_tanh(model):
    ...     return any(node.op_type == "Tanh" for node in model.graph.node)
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[2] x) => (float[2] y) { a = Neg (x)  b = Tanh (a)  y = Exp (b) }''')
    >>> [node.op_type for node in onnxgrad.reduce(model, has_tanh).graph.node]
    ['Tanh']
    """
    found = reducing.smallest(model, check, options)
    result = to_kind_of(load(found.model), model)
    counts = found.checked, found.invalid, found.finished, found.steps
    return ReducedModel(result, *counts) if report else result


@from_keywords(GradientOptions)
def gradient(model: ModelLike, *, options: GradientOptions) -> SameType:
    """Returns the model with one more output per requested value: its adjoint, named by `names`.

    `model` is a path, bytes, ModelProto or any other object that `load` accepts. It is not changed,
    and the result has its type; paths, bytes and streams return a ModelProto.
    `wrt`: names or globs of inputs, initializers and intermediate values, sequences of tensors
    included. None: every floating-point input. "params": every weight that reaches the target;
    weights of nested graphs move to the main graph. "!GLOB" excludes names matched before it.
    `target`: an output's name or index, any value's name, a part such as "logits[:,7]", or a list,
    which is summed. None: the only output.
    `adjoint`: "ones": targets are scalars, and a part is summed. "input": targets have any shape,
    and each adds a graph input `<target>_grad` of its type. "auto": "ones" if all are scalars, else
    "input".
    `checkpoint`: a `Checkpoint`, value names, "auto" or a memory budget such as "512MB" (see
    `onnxgrad.grad.checkpointing.choice`). None: the marks in the file, if any.
    `ste`: if true, QuantizeLinear and DequantizeLinear pass adjoints straight through, which is an
    estimate; the derivative of rounding is zero.
    `per_sample`: the gradient of each sample of the batch, as that of the model at a batch of 1
    (`vmap` of the gradient). Gradients of weights, scalars and values without a batch get a first
    axis for the samples. The batch is the symbol that inputs share, the first axes of size 1, or
    the size of the first axes of all inputs, which then becomes dynamic.
    `form`: "fast": the fastest formulas of convolutions, normalizations and sums over a batch.
    "small": those of the fewest nodes, with which gradients of convolutions take up to twice the
    time.
    `autocast`: "bfloat16" or "float16", the dtype of products of float32 values and of their
    gradients, as PyTorch's autocast. Everything else stays in float32.

    Raises InputError for an unknown name, a value that is not floating-point, or no unique target.
    Warns if no requested value reaches the target, and if `wrt` holds a target with
    `adjoint="input"`: `y_grad` is then the new input, and the adjoint of `y` is `y_grad_2`.

    >>> model = onnxgrad.gradient("models/training/mlp.onnx", "params,!*.bias", "loss")
    >>> [v.name for v in model.graph.output]
    ['loss', '0.weight_grad', '2.weight_grad', '4.weight_grad']
    """
    found = _derived(model, options)
    for value in found.seeds:  # warn: we added an input of that name
        if value in found.results:
            text = renamed(value, found.results[value], options.names)
            warnings.warn(text, stacklevel=3)
    return to_kind_of(found.program, model)


@from_keywords(JvpOptions)
def jvp(model: ModelLike, *, options: JvpOptions) -> SameType:
    """Returns the model with one more input per value in `wrt`, its tangent, and one more output
    per target: J v.

    `wrt`, `target` and `stop` as for `gradient`; targets may have any shape. The result has the
    type of `model`. Raises InputError as `gradient` does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Tanh (x) }''')
    >>> forward = onnxgrad.jvp(model)
    >>> [v.name for v in forward.graph.input], [v.name for v in forward.graph.output]
    (['x', 'x_tangent'], ['y', 'y_tangent'])
    """
    return to_kind_of(_derived(model, options).program, model)


@from_keywords(HessianProductOptions)
def hessian_vector_product(model: ModelLike, *, options: HessianProductOptions) -> SameType:
    """Returns the model with one more input per value in `wrt`, v in its shape, and two more
    outputs per value: the gradient, and its part of H v. H is the Hessian of the target by all of
    `wrt`.

    `wrt`, `target`, a scalar, and `stop` as for `gradient`. Gradients are named "{}_grad", products
    by `names`, inputs by `tangents`. The result has the type of `model`. At a jump of the slope
    (Relu at 0, a maximum at ties) there is no second derivative; if the function is linear on both
    sides, H is 0. Raises InputError as `gradient` does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float y) { c = Mul (x, x)  d = Mul (c, x)
    ...   y = ReduceSum <keepdims = 0> (d) }''')
    >>> product = onnxgrad.hessian_vector_product(model)
    >>> [v.name for v in product.graph.input], [v.name for v in product.graph.output]
    (['x', 'x_tangent'], ['y', 'x_grad', 'x_hvp'])
    """
    return to_kind_of(_derived(model, options).program, model)


@from_keywords(JacobianOptions)
def jacobian(model: ModelLike, *, options: JacobianOptions) -> SameType:
    """Returns the model with one more output per value in `wrt`: the Jacobian of the target by it,
    of the target's shape followed by the value's.

    `wrt` and `stop` as for `gradient`; `target` is one floating-point value of any shape, or a part
    of one.
    `mode`: "reverse" computes one product per element of the target, "forward" one per element of a
    value; "auto" chooses the mode with fewer products, or reverse if sizes are unknown.
    `per_sample`: the Jacobian of each sample, as for `gradient`. It has the shape (samples, target,
    value), where target and value have lost the axis of the batch.
    The returned model has the type of `model`. onnxruntime runs no Scan over an empty target or
    value. Raises InputError as `gradient` does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {
    ... y = MatMul (x, w) }''')
    >>> by_sample = onnxgrad.jacobian(model, per_sample=True)
    >>> str(onnxgrad.load(by_sample).main.outputs[1].type)
    'f32[N,2,3]'
    """
    return to_kind_of(_derived(model, options).program, model)


@from_keywords(MarkOptions)
def mark_checkpoints(model: ModelLike, *, options: MarkOptions) -> SameType:
    """Returns the model with the marks of `checkpoint` for the gradient of `target` by `wrt`.

    `gradient` without a `checkpoint` reads them. The result has the type of `model`. Raises
    InputError as `gradient` does.
    """
    return to_kind_of(_derived(model, options).program, model)


@from_keywords(CheckGradientOptions)
def check_gradient(model: ModelLike, *, options: CheckGradientOptions) -> GradientReport:
    """Checks the gradient of a model numerically in random directions.

    Targets that are not scalars, and parts of values, get a random adjoint. A value in `stop` is
    held fixed while the values before it change. Inputs that `inputs` lacks are generated from
    `seed` and `dims`. The report says if nothing was proved: no value could be judged, or all
    gradients are 0 (except those of values that reach no target or are in `allow_empty`). Raises
    InputError as `gradient` does, `Unsupported` if the float64 reference lacks an operator,
    NotProved if onnxruntime runs the model but refuses the gradient graph, and RunFailed or
    LimitReached if `timeout` (seconds for everything, 300) or `max_memory` (half of the memory)
    does not suffice.

    >>> onnxgrad.check_gradient("models/training/mlp.onnx", "params", "loss").verdict
    'agrees'
    """
    return deriving.check(model, options, Hooks())


@from_keywords(CheckProductOptions)
def check_product(model: ModelLike, *, options: CheckProductOptions) -> GradientReport:
    """Checks the result of `jvp`, `hessian_vector_product`, `jacobian`, `hessian` or
    `casadi_derivative` (`of`: "jvp", "hvp", "jacobian", "hessian", or "adj" and "fwd") for a model,
    numerically in random directions.

    `mode` as for `jacobian`; all other options, and errors, as for `check_gradient`. CasADi's
    derivatives accept no `stop`.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Tanh (x) }''')
    >>> onnxgrad.check_product(model, of="jacobian").verdict
    'agrees'
    """
    return deriving.check(model, options, Hooks())


def _derived(model: ModelLike, options: Chosen) -> Gradient | Derivative:
    found = deriving.derive(model, options, with_room(model)).found
    for note in found.notes:
        _log.info(note)
    return found


def _optimized(model: ModelLike, options: OptimizeOptions, report: bool) -> Any:
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    outcome = Outcome(name, None, name or "the model", options.explain)
    hooks = with_room(model)
    result = to_kind_of(driver.optimize(settled(model), options, hooks, outcome).program, model)
    if outcome.prepare is not None:
        result = Lifted(to_kind_of(outcome.prepare, model), result)
    outcome.written = True
    return OptimizedModel(result, outcome) if report else result
