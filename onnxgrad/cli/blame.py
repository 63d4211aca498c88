"""Whose fault is an exception that nobody expected? The model's, where onnxruntime does not load it either."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.limits import limited
from onnxgrad.verify.run import RunFailed, open_session

_SECONDS = 30.0


def blamed(args: argparse.Namespace, error: Exception) -> InputError | None:
    """What is wrong with a model of this call; None where onnxruntime loads them all, or cannot be asked."""
    for name in _models(args):
        if not Path(name).is_file():
            continue
        try:
            with limited(_SECONDS):
                open_session(Path(name), optimize=False)
        except RunFailed as refused:
            if not refused.limit:
                return InputError(
                    f"{name}: onnxruntime does not load this model ({refused.reason}), and here it leads to "
                    f"{type(error).__name__}: {str(error)[:200]}"
                )
        except OnnxgradError:
            return None
    return None


def _models(args: argparse.Namespace) -> list[str]:
    found = getattr(args, "model", None) or [getattr(args, "a", ""), getattr(args, "b", "")]
    return [found] if isinstance(found, str) else list(found)
