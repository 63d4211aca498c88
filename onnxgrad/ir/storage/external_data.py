"""Weights in external files: read on demand, streamed to a new file when saved."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path, PureWindowsPath
from typing import IO, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import set_external_data

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.preflight.other_formats import FIRST_BYTES, format_of
from onnxgrad.ir.preflight.tensors import KEPT_AS, raw_bytes
from onnxgrad.ir.types import Array
from onnxgrad.wording import perhaps

# protobuf's limit, with room for everything but the weights
MAX_BYTES = (1 << 31) - (1 << 20)
TOO_LARGE = (
    "pass 2 GB, more than a ModelProto can hold: pass onnxgrad.load(path) and write the result "
    "with onnxgrad.save(program, path), or on the command line -o FILE"
)


# the entries of an external tensor
Place: TypeAlias = tuple[tuple[str, str], ...]
# the file, the offset and the length to which the tensor at a place of a folder was written
Written: TypeAlias = dict[tuple[Path | None, Place], tuple[str, int, int]]


class Digests(dict[Place, bytes]):
    """The digests of external tensors when they were first read, for verification or to be written.
    `files` are the names of model files in which large weights stayed; `save` writes these weights
    into the model again.
    """

    files: frozenset[str] = frozenset()


class TooLarge(InputError):
    """The weights do not fit into one ModelProto."""


# page-aligned tensors can be mapped into memory
_ALIGNMENT = 4096
# tensors below this stay in the model file even when others go outside
_INLINE_BYTES = 1024
# external data is copied in pieces of this size, so that no weight has to fit into memory
_PIECE = 1 << 24


def internalize(tensor: TensorProto, folder: Path | None) -> TensorProto:
    """Returns a copy of an external tensor with its bytes inside.

    Raises InputError if the data is missing, outside `folder` (the model's), or shorter than
    declared.
    """
    if is_halved(tensor):
        copy = deepcopy(tensor)
        copy.raw_data = b"".join(pieces(tensor, folder))
        copy.data_location = TensorProto.DEFAULT
        del copy.external_data[:]
        return copy
    if folder is None:
        raise InputError(
            f"initializer '{tensor.name}' lies in an external file and the model has no folder: "
            "pass the model's path instead of its bytes"
        )
    copy = deepcopy(tensor)
    _check_length(copy)
    try:
        # onnx refuses locations that leave the folder, by "..", absolute paths or links
        onnx.external_data_helper.load_external_data_for_tensor(copy, str(folder.resolve()))
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as e:
        reason = _fault_of_file(tensor, folder) or (str(e) or type(e).__name__).splitlines()[0]
        # onnx does not read a file with two names: the other one may be outside the folder
        if "hard link" in reason:
            reason += " (the file has two names, as after `cp -l`: copy it, so that it has one)"
        raise InputError(
            f"external data of initializer '{tensor.name}' cannot be read: {reason}"
        ) from e
    copy.data_location = TensorProto.DEFAULT
    del copy.external_data[:]
    return copy


def _fault_of_file(tensor: TensorProto, folder: Path) -> str:
    """Returns why the file of an external tensor cannot hold it: missing, or of another format."""
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    path = folder / location
    if Path(location).is_absolute() or ".." in Path(location).parts or "\0" in location:
        return ""  # onnx refuses these
    if not os.path.lexists(path):
        around = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        slashed = PureWindowsPath(location).as_posix()
        if slashed != location and os.path.lexists(folder / slashed):
            return f"its location {location} has backslashes: write {slashed} (the file is there)"
        return f"its file is missing, expected at {path.absolute()}{perhaps(path.name, around)}"
    if path.is_dir():
        return f"{path} is a folder"
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if found := format_of(file.read(FIRST_BYTES)):
            return f"{path} is {found}"
    return ""


def _check_length(tensor: TensorProto) -> None:
    """Sets a missing length to the one that the sizes require, because onnx would read to the end
    of the file. Raises InputError if the model declares another length.
    """
    needed = raw_bytes(tensor)
    if needed is None:
        return
    written = [e for e in tensor.external_data if e.key == "length"]
    if not written:
        tensor.external_data.add(key="length", value=str(needed))
    elif any(
        not (e.value.isdecimal() and len(e.value) < 20 and int(e.value) == needed) for e in written
    ):
        raise InputError(
            f"external data of initializer '{tensor.name}' is declared as {written[0].value[:20]} "
            f"bytes long, and its sizes require {needed}"
        )


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model that may hold weights, those of nested graphs, functions and training
    graphs included.
    """
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)
    for info in model.training_info:
        yield from _graph_tensors(info.initialization)
        yield from _graph_tensors(info.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                yield a.t
            elif a.type == AttributeProto.TENSORS:
                yield from a.tensors
            elif a.type == AttributeProto.GRAPH:
                yield from _graph_tensors(a.g)
            elif a.type == AttributeProto.GRAPHS:
                for g in a.graphs:
                    yield from _graph_tensors(g)


def load_weights(
    model: ModelProto,
    folder: Path | None,
    digests: Digests | None = None,
    *,
    but: Collection[str] = (),
) -> None:
    """Loads every external tensor of `model`, except those named in `but`. Raises InputError if
    they exceed 2 GB, or as `internalize`. Raises NotProved if `digests` has another digest of a
    tensor.
    """
    leaving = [t for t in outside(model) if t.name not in but]
    if sum(raw_bytes(t) or 0 for t in leaving) >= MAX_BYTES:
        raise TooLarge(f"the model's weights {TOO_LARGE}")
    for tensor in leaving:
        inside = internalize(tensor, folder)
        if digests is not None:
            unchanged(tensor, hashlib.blake2b(inside.raw_data, digest_size=16).digest(), digests)
            if stays_inside(tensor, digests.files):
                inside.ClearField("data_location")
        tensor.CopyFrom(inside)


def outside(model: ModelProto) -> list[TensorProto]:
    """The tensors whose data lies in external files."""
    return [t for t in tensors(model) if t.data_location == TensorProto.EXTERNAL]


def large(model: ModelProto, files: Collection[str]) -> list[TensorProto]:
    """The tensors in the model, or in its files, that are worth moving out of a file over 2 GB."""
    return [t for t in tensors(model) if len(t.raw_data) > _INLINE_BYTES or stays_inside(t, files)]


def _place(tensor: TensorProto) -> Place:
    return tuple(sorted((e.key, e.value) for e in tensor.external_data))


def unchanged(tensor: TensorProto, digest: bytes, digests: Digests) -> None:
    """Raises NotProved if the bytes of an external tensor differ from those first read."""
    place = _place(tensor)
    if digests.setdefault(place, digest) != digest:
        raise NotProved(
            f"not proved: the data of '{tensor.name}' in {dict(place).get('location', '')} changed "
            "after the proof read it: nothing was written; try again when the file stays as it is"
        )


def unchanged_since(tensor: TensorProto, known: Digests, digests: Digests) -> None:
    """Like `unchanged`, with the digest that `known` has of the tensor, if any."""
    digest = known.get(_place(tensor))
    if digest is not None and tensor.data_location == TensorProto.EXTERNAL:
        unchanged(tensor, digest, digests)


def refer(
    leaving: Iterable[TensorProto], folder: Path | None, written: Written
) -> list[TensorProto]:
    """Makes tensors that were written to a file of the same folder before refer to it. Returns the
    other tensors.
    """
    others = []
    for tensor in leaving:
        outside = tensor.data_location == TensorProto.EXTERNAL
        found = written.get((folder, _place(tensor))) if outside else None
        if found is None:
            others.append(tensor)
        else:
            set_place(tensor, *found)
    return others


def next_place(file: IO[bytes]) -> int:
    """Moves to the next offset at which a tensor may begin, and returns it."""
    return file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)


