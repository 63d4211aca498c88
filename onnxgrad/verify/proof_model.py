"""A model under proof: its protobuf, and the bytes or the path that a child process reads."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import internalize, outside, pieces
from onnxgrad.ir.storage.shared_weights import IN_MEMORY, Files
from onnxgrad.ir.storage.stored_arrays import temporary
from onnxgrad.ir.storage.weights_in_file import LARGE_FILE, read_without_weights
from onnxgrad.verify.running.results_in_files import ResultFile
from onnxgrad.wording import one_line

Model: TypeAlias = "onnx.ModelProto | bytes | str | os.PathLike[str]"
TWO_GB = 2**31 - 1


def sendable(payload: bytes | str) -> Any:
    """Returns the payload of `source_of` in a form that a message can carry without a copy."""
    return payload if isinstance(payload, str) else pickle.PickleBuffer(payload)


def received(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of a child process; those that it left in files as `StoredArray`, with
    which their files are removed.
    """
    return {n: temporary(*v) if isinstance(v, ResultFile) else v for n, v in found.items()}


def source_of(model: Model) -> tuple[str, bytes | str]:
    """Returns (digest, bytes or absolute path) of a model. The digest of a path consists of its
    name, time and size, so that gigabytes are not read twice.
    """
    if isinstance(model, onnx.ModelProto):
        if model.ByteSize() > TWO_GB:
            raise InputError(
                "the model is larger than 2 GB: save it with external data and pass its path"
            )
        model = model.SerializeToString()
    if isinstance(model, bytes):
        return hashlib.blake2b(model, digest_size=16).hexdigest(), model
    path = Path(model).absolute()
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {model}: {error.strerror}") from error
    return f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}", _openable(path)


def _openable(path: Path) -> bytes | str:
    """Returns the path in a form that onnxruntime accepts: UTF-8 in every locale. Returns the
    model's bytes if its path is not UTF-8.

    Raises InputError if the model then has external data, because onnxruntime would not know the
    folder.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        data = path.read_bytes()
    if outside(onnx.load_model_from_string(data)):
        raise InputError(
            f"{path}: onnxruntime opens no file whose name is not UTF-8, and this one has external "
            "weights beside it: rename the file and its folders"
        )
    return data


@frozen
class ProofModel:
    """A model under proof. `source`: the form that onnxruntime loads. `proto`: the file without
    external weights, and without those that `read_without_weights` leaves in a large file.
    `weights`: returns the file with all of them.
    """

    source: Model
    proto: onnx.ModelProto
    weights: Callable[[], onnx.ModelProto]

    def read(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Returns a tensor of `proto` with its elements. Raises InputError if they are missing,
        damaged or outside the folder.
        """
        if not self.lies_outside(tensor):
            return tensor
        try:
            return internalize(tensor, self.folder)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def pieces(self, tensor: onnx.TensorProto) -> Iterator[bytes]:
        """Yields the bytes of a tensor that `lies_outside`, in pieces that depend on its size only.
        Raises as `read`.
        """
        try:
            yield from pieces(tensor, self.folder)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def lies_outside(self, tensor: onnx.TensorProto) -> bool:
        """Whether a tensor of `proto` lies in a file."""
        return tensor.data_location == onnx.TensorProto.EXTERNAL and self.path is not None

    @property
    def path(self) -> Path | None:
        """The model's file; None if there is none."""
        return Path(self.source) if isinstance(self.source, (str, os.PathLike)) else None

    @property
    def folder(self) -> Path | None:
        """The folder of the model's file; None if there is none."""
        return None if self.path is None else self.path.parent

    def apart(self) -> tuple[onnx.ModelProto, str | None]:
        """Returns the model, to be changed and run in onnxruntime, and the folder of the weights
        that are not in it; None: all are.
        """
        if not isinstance(self.source, (str, os.PathLike)) or not outside(self.proto):
            return self.proto, None
        try:
            folder = os.fsencode(Path(self.source).absolute().parent).decode("utf-8")
        except UnicodeDecodeError:
            return self.weights(), None
        return self.proto, folder


def proof_model(model: Any, files: Files = IN_MEMORY) -> ProofModel:
    """Returns the ProofModel of any model that `ir.load` accepts. `files`: where a copy may lie
    (`Files.beside`). Raises InputError if it is not an ONNX model.
    """
    if not isinstance(model, (str, os.PathLike, bytes, onnx.ModelProto)):
        model = settled(model)
    if isinstance(model, Program):
        model = to_proto(model, weights=True)
    if isinstance(model, onnx.ModelProto):
        small = model.ByteSize() <= TWO_GB
        return ProofModel(model.SerializeToString() if small else model, model, lambda: model)
    if (
        not isinstance(model, bytes)
        and os.path.exists(model)
        and not (os.path.isfile(model) or os.path.isdir(model))
    ):
        raise InputError(
            f"{model} is a device or a pipe, which cannot be read twice: pass its bytes"
        )
    name = "the model" if isinstance(model, bytes) else str(model)
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
            return ProofModel(model, proto, lambda: proto)
        path = files.beside(Path(model))
        read = read_without_weights(path) if path.stat().st_size >= LARGE_FILE else None
        read = read or onnx.load(path, load_external_data=False)
        return ProofModel(path, read, lambda: _with_weights(path))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from error
    # protobuf's DecodeError (its module differs between versions), ValueError, TypeError
    except Exception as error:
        raise InputError(f"{name} is not an ONNX model: {one_line(error, 300)}") from error


def _with_weights(path: Path) -> onnx.ModelProto:
    """Returns the model with its external data, of any size. Raises InputError if that data is
    missing, damaged or outside the folder.
    """
    proto = onnx.load(path, load_external_data=False)
    try:
        for tensor in outside(proto):
            tensor.CopyFrom(internalize(tensor, path.parent))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return proto
