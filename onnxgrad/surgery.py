"""Functions that change a model's parts, interface and header. Their keywords come from
declarations, as in `functions.py`; `surgery.pyi` is written by scripts/make_stubs.py.
"""

from __future__ import annotations

import logging
from typing import Any

from onnxgrad.ir.load import ModelLike, SameType, check_room, load_own, program_of, to_kind_of
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs import gradients as deriving
from onnxgrad.jobs import open_batch as opening
from onnxgrad.jobs.gradient_declarations import HessianOptions, LinearizeOptions
from onnxgrad.jobs.hooks import Proved, with_room
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.rebasing import rebase as rebasing
from onnxgrad.jobs.row_declarations import OpenBatchOptions, VmapOptions
from onnxgrad.jobs.surgery import edit as editing
from onnxgrad.jobs.surgery import extract as extracting
from onnxgrad.jobs.surgery import join as joining
from onnxgrad.jobs.surgery import lift as lifting
from onnxgrad.jobs.surgery import preprocess as preparing
from onnxgrad.jobs.surgery.declarations import (
    EditOptions,
    ExtractOptions,
    JoinOptions,
    LiftOptions,
    MetadataOptions,
    PreprocessOptions,
    RebaseOptions,
)
from onnxgrad.jobs.surgery.lift import Lifted
from onnxgrad.jobs.surgery.metadata import change
from onnxgrad.limits import limited
from onnxgrad.transform.gradient_split import Linearized

_log = logging.getLogger("onnxgrad")


@from_keywords(ExtractOptions)
def extract(model: ModelLike, *, options: ExtractOptions) -> SameType:
    """Returns the part of a model that computes `outputs` from `inputs`, in the type you passed in.

    Both are values of the main graph; None: those of the model. The proof runs the part on the
    values that the whole model has at its inputs. Raises InputError for a name that does not exist,
    an input whose type is unknown, and outputs that depend on more than the inputs; NotProved if
    the part computes something else.

    >>> part = onnxgrad.extract("models/training/mlp.onnx", outputs=["linear_2"])
    >>> [v.name for v in part.graph.output]
    ['linear_2']
    """
    return to_kind_of(_accepted(extracting.extract(model, options, with_room(model))), model)


@from_keywords(LinearizeOptions)
def linearize(model: ModelLike, *, options: LinearizeOptions) -> Linearized:
    """Returns the model and its gradient as two models, a forward and a backward part, and their
    manifest.

    The forward part returns the outputs of the model, then residuals. The backward part takes
    residuals, which may also be inputs or outputs of the model, and an input `<target>_grad` for
    the adjoint of each target. It returns `<value>_grad` for each of `wrt`. Names are those of the
    model, so that inputs can be fed by name. `wrt`, `stop` and `names` as for `gradient`; `target`:
    None: every floating-point output.
    `keep`: the residuals. "auto": the fewest bytes from which cheap operators compute the rest
    again, as a minimum cut. "everything": nothing is computed again. "products": results of matrix
    products, "nothing": inputs and outputs of the model alone, names and globs: these values; the
    rest is computed again. A number or a text such as "64MB": at most so many bytes, with the least
    work. Random draws are always kept. `dims`: sizes of symbols for counting bytes (default: 64).

    Both models have the type of `model`. Raises InputError as `gradient` does, for a budget that is
    too small, and for a value that can neither be kept nor computed again.

    >>> parts = onnxgrad.linearize("models/training/mlp.onnx", "params", "loss")
    >>> [r.name for r in parts.manifest.residuals]
    ['x', 'relu', 'linear_1', 'val_7']
    """
    found = deriving.derive(model, options, with_room(model)).found
    for note in found.notes:
        _log.info(note)
    return Linearized(
        to_kind_of(found.forward, model), to_kind_of(found.backward, model), found.manifest
    )


@from_keywords(HessianOptions)
def hessian(model: ModelLike, *, options: HessianOptions) -> SameType:
    """Returns the model with two more kinds of outputs: the gradient of the target by each value in
    `wrt`, and for each pair of values the second derivatives, of the first value's shape followed
    by the second's.

    `wrt`, `target`, a scalar, and `stop` as for `hessian_vector_product`, of which this is the
    `vmap` over all directions. The result has the type of `model`. Raises InputError as `gradient`
    does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[3] x) => (float y) { c = Mul (x, x)  d = Mul (c, x)
    ...   y = ReduceSum <keepdims = 0> (d) }''')
    >>> str(onnxgrad.load(onnxgrad.hessian(model)).main.outputs[2].type)
    'f32[3,3]'
    """
    found = deriving.derive(model, options, with_room(model)).found
    for note in found.notes:
        _log.info(note)
    return to_kind_of(found.program, model)


