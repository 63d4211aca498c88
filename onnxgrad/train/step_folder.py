"""Reads and writes a training step as a folder: `train.onnx`, `eval.onnx`, `predict.onnx`,
`state.safetensors`, and `manifest.json`, which is written last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import program_of, read, read_proto
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_graph, graphs_of, keep
from onnxgrad.ir.save import Content, save_together, to_proto
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.storage.atomic_files import hash_file, regular, text_of, write_whole
from onnxgrad.ir.storage.external_data import Digests, sources
from onnxgrad.ir.storage.weights_in_file import LARGE_FILE, pieces, read_without_weights
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.options import checked, known_keywords
from onnxgrad.train.array_files import OnDisk, is_zeros, on_disk
from onnxgrad.train.engines.flat_buffers import optimizer_of, slot_of
from onnxgrad.train.engines.session import dtype_of, sizes_of
from onnxgrad.train.export import with_initializers
from onnxgrad.train.losses.sums import summed
from onnxgrad.train.manifest import GRAPHS, SCHEMA, Fed, Manifest
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.schedules import schedule_of
from onnxgrad.train.step import TrainingStep, drop_loss, prediction
from onnxgrad.train.update.emission import fed_of
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import average_of
from onnxgrad.wording import option, perhaps, shape_text

MANIFEST = "manifest.json"
# test vectors of clients: folders with steps, the file of each with batches and losses, and the
# model to deploy with the first values
VECTORS, VECTOR = Path(__file__).with_name("test_vectors"), "vector.safetensors"
DEPLOYED = "deployed.onnx"
# metadata that onnxgrad or onnxruntime reads
_OF_USE = ("onnxgrad.", "layer_ann")


@known_keywords
def save_step(step: TrainingStep, folder: str | PathLike[str]) -> None:
    """Writes a step into a folder, which is created if it is missing. Its files appear together or
    not at all.

    Raises InputError if a file cannot be written.
    """
    manifest = _with_zeros(step)
    contents: dict[str, Content] = {
        manifest.train: step.train,
        manifest.eval: step.evaluation,
    }
    if manifest.predict is not None:
        written = Path(folder).resolve() / manifest.eval
        contents[manifest.predict] = lambda staged: _prediction(staged[written], manifest)
    if step.update is not None and manifest.update is not None:
        contents[manifest.update] = step.update
    zeros = {fed.name for fed in manifest.inputs if fed.zeros}
    stored = {name: array for name, array in step.initial.items() if name not in zeros}
    contents[manifest.state] = safetensors_file.pieces(stored, {"model": manifest.model})
    contents[MANIFEST] = lambda staged: _sealed(Path(folder), manifest, staged)
    save_together(folder, contents, without_notes)
    if isinstance(step.initial, OnDisk):
        step.initial.release()


def _prediction(evaluation: Path, manifest: Manifest) -> Iterator[bytes]:
    """Returns the pieces of the graph of that file without the loss; its external data is that of
    the file. Large weights are copied from file to file.
    """
    model = _outline(evaluation)
    drop_loss(model.graph, manifest)
    digests = Digests()
    digests.files = frozenset([evaluation.name])
    return pieces(model, evaluation.parent, {}, digests)


def deployable(step: TrainingStep, weights: Mapping[str, Array], how: Mapping[str, Any]) -> Program:
    """Returns the model of `predict.onnx` with these weights, which `how` describes, as
    initializers. Raises InputError if the model returns only its loss.
    """
    if step.manifest.predict is None:
        raise InputError(
            "the only output of the model is the loss: there is no model to write; mark its result "
            "as an output first (onnxgrad edit --add-output), or keep the weights alone (--folder)"
        )
    source, model = step.evaluation, to_proto(prediction(step))
    without_notes(model)
    names = [fed.name for fed in step.manifest.of_model()]
    made = with_initializers(model, weights, names, how["steps"])
    return program_of(made, source.folder, digests=source.digests)


def _outline(path: Path) -> ModelProto:
    """Returns the model of a file; the large weights of a large file stay in it."""
    large = path.is_file() and path.stat().st_size >= LARGE_FILE
    return (read_without_weights(path) if large else None) or read_proto(path)


def without_notes(model: ModelProto) -> None:
    """Removes the notes of exporters on nodes, values, graphs and functions, which name places in
    source code. Metadata of onnxgrad and of onnxruntime stays, and so does the model's own.
    """
    drop_notes(model.graph)
    for function in model.functions:
        _drop_from([function, *function.node, *function.value_info])
        for graph in (graph for node in function.node for graph in graphs_of(node)):
            drop_notes(graph)


def drop_notes(graph: GraphProto) -> None:
    """Removes the notes of exporters from a graph and from the graphs inside."""
    for each in every_graph(graph):
        _drop_from([each, *each.node, *each.input, *each.output, *each.value_info])
        _drop_from(each.initializer)


def _drop_from(described: Iterable[Any]) -> None:
    for proto in described:
        if proto.doc_string:
            proto.ClearField("doc_string")
        if proto.metadata_props:
            keep(proto.metadata_props, lambda entry: entry.key.startswith(_OF_USE))


def _with_zeros(step: TrainingStep) -> Manifest:
    """Returns the manifest with `zeros` set for inputs whose first value is zeros. Values of the
    model are always stored.
    """
    manifest, initial = step.manifest, step.initial
    of_model = {fed.name for fed in manifest.of_model()}

    def zeros(fed: Fed) -> bool:
        if fed.next is None or fed.name in of_model:
            return False
        return is_zeros(initial[fed.name])

    return replace(manifest, inputs=tuple(replace(f, zeros=zeros(f)) for f in manifest.inputs))


@known_keywords
def seal_step(folder: str | PathLike[str]) -> tuple[str, ...]:
    """Accepts the graphs of a step as they are now: writes their digests into the manifest. Returns
    the names of the changed files. Raises InputError if the folder is not a valid step.
    """
    folder = Path(folder)
    with _opened(folder) as step:
        digests = _digests(folder, step.manifest, {})
        known = step.manifest.digests
        changed = tuple(name for name, found in digests.items() if known.get(name) != found)
        try:
            write_whole(folder / MANIFEST, _sealed(folder, step.manifest, {}))
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return changed


def save_vectors(folder: str | PathLike[str]) -> None:
    """Writes the steps for the tests of a client, a folder each, and the manifest's schema. Raises
    InputError.
    """
    folder = Path(folder)
    for vector in sorted(VECTORS.iterdir()):
        save_together(folder / vector.name, {p.name: p.read_bytes() for p in vector.iterdir()})
    save_together(folder, {SCHEMA.name: SCHEMA.read_bytes()})


@known_keywords
def read_step(folder: str | PathLike[str]) -> TrainingStep:
    """Returns the step that `save_step` wrote. Raises InputError for a folder without a step, with
    parts of several steps, or with a changed graph.
    """
    with opened_step(folder) as step:
        return replace(step, initial=on_disk(dict(step.initial)))


@contextmanager
def opened_step(folder: str | PathLike[str]) -> Iterator[TrainingStep]:
    """Opens a step as `read_step` does, but reads initial values on access, inside of the
    context.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    for name, found in _digests(folder, manifest, {}).items():
        if manifest.digests.get(name) != found:
            seal = option(f"`onnxgrad train-step --seal {folder}`", "`seal_step(folder)`")
            raise InputError(
                f"{folder / name} is not the file that {MANIFEST} was written for: restore it, or "
                f"accept it with {seal}"
            )
    with _opened(folder, manifest) as step:
        yield step


