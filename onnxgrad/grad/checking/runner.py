"""Where the gradient graph runs: in onnxruntime as deployed, or where that lacks an operator which
the user's own kernel computes, in the float64 reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onnx import ModelProto

from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.user_operators import own_operators, unknown_to_onnxruntime
from onnxgrad.verify.running import session as onnxruntime
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session


class Run(Protocol):
    """Runs a model on feeds; raises RunFailed, or Unsupported of the reference."""

    def __call__(
        self, model: ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, Any]: ...


def runner(model: ModelProto, provider: str) -> tuple[Run, str]:
    """What runs `model` and its gradient, and what that is called."""

    def deployed(
        model: ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, Any]:
        return onnxruntime.run(model, feeds, provider=provider, outputs=outputs)

    try:
        if own_operators(model):
            open_session(model, provider=provider)
    except RunFailed as error:
        own = unknown_to_onnxruntime(model, error.reason)
        if not own:
            raise
        return _in_float64, f"in float64, as onnxruntime lacks {own}"
    return deployed, provider


def _in_float64(
    model: ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None
) -> dict[str, Any]:
    return Float64(model).run(feeds, outputs=outputs)
