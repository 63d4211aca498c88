"""Reads the TrainingInfoProto that `with_training_info` wrote back as a training step.

The comments of TrainingInfoProto in onnx.proto define such a file: the training graph is the
inference graph together with `algorithm`; the initializers that `update_binding` names are its
variables; their first values are their initializers, and then those of `initialization`. The
comments do not define which value is the loss, the learning rate or a state: the manifest in the
model's metadata does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import ModelLike, load, program_of, proto_of
from onnxgrad.ir.save import to_bytes, to_proto
from onnxgrad.options import known_keywords
from onnxgrad.plugins.onnx_training.training_info_writer import KEY
from onnxgrad.train.losses.sums import summed
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import check_fits
from onnxgrad.train.update.emission import prune
from onnxgrad.verify.running.session import run
from onnxgrad.wording import shape_text

_JOINED = ("input", "output", "initializer", "sparse_initializer", "node", "value_info")
_WHERE = f"the model's metadata '{KEY}'"


@known_keywords
def step_from_training_info(model: ModelLike, *, initialize: bool = True) -> TrainingStep:
    """Returns the step that `with_training_info` put into a model, as `training_step` returned it.

    initialize: begin with the values of `initialization`, not with the initializers. Raises
    InputError for a model without training_info, for training_info of another tool, and for
    training_info that was changed since onnxgrad wrote it.
    """
    proto, folder = proto_of(model)
    manifest = _manifest(proto)
    both = deepcopy(proto)
    del both.training_info[:]
    for field in _JOINED:
        getattr(both.graph, field).extend(getattr(proto.training_info[0].algorithm, field))
    held = {t.name: t for t in both.graph.initializer}
    updates = _updates(proto, manifest, held, {v.name for v in both.graph.output})
    if initialize:
        _initialize(proto, held, folder)
    program = program_of(both, folder)
    initial = {f.name: program.array(held[f.name]) for f in manifest.inputs if f.next is not None}
    train, evaluation = load(to_proto(program)), load(to_proto(program))
    _keep_training(train.main, manifest, updates)
    _keep_evaluation(evaluation.main, manifest, updates, {v.name for v in proto.graph.output})
    train.folder = evaluation.folder = program.folder
    step = TrainingStep(load(to_proto(train)), load(to_proto(evaluation)), initial, manifest)
    check_fits(step, _WHERE)
    return step


def _manifest(proto: ModelProto) -> Manifest:
    """Returns the manifest that `with_training_info` wrote."""
    if not proto.training_info:
        raise InputError("the model has no training_info: make a step of it with training_step")
    text = next((e.value for e in proto.metadata_props if e.key == KEY), None)
    if text is None:
        raise InputError(
            f"the model's training_info is not onnxgrad's (its metadata has no '{KEY}'): make a "
            "step of the model with training_step"
        )
    return Manifest.from_json(text, _WHERE)


def _updates(
    proto: ModelProto,
    manifest: Manifest,
    held: Mapping[str, TensorProto],
    outputs: Collection[str],
) -> dict[str, str]:
    """Returns the variables with the outputs that are their next values. Raises InputError unless
    they are those of the manifest.
    """
    entries = [(e.key, e.value) for info in proto.training_info for e in info.update_binding]
    carried = {(fed.name, fed.next) for fed in manifest.inputs if fed.next is not None}
    counters = {fed.name for fed in manifest.of_role("step")}
    rates = {fed.name for fed in manifest.of_role("learning_rate")}
    if (
        len(proto.training_info) != 1
        or {(name, value) for name, value in entries if name not in counters} != carried
        or not counters <= {name for name, _ in entries}
        or not held.keys() >= {name for name, _ in entries} | rates
        or not set(outputs) >= {value for _, value in entries}
    ):
        raise InputError(
            "the model's training_info was changed since onnxgrad wrote it: its variables are not "
            f"those of {_WHERE}; build the step again with training_step"
        )
    return dict(entries)


def _initialize(proto: ModelProto, held: Mapping[str, TensorProto], folder: Path | None) -> None:
    """Runs the initialization graph, and writes its results into the initializers."""
    info = proto.training_info[0]
    if not info.initialization_binding:
        return
    alone = deepcopy(proto)
    del alone.training_info[:]
    alone.graph.CopyFrom(info.initialization)
    found = run(to_bytes(program_of(alone, folder)), {})
    for entry in info.initialization_binding:
        old, value = held.get(entry.key), found.get(entry.value)
        if old is None or value is None:
            raise InputError(
                f"initialization_binding gives '{entry.key}' the value '{entry.value}': one of "
                "them is missing"
            )
        new = numpy_helper.from_array(np.asarray(value), entry.key)
        if new.dims != old.dims or new.data_type != old.data_type:
            raise InputError(
                f"initialization makes '{entry.key}' of shape {shape_text(new.dims)}, its "
                f"initializer is {shape_text(old.dims)}, or of another dtype"
            )
        old.CopyFrom(new)


def _keep_training(block: BindingBlock, manifest: Manifest, updates: Mapping[str, str]) -> None:
    """Makes variables and learning rate inputs, and loss, metrics and next values outputs."""
    carried = {fed.name: fed.next for fed in manifest.inputs if fed.next is not None}
    for name in [*updates, *(fed.name for fed in manifest.of_role("learning_rate"))]:
        block.ask_for(block.initializers[name])
    more = [n for n in (manifest.gradient_norm, manifest.divisor) if n is not None]
    following = [updates[name] for name in updates if name in carried]
    _return(block, [manifest.loss, *manifest.metrics, *more, *following])
    place = {fed.name: i for i, fed in enumerate(manifest.inputs)}
    block.inputs.sort(key=lambda v: place.get(v.name, -1))


def _keep_evaluation(
    block: BindingBlock, manifest: Manifest, updates: Mapping[str, str], outputs: Collection[str]
) -> None:
    """Makes the parameters inputs, and the model's outputs, the loss and its sums outputs; removes
    everything else.
    """
    parameters = [fed.name for fed in manifest.of_role("parameter")]
    for name in parameters:
        block.ask_for(block.initializers[name])
    returned = [v.name for v in block.outputs if v.name in outputs]
    _return(block, [*returned, manifest.loss, *summed(manifest.sums)])
    others = {*updates, *(fed.name for fed in manifest.of_role("learning_rate"))}.difference(
        parameters
    )
    block.inputs = [v for v in block.inputs if v.name not in others]
    for v in [v for v in block.initializers.values() if v.name in others and not v.use_count]:
        v.is_input = False
        block.remove_initializer(v)


def _return(block: BindingBlock, names: list[str]) -> None:
    """Makes these values the block's outputs, and removes everything that they do not need. Raises
    InputError for a name that is not a value.
    """
    values = {v.name: v for v in block.vars()}
    if missing := [name for name in names if name not in values]:
        raise InputError(f"{_WHERE} names '{missing[0]}', which the training graph does not have")
    for v in dict.fromkeys(block.outputs):
        block.remove_output(v)
    for name in dict.fromkeys(names):
        block.add_output(values[name])
    prune(block, lambda v: True)
