"""A model under proof, in the two forms that a proof needs.

What users hold in their hands becomes a protobuf here, by the package's own conversion; nothing
else is shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import internalize, outside
from onnxgrad.verify.running.model_source import TWO_GB, Model


@dataclass(frozen=True)
class ProofModel:
    """`source`: what onnxruntime loads; `proto`: the file without external weights; `weights`:
    with them.
    """

    source: Model
    proto: onnx.ModelProto
    weights: Callable[[], onnx.ModelProto]


def proof_model(model: Any) -> ProofModel:
    """The protobuf of a model of any kind that `ir.load` takes. Raises InputError for what is no
    ONNX model.
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
        raise InputError(f"{model}: is a device or a pipe, which is not read twice: give its bytes")
    name = "the model" if isinstance(model, bytes) else str(model)
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
            return ProofModel(model, proto, lambda: proto)
        path = Path(model)
        return ProofModel(
            path, onnx.load(path, load_external_data=False), lambda: _with_weights(path)
        )
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from error
    # protobuf's DecodeError (its module differs between versions), ValueError, TypeError
    except Exception as error:
        raise InputError(
            f"{name} is no ONNX model: {' '.join(str(error).split())[:300]}"
        ) from error


def _with_weights(path: Path) -> onnx.ModelProto:
    """The model with its external data, of any size. InputError when that is missing, damaged or
    outside the folder.
    """
    proto = onnx.load(path, load_external_data=False)
    try:
        for tensor in outside(proto):
            tensor.CopyFrom(internalize(tensor, path.parent))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return proto
