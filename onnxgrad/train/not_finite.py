"""Where a computation left the finite numbers: the first value that has a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxgrad.ir.load import load_own
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_bytes
from onnxgrad.ir.types import FLOAT_DTYPES, Array
from onnxgrad.verify.running.run import run


def first_not_finite(program: Program, feeds: Mapping[str, Array]) -> str | None:
    """The name of the first value in the graph's order that is not finite on these feeds; None: all
    are.

    Inputs come first, then results, whose own operands were finite. Infinite constants of the model
    are none of its doing.
    """
    for name, array in feeds.items():
        if not _finite(array):
            return name
    seen = load_own(program)
    block = seen.main
    block.schedule()
    results = [
        v for b in block.bindings for v in b.outputs if v is not None and v.dtype in FLOAT_DTYPES
    ]
    for v in results:
        if not v.returned and not v.is_constant:
            block.add_output(v)
    values = run(to_bytes(seen), feeds)
    return next((v.name for v in results if v.name in values and not _finite(values[v.name])), None)


def _finite(value: object) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype(np.float64)).all())
