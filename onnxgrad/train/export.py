"""Writes trained weights into the original model, and computes digests that identify models."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from onnxgrad.errors import InputError, InternalError
from onnxgrad.grad.weights.repairs import NONE, Repairs, apply_untied
from onnxgrad.grad.weights.sharing import find_merged
from onnxgrad.ir.load import (
    ModelLike,
    bring_inside,
    load_in_place,
    load_own,
    program_of,
    proto_of,
    to_kind_of,
)
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import DATA_FIELDS, clear_data, copy_fields, copy_of, elements, keep
from onnxgrad.ir.save import save, to_proto
from onnxgrad.ir.storage import external_data
from onnxgrad.ir.storage.atomic_files import discard, place_of, write_whole
from onnxgrad.ir.storage.weights_in_file import own_data, pieces
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.options import known_keywords
from onnxgrad.train.integer_weights import as_integers
from onnxgrad.transform.inference_mode import described, in_training_mode, to_inference
from onnxgrad.wording import option, shape_text

KEY = "onnxgrad.trained"


@dataclass(frozen=True)
class Deployed:
    """How a trained model is written: in inference mode, proved against what was evaluated, unless
    the file stays in its training mode or has none.

    how: entries of the metadata. finish: as for `export`. notes: what was switched.
    """

    how: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[Program], Program] | None = None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(model: Program, keep: bool, proof: Callable[[], Callable[[Program], None]]) -> Deployed:
        """Returns how a trained model is written. `proof`: returns a function that raises NotProved
        for a model that does not compute what was evaluated.
        """
        found = {} if keep else in_training_mode(to_proto(model))
        if not found:
            return Deployed()
        prove = proof()

        def finish(trained: Program) -> Program:
            made, _ = to_inference(trained)
            prove(made)
            return made

        kept = option("--keep-training-mode", "keep_training_mode=True")
        note = f"{described(found)} switched to inference in the trained model; {kept} does not"
        return Deployed({"mode": "inference"}, finish, (note,))


@known_keywords
def export(
    model: ModelLike,
    values: Mapping[str, Array],
    how: Mapping[str, Any] | None = None,
    *,
    repairs: Repairs | None = None,
    path: str | PathLike[str] | None = None,
    finish: Callable[[Program], Program] | None = None,
) -> Any:
    """Returns `model` with these values of its weights, in the type you passed in. Its metadata
    records the names of these weights, and `how`. With `path`, write the model there, of any size,
    and return None.

    repairs: `manifest.repairs` of the step: the value of a tied parameter goes into both of its
    weights, and parameters that the file lacks are added. None: only the named weights change.
    finish: receives the model with its new weights, and returns the one to write. Raises InputError
    for a name that is not a weight of the file, or that several of its graphs have, for one of two
    tied weights without the other, for a value of the wrong shape, and for a path that cannot be
    written.
    """
    own = load_in_place(model)
    if repairs is None:
        _refuse_half(own, values)
    if path is not None:
        _refuse_own_file(model, path)
    whole = path is None or own.path is None or finish is not None
    if path is not None and own.path is not None and not whole and _is_one_file(own, own.path):
        arrays: dict[str, Array] = {}
        trained = with_weights(own, values, how, repairs or Repairs(), arrays)
        return _stream(trained.proto, own.path, arrays, Path(path))
    trained = with_weights(own, values, how, repairs or Repairs())
    if finish is not None:
        trained = finish(trained)
    if own.path is not None:
        bring_inside(own.path, trained)
    return to_kind_of(trained, model) if path is None else save(trained, path)


def inference_note(program: Program) -> tuple[str, ...]:
    """Returns a note for the training of a file that `Trainer.export` or `fit` switched to
    inference.
    """
    text = next((e.value for e in program.proto.metadata_props if e.key == KEY), "{}")
    try:
        mode = dict(json.loads(text)).get("mode")
    except (ValueError, TypeError):
        return ()
    if mode != "inference":
        return ()
    kept = option("--keep-training-mode", "keep_training_mode=True")
    train = option("--batch-norm train and --dropout train", 'batch_norm="train", dropout="train"')
    return (
        f"the file was switched to inference after its training: {train} train it as before, and "
        f"{kept} leaves its nodes in training mode",
    )


def with_initializers(
    predict: ModelProto, weights: Mapping[str, Array], names: Iterable[str], steps: int
) -> ModelProto:
    """Returns the model of `predict.onnx` with those of its inputs in `names` as initializers, in
    this order, after its own ones. Its metadata records their names and the number of steps.
    Clients of the step format write the same bytes.
    """
    model, read = copy_of(predict), {v.name for v in predict.graph.input}
    filled = [name for name in names if name in read]
    for name in filled:
        array = np.require(weights[name], requirements="C")
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if model.ir_version > 3:  # up to IR 3 initializers must be inputs
        keep(model.graph.input, lambda v: v.name not in filled)
    keep(model.metadata_props, lambda entry: entry.key != KEY)
    text = {"weights": filled, "steps": steps}
    compact = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    model.metadata_props.add(key=KEY, value=compact)
    return model


def _is_one_file(program: Program, path: Path) -> bool:
    """Whether large weights of the program stayed in its file, and no weights lie elsewhere."""
    outside = external_data.locations(program.proto)
    return outside == {path.name} and path.stat().st_size < external_data.MAX_BYTES * 0.9


def _stream(model: ModelProto, source: Path, arrays: Mapping[str, Array], path: Path) -> None:
    """Writes a model piece by piece. Raises InputError."""
    try:
        replaced, digests = own_data(place_of(path)), external_data.Digests()
        digests.files = frozenset([source.name])
        write_whole(path, pieces(model, source.parent, arrays, digests))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    discard(replaced)


def _refuse_half(program: Program, values: Mapping[str, Array]) -> None:
    for copy in find_merged(program).copies:
        there, other = copy.weight.name, copy.copy.name
        if copy.certain and (there in values) != (other in values):
            raise InputError(
                f"'{there}' and '{other}' are one tied weight, and one of them has no new value: "
                "pass repairs=step.manifest.repairs"
            )


def _refuse_own_file(model: ModelLike, path: str | PathLike[str]) -> None:
    read = model.path if isinstance(model, Program) else model
    if not isinstance(read, (str, PathLike)) or not os.path.exists(read):
        return
    if os.path.exists(path) and os.path.samefile(read, path):
        raise InputError(
            f"{path}: output and input are the same file; the input is never changed, choose "
            "another output"
        )


def with_weights(
    model: ModelLike,
    values: Mapping[str, Array],
    how: Mapping[str, Any] | None = None,
    repairs: Repairs = NONE,
    apart: dict[str, Array] | None = None,
) -> Program:
    """Returns the result of `export` as a Program. apart: receives new values of weights that
    stayed in the model's file, in place of the program. Raises the same errors.
    """
    before, folder = proto_of(model)
    if repairs.untied:
        program = load_own(model)
        apply_untied(program, repairs.untied)
        before, folder = to_proto(program), program.folder
    proto = deepcopy(before)
    held: dict[str, list[TensorProto]] = {}
    for name, tensor in _named_tensors(proto.graph):
        held.setdefault(name, []).append(tensor)
    copied = {t.copy: t for t in repairs.tied if t.name in values}
    for name, t in copied.items():
        tensor = _the_one(held.get(name, []), name)
        _replace(tensor, name, t.of(values[t.name], tensor.dims), apart)
    stored = {v.name: v for v in load_in_place(model).main.vars()}
    for name in values:
        tensor = _the_one(held.get(name, []), name)
        _replace(tensor, name, as_integers(stored, name, values), apart)
    if too_many := sorted(set(changed_weights(before, proto)) - set(values) - set(copied)):
        raise InternalError(f"export changed '{too_many[0]}', which was not trained")
    keep(proto.metadata_props, lambda entry: entry.key != KEY)
    proto.metadata_props.add(key=KEY, value=json.dumps({"weights": sorted(values), **(how or {})}))
    return program_of(proto, folder)


def _named_tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yields the tensors of a graph and its nested graphs, with the names of their values."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Constant" and a.name == "value" and a.type == AttributeProto.TENSOR:
                yield node.output[0], a.t
            for nested in (
                (a.g, *a.graphs) if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) else ()
            ):
                yield from _named_tensors(nested)


def _the_one(found: list[TensorProto], name: str) -> TensorProto:
    if not found:
        raise InputError(
            f"'{name}' is not a weight of the original model: was this trained from another file?"
        )
    if len(found) > 1:
        raise InputError(
            f"'{name}' is a weight in {len(found)} graphs of the original model, "
            "and it is not known which of them was trained"
        )
    return found[0]


def _replace(tensor: TensorProto, name: str, value: Array, apart: dict[str, Array] | None) -> None:
    if tuple(tensor.dims) != value.shape:
        raise InputError(
            f"'{name}' has shape {shape_text(value.shape)} after training, "
            f"{shape_text(tensor.dims)} in the model"
        )
    value = value.astype(numpy_dtype(tensor.data_type), copy=False)
    if apart is not None and tensor.external_data and value.nbytes == raw_bytes(tensor):
        apart[name] = value
        return
    new = numpy_helper.from_array(np.require(value, requirements="C"))
    clear_data(tensor)
    tensor.raw_data = new.raw_data


def changed_weights(before: ModelProto, after: ModelProto) -> list[str]:
    """Returns the names of values whose elements differ. Raises InternalError if the models differ
    in anything else.
    """
    if bare(before) != bare(after):
        raise InternalError("the exported model differs from the original in more than weights")
    pairs = zip(_named_tensors(before.graph), _named_tensors(after.graph), strict=True)
    return [name for (name, old), (_, new) in pairs if _elements(old) != _elements(new)]


def _elements(tensor: TensorProto) -> object:
    """Returns the bytes of the elements, or their location in an external file."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return [(e.key, e.value) for e in tensor.external_data]
    return (
        elements(tensor).tobytes()
        if tensor.data_type != TensorProto.STRING
        else list(tensor.string_data)
    )


