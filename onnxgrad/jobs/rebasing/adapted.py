"""Weights of a base model to which adapters are added, as new weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.safetensors_file import opened
from onnxgrad.vocabulary import ADAPTERS
from onnxgrad.wording import option

_PEFT, _ONNXRUNTIME = "adapter_config.json", ".onnx_adapter"


def alone(given: Any) -> Any:
    """Returns the only one of several weights, else the base with its adapters merged into it.
    Raises InputError for adapters without their base, and for more than one of each.
    """
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    adapters = [g for g in several if _is_adapter(g)]
    bases = [g for g in several if not _is_adapter(g)]
    if len(several) == 1 and bases:
        return bases[0]
    both = option("--weights BASE --weights ADAPTER", "weights=[BASE, ADAPTER]")
    if adapters and not bases:
        raise InputError(
            f"{_called(adapters[0])}: holds adapters without the weights to which they are added, "
            f"and the record has no weights: {both}, where BASE is the export beside which they "
            "were trained"
        )
    if len(adapters) != 1 or len(bases) != 1:
        raise InputError(
            f"the new weights are one export or file, or an export and one adapter: {both}"
        )
    return _merged(bases[0], adapters[0])


def _called(given: Any) -> str:
    return os.fspath(given) if isinstance(given, (str, os.PathLike)) else "the weights"


def _is_adapter(given: Any) -> bool:
    """Whether weights are matrices of adapters alone: in a file, a folder of PEFT, or in memory."""
    if not isinstance(given, (str, os.PathLike)):
        return type(given).__name__ == "Adapters"
    path = Path(given)
    if path.suffix == ".safetensors" and path.is_file():
        with opened(path) as arrays:
            return bool(arrays) and all(".lora_" in name for name in arrays)
    return (path / _PEFT).is_file() or path.suffix == _ONNXRUNTIME


def _merged(base: Any, adapter: Any) -> Program:
    from onnxgrad.train.adapters import merge, read_adapters, read_peft  # imports all of training

    if isinstance(base, Mapping) or Path(_called(base)).suffix in (".safetensors", ".npz", ".npy"):
        raise InputError(
            f"{_called(base)}: adapters are merged into the model beside which they were trained, "
            "not into a file of weights: name its export (.onnx)"
        )
    program = load(base)
    if any(entry.key == ADAPTERS for entry in program.proto.metadata_props):
        raise InputError(
            f"{_called(base)}: has adapters beside its weights already: name it alone, or the "
            "export without them"
        )
    found = adapter
    if isinstance(adapter, (str, os.PathLike)):
        path = Path(adapter)
        if path.suffix == _ONNXRUNTIME:
            raise InputError(
                f"{path}: is in onnxruntime's form, which lacks rank and scale: name the file of "
                f"{option('`lora --save`', '`save_adapters`')}, or a folder of PEFT"
            )
        found = read_peft(path, program) if path.is_dir() else read_adapters(path)
    made: Program = merge(program, found)
    return made