@contextmanager
def _opened(folder: Path, known: Manifest | None = None) -> Iterator[TrainingStep]:
    """Opens the parts of a step, and checks that they belong together."""
    manifest = known or _manifest(folder)
    update = None if manifest.update is None else read(folder / manifest.update)
    train, evaluation = read(folder / manifest.train), read(folder / manifest.eval)
    step = TrainingStep(train, evaluation, {}, manifest, update)
    check_fits(step, str(folder / MANIFEST))
    if manifest.predict is not None:
        _check_prediction(_outline(folder / manifest.predict), manifest, str(folder / MANIFEST))
    zeros = {fed.name: (dtype_of(fed), sizes_of(fed)) for fed in manifest.inputs if fed.zeros}
    with safetensors_file.opened(folder / manifest.state, zeros) as values:
        model = values.metadata.get("model", "")
        check_values(values.outlines, manifest, model, str(folder / manifest.state))
        yield replace(step, initial=values)


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}: is {folder} a training step?") from None
    return Manifest.from_json(text, str(path))


def _sealed(folder: Path, manifest: Manifest, staged: Mapping[Path, Path]) -> bytes:
    return replace(manifest, digests=_digests(folder, manifest, staged)).to_json().encode()


def _digests(folder: Path, manifest: Manifest, staged: Mapping[Path, Path]) -> dict[str, str]:
    """Returns the sha256 of each graph's file and of its weight files. `staged` maps files to their
    temporary places.
    """
    found: dict[str, str] = {}
    for key in GRAPHS:
        name: str | None = getattr(manifest, key)
        if name is not None:
            try:
                found[name] = _digest(folder.resolve() / name, staged)
            except InputError as error:
                raise InputError(f"{folder / MANIFEST}: '{key}': {error}") from None
    return found


