"""What the options of the commands that run or prove something say."""

from __future__ import annotations

import onnx

from onnxgrad.jobs.groups import Bounds
from onnxgrad.options import providers_of
from onnxgrad.verify import open_session
from onnxgrad.verify.bounds import Bounds as Limits
from onnxgrad.verify.running.child_process import pooled


def checked_bounds(options: Bounds) -> Limits:
    """Return the bounds that the flags set. Raises InputError."""
    return Limits.of(options.atol, options.rtol, options.metric)


def require_runtime(provider: str) -> None:
    """Raise InputError now, not after long work, when onnxruntime or one of the providers is
    missing or does not start.
    """
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    )
    pooled("float64")  # starts while we wait for the other
    for name in providers_of(provider):
        open_session(onnx.parser.parse_model(text), provider=name)
