"""Libraries of custom operators that onnxruntime loads in the child processes."""

from __future__ import annotations

import os
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.wording import option

LIBRARIES: dict[str, None] = {}


def custom_ops(path: str | os.PathLike[str]) -> None:
    """Have onnxruntime load a library of custom operators (`SessionOptions.
    register_custom_ops_library`) wherever it runs a model: proofs, `check_gradient`, benchmarks.

    It is native code, which runs in child processes with your rights; `onnxgrad.temporary_rules`
    forgets it. Raises InputError for a file that is not there; one that onnxruntime cannot load is
    refused when a model runs.
    """
    found = Path(path).absolute()
    if not found.is_file():
        raise InputError(f"{option('--custom-ops', 'custom_ops:')} {path}: no such file")
    LIBRARIES[str(found)] = None