@from_keywords(OpenBatchOptions)
def open_batch(model: ModelLike, *, options: OpenBatchOptions) -> SameType:
    """Returns the model with a dynamic batch in place of its fixed batch, in the type you passed
    in.

    Row i of a result depends on row i of `inputs` alone, and equals the result of the original; all
    rows share the other inputs. Remarks are logged. Raises InputError that names the node if rows
    depend on each other (batch statistics, dynamic quantisation, random draws), NotProved if a row
    differs, or if no two rows of the outputs differ.

    `open`: axes of inputs by the name of another dimension, such as {"seq": "ids.1,mask.1"}, to
    open in place of the batch. Raises InputError, which names the node, unless it is certain which
    numbers depend on the dimension. The proof runs at the sizes of `model` and of each `reference`.
    `extend`: readings of constants beyond the size of `model`, such as {"positions": "ramp"}, or
    "*" for all as the refusal shows them.
    """
    job = opening.open_batch if options.open is None else opening.open_sizes
    return to_kind_of(_accepted(job(model, options, with_room(model))), model)


@from_keywords(VmapOptions)
def vmap(model: ModelLike, *, options: VmapOptions) -> SameType:
    """Returns the model mapped over a new axis of `inputs` (None: of all) and of every output, in
    the type you passed in.

    Element i along `axis` of a result is computed from element i of these inputs;
    other inputs and the weights are shared. `inputs` are names, of weights too, which become
    inputs, or places of the new axis by name, {"x": 1}. Operators without a batching rule run once
    per row, in a Scan, which the log says. If a result's size depends on values, rows with other
    sizes end a run in an error. Raises InputError that names the node if no rule applies (random
    draws), NotProved if a row differs or no rows do.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[3] x, float[3,2] w) => (float[2] y) { y = MatMul (x, w) }''')
    >>> mapped = onnxgrad.vmap(model, "x")
    >>> [d.dim_param or d.dim_value for d in mapped.graph.output[0].type.tensor_type.shape.dim]
    ['rows', 2]
    """
    return to_kind_of(_accepted(opening.vmap(model, options, with_room(model))), model)


