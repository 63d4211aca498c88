"""Writes programs: as a protobuf in memory, or as files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import EncodeError
from onnx import (
    ModelProto,
    TensorProto,
)

from onnxgrad.errors import InputError
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.storage.atomic_files import (
    Part,
    Staging,
    discard,
    is_stream,
    made_folder,
    place_of,
    refuse_file,
    write_stream,
)
from onnxgrad.ir.storage.outline import is_changed, outline
from onnxgrad.ir.storage.protection import refuse
from onnxgrad.ir.storage.weights_in_file import own_data, pieces
from onnxgrad.options import known_keywords


@known_keywords
def to_proto(program: Program, *, weights: bool = False) -> ModelProto:
    """Returns the ModelProto of a program; unchanged parts are as they were read, field for field.

    With `weights`, external data is loaded into the model. Raises InputError if the model then
    exceeds 2 GB, or if `program` is not a Program.
    """
    model = outline(program)
    if weights:
        external.load_weights(model, program.folder, program.digests)
    else:
        _bring_inside(filter(external.is_halved, model.graph.initializer), program)
    return model


def _bring_inside(staying: Iterable[TensorProto], program: Program) -> None:
    for tensor in staying:
        tensor.CopyFrom(external.internalize(tensor, program.folder))
        tensor.ClearField("data_location")


def to_bytes(program: Program) -> bytes:
    """Returns the serialized model, weights included. Raises InputError if it passes 2 GB."""
    data = _serialized(to_proto(program, weights=True))
    if data is None:
        raise InputError(f"the model's weights {external.TOO_LARGE}")
    return data


@known_keywords
def save(program: Program, path: str | os.PathLike[str], *, sync: bool = True) -> None:
    """Writes a program to `path`, completely or not at all. With `sync` it is on the disk when
    `save` returns.

    Weights from external files are copied, tensor by tensor, to one new file beside `path`, named
    `<name>.<digest>.data`. So are the weights of a model that would exceed 2 GB. That file is
    written before the model and replaces no other file. The weights file of a replaced model is
    removed afterwards if `save` wrote it. Links are followed. A device or a pipe receives the model
    in one piece.

    Raises InputError if `path` is one of the model's own files or cannot be written, or if
    `program` is not a Program. Raises NotProved if external data changed since verification read
    it.
    """
    if not isinstance(program, Program):
        raise InputError(
            f"save takes a Program (see onnxgrad.load), not a {type(program).__name__}: "
            "load it first, or write a ModelProto with onnx.save"
        )
    save_all({Path(path): program}, sync=sync)


def save_all(
    programs: Mapping[Path, Program],
    *,
    sync: bool = True,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Saves several programs in this order, all or none. `before` is called when all of them are on
    the disk and none has its name yet; its exceptions are passed on. Raises as `save`.
    """
    streams, places = dict[Path, bytes](), dict[Path, Path]()
    for path, program in programs.items():
        with _named(path):
            if is_stream(path):
                streams[path] = to_bytes(program)
            else:
                places[path] = place_of(path)
    moves: list[tuple[Part, Path]] = []
    replaced: list[Path] = []
    folders = {place.parent for place in places.values()}
    with Staging(*folders, sync=sync) as staging:
        for path, place in places.items():
            with _named(path):
                parts, old = _staged(programs[path], path, place, staging)
                for part, _ in parts:
                    part.settle(sync=sync)
            moves += parts
            replaced += old
        before()
        for path, data in streams.items():
            with _named(path):
                write_stream(path, data)
        with _named(next(iter(programs))):
            staging.replaced = replaced
            staging.publish(*moves)


# an edit of a model
Change: TypeAlias = Callable[[ModelProto], object]
# a file of `save_together`, or its pieces; a function receives the temporary path of each earlier
# file, by its final path, and returns bytes or pieces
Content: TypeAlias = (
    Program | bytes | Iterator[bytes] | Callable[[Mapping[Path, Path]], bytes | Iterator[bytes]]
)