def set_place(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Makes a tensor without elements refer to its place in a file."""
    tensor.raw_data = b"\0"  # set_external_data wants the field present
    set_external_data(tensor, location, offset, length)
    tensor.ClearField("raw_data")


def move(
    leaving: Sequence[TensorProto], folder: Path | None, file: IO[bytes], digests: Digests
) -> tuple[str, dict[Place, tuple[int, int]]]:
    """Writes the tensors one after the other to `file`; tensors that share their data still share
    it. Returns a digest of the file, and the offset and length of each tensor by its former place.

    The tensors then refer to a file whose name `name` sets. Raises InputError as `internalize`.
    Raises NotProved if `digests` has another digest of an external tensor.
    """
    written: dict[Place, tuple[int, int]] = {}
    digest = hashlib.blake2b(digest_size=8)
    for tensor in leaving:
        external = tensor.data_location == TensorProto.EXTERNAL
        place = _place(tensor) if external else ()
        if place not in written or not external:
            offset = next_place(file)
            content = hashlib.blake2b(digest_size=16)
            for data in pieces(tensor, folder) if external else [tensor.raw_data]:
                file.write(data)
                content.update(data)
            if external:
                unchanged(tensor, content.digest(), digests)
            written[place] = (offset, file.tell() - offset)
            digest.update(content.digest() + repr(written[place]).encode())
        set_place(tensor, "", *written[place])
    return digest.hexdigest(), written


def name(moved: Iterable[TensorProto], location: str) -> None:
    """Sets the name of the file that the tensors refer to."""
    for tensor in moved:
        next(e for e in tensor.external_data if e.key == "location").value = location


def pieces(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """The bytes of an external tensor in pieces, each read through onnx's checks. Raises as
    `internalize`.
    """
    if is_halved(tensor):
        wide = arrays(_source(tensor), folder)
        yield from (narrowed(a).astype("<f2", copy=False).tobytes() for a in wide)
        return
    checked = deepcopy(tensor)
    _check_length(checked)
    place = {e.key: e.value for e in checked.external_data}
    length, offset = place.get("length", ""), place.get("offset", "0")
    if not (length.isdecimal() and offset.isdecimal()) or int(length) <= _PIECE:
        yield internalize(tensor, folder).raw_data
        return
    start, end = int(offset), int(offset) + int(length)
    for at in range(start, end, _PIECE):
        yield _read(tensor, folder, at, min(_PIECE, end - at))


def _read(tensor: TensorProto, folder: Path | None, at: int, size: int) -> bytes:
    """The bytes at a place of the file of an external tensor. Raises as `internalize`."""
    piece = TensorProto(name=tensor.name, data_type=TensorProto.UINT8, dims=[size], raw_data=b"")
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    set_external_data(piece, location, at, size)
    return internalize(piece, folder).raw_data


def checked_place(tensor: TensorProto, folder: Path) -> tuple[Path, int]:
    """Returns the file of an external tensor and the offset there, after onnx's checks of its first
    and last byte. Raises as `internalize`.
    """
    checked = deepcopy(tensor)
    _check_length(checked)
    place = {e.key: e.value for e in checked.external_data}
    if not place.get("offset", "0").isdecimal():
        internalize(tensor, folder)
    start, size = int(place.get("offset", "0")), raw_bytes(tensor) or 0
    for at in {start, start + max(size - 1, 0)} if size else ():
        _read(tensor, folder, at, 1)
    return folder / place.get("location", ""), start


def arrays(tensor: TensorProto, folder: Path | None) -> Iterator[Array]:
    """The float32 numbers of an external tensor, in pieces."""
    for data in pieces(tensor, folder):
        yield np.frombuffer(data, "<f4")


def narrowed(array: Array) -> Array:
    """Returns float32 numbers in float16; those beyond its range become its largest number."""
    with np.errstate(over="ignore", under="ignore"):
        made = array.astype(np.float16)
    over = np.isinf(made) & np.isfinite(array)
    if over.any():
        made[over] = np.copysign(np.finfo(np.float16).max, array[over]).astype(np.float16)
    return made


def halved(tensor: TensorProto) -> TensorProto:
    """Returns an external float32 tensor as float16, to be converted whenever it is read."""
    made = deepcopy(tensor)
    made.data_type = TensorProto.FLOAT16
    made.external_data.add(key=KEPT_AS, value="float32")
    return made


def stays_inside(tensor: TensorProto, files: Collection[str]) -> bool:
    """Whether an external tensor belongs into the model's file: it stayed in one of `files`, from
    which models were read, or is converted.
    """
    place = {e.key: e.value for e in tensor.external_data}
    return KEPT_AS in place or place.get("location") in files


def is_halved(tensor: TensorProto) -> bool:
    """Whether an external float16 tensor is kept as float32."""
    places = tensor.external_data
    return bool(places) and any(e.key == KEPT_AS for e in places)


def _source(tensor: TensorProto) -> TensorProto:
    made = deepcopy(tensor)
    made.data_type = TensorProto.FLOAT
    del made.external_data[-1]
    return made


def check_not_weights(path: Path, proto: ModelProto, folder: Path | None) -> None:
    """Raises InputError if the model reads its weights from `path`, which is to be written."""
    if path.resolve() in sources(proto, folder):
        raise InputError(
            f"{path}: the model reads its weights from this file; choose another output"
        )


def sources(model: ModelProto, folder: Path | None) -> set[Path]:
    """The files that a model reads its weights from."""
    if folder is None:
        return set()
    found = set()
    for location in locations(model):
        with contextlib.suppress(OSError, ValueError):  # a name may be no path
            found.add((folder / location).resolve())
    return found


def locations(model: ModelProto) -> set[str]:
    """The names of the files that a model reads its weights from, as written in it."""
    return {e.value for t in tensors(model) for e in t.external_data if e.key == "location"}
