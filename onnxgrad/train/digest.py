"""Which model something belongs to: a digest that tells two models apart by their weights, too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto

from onnxgrad.ir import weights
from onnxgrad.ir.load import ModelLike, proto_of
from onnxgrad.ir.tensor_data import elements
from onnxgrad.train.export import bare


def digest(model: ModelLike) -> str:
    """sha256 of a model and of all its weights, wherever these lie. Raises InputError where an
    external one cannot be read.
    """
    proto, folder = proto_of(model)
    found = hashlib.sha256(bare(proto))
    for tensor in weights.tensors(proto):
        for piece in _elements(tensor, folder):
            found.update(hashlib.sha256(piece).digest())
    return found.hexdigest()


def _elements(tensor: TensorProto, folder: Path | None) -> Sequence[bytes]:
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = weights.internalize(tensor, folder)
    if tensor.data_type == TensorProto.STRING:
        return list(tensor.string_data)
    return [tensor.raw_data or elements(tensor).tobytes()]