def _digest(path: Path, staged: Mapping[Path, Path]) -> str:
    found, root = hashlib.sha256(), path.parent
    model = staged.get(path, path)
    # files outside of the folder are refused when they are read
    beside = (
        p for p in sources(_outline(model), root) if p.is_relative_to(root) and p.name != model.name
    )
    for file in (model, *sorted(beside)):
        try:
            hash_file(found, regular(staged.get(file, file)))
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    return found.hexdigest()


def check_values(
    values: safetensors_file.Arrays, manifest: Manifest, model: str, where: str
) -> None:
    """Raises InputError unless these are the parameters and states of the step, and of its
    model.
    """
    if model != manifest.model:
        raise InputError(
            f"{where} is of another model than this training step: use the folder that it came from"
        )
    carried = {fed.name for fed in manifest.inputs if fed.next is not None}
    if strange := sorted(set(values) - carried):
        raise InputError(
            f"{where} has '{strange[0]}', which this step does not know: it is of another training "
            "step"
        )
    for fed in manifest.inputs:
        if fed.next is None:
            continue
        if fed.name not in values:
            raise InputError(
                f"{where} lacks '{fed.name}': it is damaged, or of another training step"
            )
        array = values[fed.name]
        if array.shape != fed.shape or array.dtype.name != fed.dtype:
            raise InputError(
                f"{where} has {array.dtype}{shape_text(array.shape)} for '{fed.name}', "
                f"the step takes {fed.dtype}{shape_text(fed.shape or ())}"
            )


def check_fits(step: TrainingStep, where: str) -> None:
    """Raises InputError, with the manifest's key, if the manifest names values that the graphs
    lack, or an unknown update.
    """
    manifest = step.manifest
    graphs = [step.train] if step.update is None else [step.train, step.update]
    taken = {v.name: v for graph in graphs for v in graph.main.inputs if v.initializer is None}
    given = {v.name for graph in graphs for v in graph.main.outputs}
    inside = {v.name for graph in graphs for v in graph.main.vars()}
    carried = {fed.name for fed in manifest.inputs if fed.next is not None}
    outputs = {v.name for v in step.train.main.outputs}
    evaluated = {v.name for v in step.evaluation.main.outputs}
    named: list[tuple[str, str | None, Collection[str]]] = [
        ("'loss'", manifest.loss, outputs),
        ("'gradient_norm'", manifest.gradient_norm, given),
        ("'divisor'", manifest.divisor, outputs),
        *(("'sums'", name, evaluated) for name in summed(manifest.sums)),
        *(("'metrics'", name, given) for name in manifest.metrics),
    ]
    places = manifest.places()
    for fed in manifest.inputs:
        at = places[fed.name]
        named += [
            (f"{at} 'name'", fed.name, taken),
            (f"{at} 'next'", fed.next, given),
            (f"{at} 'of'", fed.of, carried),
            (f"{at} 'gradient'", fed.gradient, inside),
            (f"{at} 'adjoint'", fed.adjoint, inside),
        ]
    for key, name, names in named:
        if name is not None and name not in names:
            near = perhaps(name, names)
            raise InputError(f"{where}: {key}: the step has no value '{name}'{near}")
    groups = max(1, len(manifest.groups))
    for fed in manifest.inputs:
        _check_fed(fed, taken[fed.name], groups, f"{where}: {places[fed.name]}")
    for name in sorted(taken.keys() - {fed.name for fed in manifest.inputs}):
        raise InputError(f"{where}: 'inputs' lacks '{name}', which the step reads")
    _check_update(manifest, where)


