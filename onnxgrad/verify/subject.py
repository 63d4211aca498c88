"""A model under proof, in the two forms that a proof needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxgrad.errors import InputError
from onnxgrad.verify.run import TWO_GB, Model


@dataclass(frozen=True)
class Subject:
    """`source`: what onnxruntime loads; `proto`: the file without external weights; `weights`: with them."""

    source: Model
    proto: onnx.ModelProto
    weights: Callable[[], onnx.ModelProto]


def subject(model: Model) -> Subject:
    """Parse a model given as ModelProto, bytes or path. Raises InputError for what is no ONNX model."""
    if isinstance(model, onnx.ModelProto):
        small = model.ByteSize() <= TWO_GB
        return Subject(model.SerializeToString() if small else model, model, lambda: model)
    name = "the model" if isinstance(model, bytes) else str(model)
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
            return Subject(model, proto, lambda: proto)
        path = Path(model)
        return Subject(path, onnx.load(path, load_external_data=False), lambda: _with_weights(path))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from error
    except Exception as error:  # protobuf's DecodeError (its module differs between versions), ValueError, TypeError
        raise InputError(f"{name} is no ONNX model: {' '.join(str(error).split())[:300]}") from error


def _with_weights(path: Path) -> onnx.ModelProto:
    """The model with its external data. Raises InputError when that is missing, damaged or outside the folder."""
    try:
        return onnx.load(path)
    except Exception as error:  # onnx raises its checker's ValidationError, OSError, ValueError, RuntimeError
        raise InputError(f"{path}: its external data cannot be read: {' '.join(str(error).split())[:200]}") from error