@from_keywords(MetadataOptions)
def set_metadata(model: ModelLike, *, options: MetadataOptions) -> SameType:
    """Sets and removes entries of a model's metadata, and other fields of its header ("" and 0
    remove them). `strip`: a glob of entries that are removed from nodes, such as stack traces.
    `ranges`: intervals (low, high) by the names of inputs, from which proofs then draw values
    (None removes one).

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
        change(
            program, options.values or {}, options.unset, options.header(), options.strip,
            options.ranges,
        )  # fmt: skip
        return to_kind_of(program, model)


@from_keywords(EditOptions)
def edit(model: ModelLike, *, options: EditOptions) -> SameType:
    """Returns the model with inputs bound to constants, initializers replaced or freed, other names
    and other outputs, in the type you passed in.

    `bind`: values by the names of inputs: arrays of the input's dtype, numbers and lists that it
    holds, or files; a symbol in the shape of a bound input becomes the size of its value, in all
    shapes, and "ones" or "zeros" fill the sizes of other inputs. `set`: values by the names of
    initializers, of their dtype and shape. `free`: names or globs of initializers that become
    inputs. `rename`, `rename_node`, `rename_dim`: new names of values, nodes and symbolic
    dimensions by old ones, all at once; in a pattern, each `*` of the new name stands for the text
    that a `*` of the old one matches. `add_output`: names or globs of values of the main graph that
    become outputs, or "all". `drop_output`: names or globs of outputs. `mode="inference"` switches
    nodes in training mode, before all other changes, and removes outputs that are running
    statistics. `before`, `config`, `after` and `keep_output` add steps as `preprocess` does, after
    all other changes, by their names. Other names are those of `model`. Inputs stay even if nothing
    reads them any more; nodes and weights that only a removed output needs are removed, too. The
    proof runs both models on the same values, those of freed and replaced weights included. Raises
    InputError for a name that does not exist or is taken, and for a value of another type or shape;
    NotProved if the proof fails.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x, float k) => (float[N] y) { y = Mul (x, k) }''')
    >>> twice = onnxgrad.edit(model, bind={"k": 2}, rename={"y": "twice"})
    >>> [v.name for v in twice.graph.input], [v.name for v in twice.graph.output]
    (['x'], ['twice'])
    """
    return to_kind_of(_accepted(editing.edit(model, options, with_room(model))), model)


@from_keywords(JoinOptions)
def join(a: ModelLike, b: ModelLike, *, options: JoinOptions) -> SameType:
    """Returns models `a` and `b` as one, in which outputs of `a` feed inputs of `b`, in the type of
    `a`.

    `map`: inputs of `b` by the outputs, or inputs, of `a`. The result has the inputs of `a`, the
    other inputs of `b`, the outputs of `a` that `b` does not read or `keep_output` names, and the
    outputs of `b`. Values and local functions of `b` get other names if `a` has theirs; inputs and
    outputs only by `prefix`. The older model is converted to the opset of the newer. The proof runs
    `a` and then `b`. Raises InputError if types, sizes, names or versions do not fit together;
    NotProved if the proof fails.

    >>> first = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Exp (x) }''')
    >>> second = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[M] t) => (float[M] z) { z = Neg (t) }''')
    >>> [node.op_type for node in onnxgrad.join(first, second).graph.node]
    ['Exp', 'Neg']
    """
    return to_kind_of(_accepted(joining.join(a, b, options, with_room(a))), a)


@from_keywords(PreprocessOptions)
def preprocess(model: ModelLike, *, options: PreprocessOptions) -> SameType:
    """Returns the model with steps before its inputs and after its outputs, in the type you passed
    in.

    `before`: steps of the only input, or by input, such as "imagenet" or
    "image,resize{size=256,mode=pil-bilinear},center-crop{size=224},to-float"; the new input has the
    name of the old one and is uint8[N,height,width,3] unless the first step says otherwise.
    `config`: a preprocessor_config.json of Transformers, whose steps follow those of `before` for
    the input called pixel_values, or for the only one of 4 axes.
    `after`: steps of the only output, or by output (several separated by commas), which they
    replace unless `keep_output` names it. `help preprocessing` lists the steps. The proof computes
    the steps in NumPy and runs the model between. Raises InputError for steps that cannot be read
    or do not fit the model; NotProved if the proof fails.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[1,3,4,4] x) => (float[1,3] y) { m = GlobalAveragePool (x)  y = Flatten (m) }''')
    >>> made = onnxgrad.preprocess(model, "resize{size=[4,4]},to-float", "argmax")
    >>> str(onnxgrad.load(made).main.inputs[0].type), [v.name for v in made.graph.output]
    ('u8[1,height,width,3]', ['classes'])
    """
    return to_kind_of(_accepted(preparing.preprocess(model, options, with_room(model))), model)


@from_keywords(LiftOptions)
def lift(model: ModelLike, *, options: LiftOptions) -> Lifted:
    """Splits a model into a preparation, which depends on weights and constants alone, and the
    rest. Returns both in the type you passed in.

    Run the preparation once, when the weights are loaded: its outputs are inputs of the rest.
    `weights` are names or globs of inputs, or of initializers, which become inputs. A weight that
    both read is an input of both. Random draws, control flow, calls of local functions and outputs
    stay in the rest. The proof runs the preparation and then the rest against the model. Raises
    InputError for a name that matches nothing, and if nothing depends on weights alone; NotProved
    if the proof fails.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N,3] x, float[2,3] w) => (float[N,2] y) {
    ...   t = Transpose (w)  y = MatMul (x, t) }''')
    >>> prepare, rest = onnxgrad.lift(model, "w")
    >>> [v.name for v in prepare.graph.input], [v.name for v in rest.graph.input]
    (['w'], ['x', 't'])
    """
    found = lifting.lift(model, options, with_room(model))
    rest = _accepted(found)
    return Lifted(to_kind_of(found.prepare, model), to_kind_of(rest, model))


@from_keywords(RebaseOptions)
def rebase(model: ModelLike, weights: Any, *, options: RebaseOptions) -> SameType:
    """Returns an optimised model with new weights, without optimising again, in the type you passed
    in.

    `model` comes from `optimize(rebasable=True)`. `weights` are another export of the architecture
    (a path or a ModelProto), or arrays by the names of initializers: a path of a .safetensors or
    .npz file, or a dict. A list of an export and adapters (`Adapters`, a file, or a folder of PEFT)
    means the export with the adapters merged. `map` has the names of weights by those of the
    original. The names of an export may differ, as its weights stand at the same places. `record`:
    the record of the model, a path or the `record` of the `OptimizedModel`; a path of a model has
    it beside it. A matrix that a file of weights holds transposed is transposed if its shape says
    so. The proof compares the result with the original under the new weights. Of a model that
    `lift` split, pass the rest or both parts; both are returned.

    Raises InputError for weights that are missing, do not fit or belong to another architecture,
    and NotProved for weights that lack something a rewrite relied on, such as equal elements of two
    constants that were merged, and if the proof fails.

    >>> done = onnxgrad.optimize("models/lstmcell.onnx", rebasable=True, report=True)
    >>> again = onnxgrad.rebase(done.model, "models/lstmcell.onnx", record=done.record)
    >>> again == done.model
    True
    """
    model = model.rest if isinstance(model, Lifted) else model
    found = rebasing.rebase(model, weights, options, with_room(model))
    made = _accepted(found)
    rest = to_kind_of(program_of(to_proto(made), made.folder), model)
    return rest if found.prepare is None else Lifted(to_kind_of(found.prepare, model), rest)


def _accepted(found: Proved) -> Any:
    """Returns the program of a proved result, and logs its notes; as warnings, which Python prints
    by default, those about rows that run one after the other. Raises NotProved.
    """
    opened = found.opened if isinstance(found, opening.OpenedModel) else None
    if opened is not None:
        for why in (
            *opened.warnings,
            *(f"once per row, in a Scan: {why}" for why in opened.scanned),
        ):
            _log.warning(why)
    for note in found.notes:
        if opened is None or note not in opened.warnings:
            _log.info(note)
    return found.proved("the result")