def bare(model: ModelProto) -> bytes:
    """Returns the model without the elements of its tensors, as bytes."""
    bare = ModelProto()
    copy_fields(model, bare, skip=("graph",))
    copy_fields(model.graph, bare.graph, skip=("initializer",))
    for tensor in model.graph.initializer:
        copy_fields(tensor, bare.graph.initializer.add(), skip=DATA_FIELDS)
    for tensor in external_data.tensors(bare):
        clear_data(tensor)
    return bytes(bare.SerializeToString(deterministic=True))


def digest(model: ModelLike) -> str:
    """Returns the sha256 of a model with all its weights, external ones included. Raises InputError
    if a file cannot be read.
    """
    proto, folder = proto_of(model)
    found = hashlib.sha256(bare(proto))
    for tensor in external_data.tensors(proto):
        if tensor.data_type == TensorProto.STRING:
            for text in tensor.string_data:
                found.update(hashlib.sha256(text).digest())
            continue
        own = hashlib.sha256()
        for piece in _pieces(tensor, folder):
            own.update(piece)
        found.update(own.digest())
    return found.hexdigest()


def _pieces(tensor: TensorProto, folder: Path | None) -> Iterable[bytes]:
    if tensor.data_location == TensorProto.EXTERNAL:
        return external_data.pieces(tensor, folder)
    return [tensor.raw_data or elements(tensor).tobytes()]
