"""Libraries of custom operators that onnxruntime loads in the child processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.options import known_keywords
from onnxgrad.wording import option

LIBRARIES: dict[str, None] = {}


@known_keywords
def custom_ops(path: str | os.PathLike[str]) -> None:
    """Have onnxruntime load a library of custom operators (`SessionOptions.
    register_custom_ops_library`) wherever it runs a model: proofs, `check_gradient`, benchmarks,
    training.

    It is native code, which runs with your rights: in child processes, and in this one for a
    `Trainer`. `onnxgrad.temporary_rules` forgets it. Raises InputError for a file that is not
    there; one that onnxruntime cannot load is refused when a model runs.
    """
    found = Path(path).absolute()
    if not found.is_file():
        raise InputError(f"{option('--custom-ops', 'custom_ops:')} {path}: no such file")
    LIBRARIES[str(found)] = None


def cannot_load(library: str, why: str) -> InputError:
    """What to raise where onnxruntime refuses a library."""
    return InputError(f"onnxruntime cannot load the custom operators of {library}: {why}")


def register(options: Any) -> None:
    """Have the sessions of onnxruntime's `options`, in this process, load the libraries. Raises
    InputError for one that onnxruntime cannot load.
    """
    for library in LIBRARIES:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # onnxruntime's own class
            raise cannot_load(library, " ".join(str(error).split())) from error
