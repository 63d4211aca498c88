"""The user's own inputs: .npz, .npy and .pb files."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify.dims import required_inputs
from onnxgrad.verify.run import Value


def load_inputs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], model: onnx.ModelProto
) -> dict[str, Value]:
    """Input name -> value from files: `NAME=FILE`, an .npz with the inputs' names, an .npy for a model with one input,
    .pb files as ONNX's test data has them (`input_0.pb`, or the tensor's own name), or a folder of those.

    Raises InputError naming the file that cannot be read or assigned.
    """
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: dict[str, Value] = {}
    for item in listed:
        found.update(_load(os.fspath(item), model))
    return found


def _load(item: str, model: onnx.ModelProto) -> dict[str, Value]:
    names = [value.name for value in model.graph.input]
    # an input's name may hold '=' itself, and so may a file's: the longest input name that fits wins
    named = next((n for n in sorted(names, key=len, reverse=True) if item.startswith(f"{n}=")), None)
    path = Path(item if named is None else item[len(named) + 1 :])
    if named is None and "=" in item and not path.exists():
        raise InputError(
            f"--input {item}: the model has no input {item.split('=', 1)[0]!r} (inputs: {', '.join(names)})"
        )
    if path.is_dir():
        parts = sorted(path.glob("input_*.pb"), key=_number)
        if not parts:
            raise InputError(f"{path}: the folder holds no input_*.pb")
        return {name: value for part in parts for name, value in _protobuf(part, None, model).items()}
    if path.suffix == ".pb":
        return _protobuf(path, named, model)
    if path.suffix in (".npz", ".npy"):
        return _numpy(path, named, model)
    raise InputError(f"{path}: inputs come as .npz, .npy or .pb files, or a folder of input_*.pb")


def _numpy(path: Path, named: str | None, model: onnx.ModelProto) -> dict[str, Value]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if isinstance(loaded, np.ndarray):
        return {named or _only_input(path, model): loaded}
    with loaded:
        arrays: dict[str, Value] = {name: loaded[name] for name in loaded.files}
    if named is None:
        return arrays
    if len(arrays) != 1:
        raise InputError(
            f"{path} holds {len(arrays)} arrays; pass it without {named}=, its arrays named as the inputs are"
        )
    return {named: next(iter(arrays.values()))}


def _only_input(path: Path, model: onnx.ModelProto) -> str:
    names = [value.name for value in required_inputs(model.graph)]
    if len(names) != 1:
        known = ", ".join(names)
        raise InputError(f"{path}: the model has {len(names)} inputs; say which with --input NAME={path} ({known})")
    return names[0]


def _number(path: Path) -> int:
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits else 0


def _protobuf(path: Path, named: str | None, model: onnx.ModelProto) -> dict[str, Value]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    inputs = {value.name: value for value in model.graph.input}
    if named is None:
        own = _parsed(onnx.TensorProto, data, path).name
        position = _number(path)
        named = (
            own
            if own in inputs
            else list(inputs)[position]
            if path.stem.startswith("input_") and position < len(inputs)
            else None
        )
        named = named or _only_input(path, model)
    which = inputs[named].type.WhichOneof("value")
    if which == "sequence_type":
        return {named: numpy_helper.to_list(_parsed(onnx.SequenceProto, data, path))}
    if which == "optional_type":
        return {named: numpy_helper.to_optional(_parsed(onnx.OptionalProto, data, path))}
    return {named: numpy_helper.to_array(_parsed(onnx.TensorProto, data, path))}


def _parsed(kind: type, data: bytes, path: Path):  # type: ignore[no-untyped-def]  # one of three unrelated protobuf classes
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, whose module differs between implementations
        if kind is onnx.TensorProto and type(error).__name__ == "DecodeError":
            return message  # the name of something that is no tensor
        raise InputError(f"{path} is no {kind.__name__}") from error
    return message