def save_together(
    folder: str | os.PathLike[str], contents: Mapping[str, Content], change: Change = id
) -> None:
    """Writes the files of one folder, in this order, all or none; the folder is created if it is
    missing. `change` edits each model. Raises as `save`.
    """
    folder = Path(folder)
    refuse_file(folder)
    moves: list[tuple[Part, Path]] = []
    replaced: list[Path] = []
    written: external.Written = {}
    with _named(folder), made_folder(folder), Staging(folder) as staging:
        for name, content in contents.items():
            path = folder / name
            with _named(path):
                if isinstance(content, Program):
                    parts, old = _staged(content, path, path, staging, change, written)
                    replaced += old
                else:
                    staged = {p.parent.resolve() / p.name: part.path for part, p in moves}
                    parts = [(staging.part(path), path)]
                    content = content(staged) if callable(content) else content
                    parts[0][0].file.writelines(
                        [content] if isinstance(content, bytes) else content
                    )
                for part, _ in parts:
                    part.settle()
            moves += parts
        staging.replaced = replaced
        staging.publish(*moves)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns errors of the system into InputErrors that name the file."""
    try:
        yield
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror or e}") from e


def remove(path: str | os.PathLike[str], *, keep: Collection[Path] = ()) -> None:
    """Removes the file of a model, and the weights beside it that `save` wrote, unless they are
    among the resolved paths `keep`. Raises InputError if it cannot be removed, or if the job reads
    the model's file.
    """
    place = place_of(Path(path))
    data = own_data(place)
    refuse(place)
    try:
        place.unlink()
    except OSError as e:
        raise InputError(f"{path}: cannot be removed: {e.strerror or e}") from e
    discard(file for file in data if file.resolve() not in keep)


def _staged(
    program: Program,
    path: Path,
    place: Path,
    staging: Staging,
    change: Change = id,
    written: external.Written | None = None,
) -> tuple[list[tuple[Part, Path]], list[Path]]:
    """Stages a model, and locks its folder against our other processes. Returns its parts with
    their paths, the model last, and the weights files of the model that it replaces. External
    weights in `written` are shared; those of this model are added to it.
    """
    written = {} if written is None else written
    _refuse_own_files(program, place)
    # a copy is needed only where something changes
    same = change is id and not is_changed(program)
    model = program.proto if same else outline(program)
    change(model)
    data, streamed, outside = _divided(program, model)
    if same and (outside or data is None):
        model = outline(program)
        data, streamed, outside = _divided(program, model)
    if outside and path.parent.resolve() != place.parent.resolve():
        raise InputError(
            f"{path}: is a link into another folder, and readers look for the weights "
            f"beside the link: write to {place}"
        )
    moves: list[tuple[Part, Path]] = []
    kept = external.sources(program.proto, program.folder)
    part, moved = staging.part(place), bool(outside)
    outside = external.refer(outside, program.folder, written)
    if outside:
        digest, places = external.move(outside, program.folder, part.file, program.digests)
        part.settle(sync=staging.sync)
        staging.lock()
        data_path, made = _data_path(place, digest, part)
        external.name(outside, data_path.name)
        kept.add(data_path.resolve())
        moves += [(part, data_path)] if made else []
        at = program.folder
        written |= {(at, was): (data_path.name, *span) for was, span in places.items() if was}
        part = staging.part(place)
    if streamed:
        part.file.writelines(pieces(model, program.folder, {}, program.digests))
    else:
        data = _serialized(model) if moved else data
        if data is None:
            raise InputError(
                f"{path}: cannot be written: the model passes 2 GB even without its weights"
            )
        part.file.write(data)
    staging.lock()
    replaced = [old for old in own_data(place) if old.resolve() not in kept]
    return [*moves, (part, place)], replaced


def _divided(program: Program, model: ModelProto) -> tuple[bytes | None, bool, list[TensorProto]]:
    """Returns the model's bytes (None if it does not fit into a file), whether weights must be
    copied into them, and the tensors to be written to another file.
    """
    files, outside = program.digests.files, external.outside(model)
    staying = [t for t in outside if external.stays_inside(t, files)]
    if staying:  # `pieces` copies those of the main graph
        at_top = sum(external.stays_inside(t, files) for t in model.graph.initializer)
        _bring_inside(staying[at_top:], program)
        outside = [t for t in outside if not external.stays_inside(t, files)]
    data = _serialized(model)
    if data is None or len(data) + sum(raw_bytes(t) or 0 for t in staying) >= external.MAX_BYTES:
        return None, False, outside + external.large(model, files)
    return data, bool(staying), outside


def _serialized(model: ModelProto) -> bytes | None:
    """Returns the model's bytes, None if they are more than protobuf can hold."""
    try:
        data = model.SerializeToString()
    except (EncodeError, ValueError):
        return None
    return data if len(data) < external.MAX_BYTES else None


def _refuse_own_files(program: Program, path: Path) -> None:
    if not path.exists():
        return
    if program.path is not None and program.path.exists() and path.samefile(program.path):
        raise InputError(
            f"{path}: output and input are the same file; the input is never changed, choose "
            "another output"
        )
    external.check_not_weights(path, program.proto, program.folder)


def _data_path(model: Path, digest: str, part: Part) -> tuple[Path, bool]:
    """Returns the path of the weights in `part`, and whether to write them: a file with their
    content may be there.
    """
    path, count = model.with_name(f"{model.name}.{digest}.data"), 1
    while path.exists() or path.is_symlink():
        if path.is_file() and filecmp.cmp(path, part.path, shallow=False):
            return path, False
        count += 1
        path = model.with_name(f"{model.name}.{digest}-{count}.data")
    return path, True
