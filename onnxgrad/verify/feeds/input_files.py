"""Reads the user's inputs from .npz, .npy and .pb files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.preflight.tensors import check_tensor
from onnxgrad.ir.storage.atomic_files import regular
from onnxgrad.ir.storage.numpy_files import read_arrays
from onnxgrad.verify.feeds.dims import required_inputs
from onnxgrad.verify.values import Value
from onnxgrad.wording import counted, one_line, option

_LARGEST = (1 << 31) - 1  # bytes that protobuf reads


def load_inputs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], model: onnx.ModelProto
) -> dict[str, Value]:
    """Returns input values by name from files: `NAME=FILE`, an .npz with the names of the inputs,
    an .npy for a model with one input, .pb files as in ONNX's test data (`input_0.pb`, or with the
    tensor's own name), or a folder of .pb files.

    Raises InputError, which names the file, if a file cannot be read or assigned to an input.
    """
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return {name: value for item in listed for name, value in _load(os.fspath(item), model).items()}


def _load(item: str, model: onnx.ModelProto) -> dict[str, Value]:
    names = [value.name for value in model.graph.input]
    # names of inputs and of files may contain '=': the longest input name that fits is taken
    named = next(
        (n for n in sorted(names, key=len, reverse=True) if item.startswith(f"{n}=")), None
    )
    path = Path(item if named is None else item[len(named) + 1 :])
    if named is None and "=" in item and not path.exists():
        where = option(f"--input {item}", f"inputs={item!r}")
        raise InputError(
            f"{where}: the model has no input {item.split('=', 1)[0]!r} (inputs: "
            f"{', '.join(names)})"
        )
    if path.is_dir():
        parts = sorted(path.glob("input_*.pb"), key=_number)
        if not parts:
            raise InputError(f"{path}: the folder holds no input_*.pb")
        return {
            name: value for part in parts for name, value in _protobuf(part, None, model).items()
        }
    if path.suffix == ".pb":
        return _protobuf(path, named, model)
    if path.suffix in (".npz", ".npy"):
        return _numpy(path, named, model)
    raise InputError(f"{path}: inputs come as .npz, .npy or .pb files, or a folder of input_*.pb")


def _numpy(path: Path, named: str | None, model: onnx.ModelProto) -> dict[str, Value]:
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        return {named or _only_input(path, model): loaded}
    arrays: dict[str, Value] = {**loaded}
    if named is None:
        return arrays
    if len(arrays) != 1:
        raise InputError(
            f"{path} holds {len(arrays)} arrays; pass it without {named}=, its arrays named as the "
            "inputs are"
        )
    return {named: next(iter(arrays.values()))}


def _only_input(path: Path, model: onnx.ModelProto) -> str:
    names = [value.name for value in required_inputs(model.graph)]
    if len(names) != 1:
        known = ", ".join(names)
        raise InputError(
            f"{path}: the model has {counted(len(names), 'input')}; choose one with "
            f"{option('--input ', '')}NAME={path} ({known})"
        )
    return names[0]


def _number(path: Path) -> int:
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits else 0


def _protobuf(path: Path, named: str | None, model: onnx.ModelProto) -> dict[str, Value]:
    try:
        data = regular(path, _LARGEST).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    inputs = {value.name: value for value in model.graph.input}
    named = named or _own_name(path, data, list(inputs)) or _only_input(path, model)
    kind, read = _PROTOBUFS.get(
        inputs[named].type.WhichOneof("value") or "", _PROTOBUFS["tensor_type"]
    )
    try:
        message = kind()
        message.ParseFromString(data)
        if kind is onnx.TensorProto and message.data_location == onnx.TensorProto.EXTERNAL:
            raise InputError(
                f"{path}: its data is in another file, which is not read; save it with raw_data"
            )
        for tensor in _tensors(message):
            check_tensor(tensor, str(path))
        return {named: read(message)}
    except InputError:
        raise
    # protobuf's DecodeError (its module differs), and onnx's errors for a broken tensor
    except Exception as error:
        raise InputError(f"{path} is not a {kind.__name__}: {one_line(error, 200)}") from error


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Yields the tensors of a sequence, an optional or a map, or the tensor itself."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _tensors(part)


# the message in a .pb file, by the type of its input
_PROTOBUFS: dict[str, tuple[Any, Callable[[Any], Value]]] = {
    "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
    "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
    "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
}


def _own_name(path: Path, data: bytes, inputs: list[str]) -> str | None:
    """Returns the input that the tensor's own name identifies, or the position in a name such as
    input_0.pb.
    """
    tensor = onnx.TensorProto()
    # a sequence, or unreadable: it has no name
    with contextlib.suppress(Exception):
        tensor.ParseFromString(data)
    if tensor.name in inputs:
        return tensor.name
    position = _number(path)
    return inputs[position] if path.stem.startswith("input_") and position < len(inputs) else None
