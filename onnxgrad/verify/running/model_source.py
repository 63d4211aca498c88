"""A model on its way to a child process: its serialized bytes, or the path that the child reads
itself.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.external_data import outside

Model: TypeAlias = "onnx.ModelProto | bytes | str | os.PathLike[str]"
TWO_GB = 2**31 - 1


def sendable(payload: bytes | str) -> Any:
    """The payload of `source_of` for a message: bytes are not copied into it."""
    return payload if isinstance(payload, str) else pickle.PickleBuffer(payload)


def source_of(model: Model) -> tuple[str, bytes | str]:
    """(digest, bytes or absolute path) of a model. A path is known by name, time and size: reading
    gigabytes twice helps nobody.
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
    """The name as onnxruntime takes it, in UTF-8 whatever the locale says; the model's bytes when
    its name is no UTF-8.

    Raises InputError when external data would then be looked for in a folder that has no name.
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
