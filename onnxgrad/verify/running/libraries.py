"""Libraries of the user's custom operators, which onnxruntime loads for every model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.options import known_keywords
from onnxgrad.wording import one_line, option

LIBRARIES: dict[str, None] = {}


@known_keywords
def custom_ops(path: str | os.PathLike[str]) -> None:
    """Makes onnxruntime load a library of custom operators
    (SessionOptions.register_custom_ops_library) for every model that it runs: in proofs,
    `check_gradient`, benchmarks and training.

    The library is native code and runs with your rights: in child processes, and in this process
    for a `Trainer`. `onnxgrad.temporary_rules` forgets it afterwards. Raises InputError if the file
    does not exist. A library that onnxruntime cannot load raises an error when a model runs.
    """
    found = Path(path).absolute()
    if not found.is_file():
        raise InputError(f"{option('--custom-ops', 'custom_ops:')} {path}: no such file")
    LIBRARIES[str(found)] = None


def cannot_load(library: str, why: str) -> InputError:
    """Returns the error for a library that onnxruntime refuses."""
    return InputError(f"onnxruntime cannot load the custom operators of {library}: {why}")


def register(options: Any) -> None:
    """Registers the libraries in onnxruntime's session `options`, in this process. Raises
    InputError if onnxruntime cannot load one.
    """
    for library in LIBRARIES:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # onnxruntime's own class
            raise cannot_load(library, one_line(error)) from error
