"""Adapters in onnxruntime's own format, which a session switches from run to run: a file of
`onnxruntime.AdapterFormat`, whose arrays onnxruntime feeds to inputs of a base model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, check_room, load_own, to_kind_of
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.adapters.adapters import LORA_A, LORA_B, adapters_of
from onnxgrad.train.adapters.targets import sites
from onnxgrad.wording import install


@known_keywords
def with_adapter_inputs(model: ModelLike) -> Any:
    """Returns the model with its adapters, in the type you passed in, with their matrices as inputs
    that need not be fed.

    Their defaults add zero, so that the model computes what it did before `lora`. onnxruntime feeds
    the arrays of a file of `save_onnxruntime` to them, one file at each run
    (`RunOptions.add_active_adapter`). Raises InputError as `adapters_of` does.
    """
    found, program = adapters_of(model), load_own(model)
    check_room(program, model)
    tables = {site.name for site in sites(program) if not site.reason and site.is_table}
    block = program.main
    for weight in found.weights:
        for name in (weight + LORA_A, weight + LORA_B):
            v = block.initializers[name]
            # as `lora` makes them: the factor that is zeros there
            if name.endswith(LORA_A) == (weight in tables):
                zeros = np.zeros_like(found.values[name])
                v.set_constant(numpy_helper.from_array(zeros, name))
            block.let_override(v)
    return to_kind_of(program, model)


@known_keywords
def save_onnxruntime(
    model: ModelLike, path: str | PathLike[str], values: Mapping[str, Array] | None = None
) -> None:
    """Writes the adapters of a model, with these values if given (`Trainer.parameters`), as a file
    of `onnxruntime.AdapterFormat` for the model of `with_adapter_inputs`.

    The file holds A and B by the names of these inputs, not alpha / rank, which is part of the
    model. Raises InputError as `adapters_of` does, if onnxruntime is missing, and if the file
    cannot be written.
    """
    found = adapters_of(model, values)
    try:
        import onnxruntime as ort
    except ImportError:
        raise InputError(f"onnxruntime is not installed: {install('cpu')}") from None
    format_ = ort.AdapterFormat()
    format_.set_parameters(
        {
            name: ort.OrtValue.ortvalue_from_numpy(_plain(name, v))
            for name, v in found.values.items()
        }
    )
    # onnxruntime writes no stream, and leaves half a file if the disk is full
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "adapter"
        format_.export_adapter(str(made))
        try:
            write_whole(Path(path), made.read_bytes())
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _plain(name: str, value: Array) -> Array:
    """Returns an array that onnxruntime takes from numpy. Raises InputError."""
    if value.dtype.kind != "f":
        raise InputError(f"'{name}' is {value.dtype}, which onnxruntime does not take from numpy")
    return np.ascontiguousarray(value)