def _check_prediction(model: ModelProto, manifest: Manifest, where: str) -> None:
    """Raises InputError if the graph reads anything except a batch and the values of the model."""
    known = {fed.name for fed in (*manifest.of_role("batch"), *manifest.of_model())}
    held = {t.name for t in model.graph.initializer}
    strange = [v.name for v in model.graph.input if v.name not in known | held]
    if strange or not model.graph.output:
        name = strange[0] if strange else "no output"
        raise InputError(
            f"{where}: 'predict': the graph must compute outputs from a batch and weights only, "
            f"but reads '{name}'"
        )


def _check_fed(fed: Fed, taken: Var, groups: int, where: str) -> None:
    """Raises InputError if an input of the step differs from its entry in the manifest."""
    real = fed_of(taken, fed.role)
    for key, stated, found in (("dtype", fed.dtype, real.dtype), ("shape", fed.shape, real.shape)):
        if stated != found:
            raise InputError(f"{where} '{key}': the step takes {found}, not {stated!r}")
    if fed.role == "parameter" and fed.adjoint is None and fed.gradient is not None:
        raise InputError(f"{where} 'adjoint' of a parameter must be a value of the step")
    if fed.role == "parameter" and (fed.group or 0) >= groups:
        raise InputError(f"{where} 'group': there is no group {fed.group}")


def _check_update(manifest: Manifest, where: str) -> None:
    """Raises InputError for a built-in optimiser, schedule or scaling with wrong options."""
    parts = (
        ("average", manifest.average is not None, bool(manifest.of_role("average"))),
        ("loss_scaling", manifest.loss_scaling is not None, bool(manifest.of_role("scaling"))),
        ("accumulate", manifest.accumulate > 1, manifest.update is not None),
        ("schedule", manifest.schedule is not None, not manifest.of_role("learning_rate")),
    )
    for key, stated, found in parts:
        if stated and not found:
            raise InputError(f"{where}: '{key}' disagrees with the graphs of this step")
    entries: list[tuple[str, Callable[[Any], Any], Any]] = [
        ("optimizer", _of, manifest.optimizer),
        *((f"groups[{i}]", _group, group) for i, group in enumerate(manifest.groups)),
        ("schedule", _schedule, manifest.schedule),
        ("loss_scaling", lambda entry: LossScaling(**entry), manifest.loss_scaling),
        ("average", average_of, manifest.average),
    ]
    for key, make, entry in (row for row in entries if row[2] is not None):
        try:
            make(entry)
        except (InputError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{where}: '{key}': {error}") from None
    _check_slots(manifest, where)


def _check_slots(manifest: Manifest, where: str) -> None:
    """Raises InputError if the states of a parameter are not those that its optimiser updates."""
    entries = manifest.groups or ({"optimizer": manifest.optimizer},)
    for fed in manifest.of_role("parameter"):
        entry = entries[fed.group or 0]["optimizer"]
        if entry["name"] not in OPTIMIZERS:
            continue
        small = np.zeros((1,) * len(fed.shape or ()), np.float32)  # the names depend on the rank
        wanted = {*optimizer_of(entry).state(small)}
        if fed.dtype not in ("float32", "float64"):
            wanted.add("master")
        found = {slot_of(state) for state in manifest.of_role("state") if state.of == fed.name}
        if wanted != found:
            raise InputError(
                f"{where}: 'inputs': the states of '{fed.name}' must be {sorted(wanted)}, which "
                f"'{entry['name']}' updates, not {sorted(found)}"
            )


def _of(entry: Mapping[str, Any]) -> None:
    name = checked(str, entry.get("name"), "'name'")
    if name in OPTIMIZERS:
        optimizer_of(entry)
    elif "lr" in entry:
        checked(float, entry["lr"], "'lr'")


def _schedule(entry: Mapping[str, Any]) -> None:
    checked(str, entry.get("name"), "'name'")
    schedule_of(entry)


def _group(group: Mapping[str, Any]) -> None:
    checked(str | None, group.get("glob"), "'glob'")
    _of(checked(Mapping[str, Any], group.get("optimizer"), "'optimizer'"))
    checked(float, group.get("factor", 1.0), "'factor'")
