"""Failures of rules. A failing rule of this package is declined with a warning and costs one
rewrite; a failing rule of the caller ends the run.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, TypeVar

from onnxgrad.errors import InternalError, OnnxgradError, RuleFailed, RuleWarning
from onnxgrad.ir.preflight.invalid_models import fault_of
from onnxgrad.ir.program import Program
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import one_line

_T = TypeVar("_T")

# set in tests: a rule of this package that fails is an InternalError
raising = False

_OURS = __name__.partition(".")[0]
_LONGEST = 300  # characters of a reason
_WARNED = 5  # warnings for each rule; the report has all
# packages that call a caller's rule
_CALLERS = frozenset({_OURS, "onnxscript", "onnx_ir"})


@lru_cache(maxsize=1024)
def is_ours(author: Callable[..., Any]) -> bool:
    """Whether a rule's function is one of this package."""
    return (getattr(author, "__module__", None) or "").partition(".")[0] == _OURS


def slip(
    trace: Trace,
    rule: str,
    where: object,
    program: Program,
    error: Exception,
    author: Callable[..., Any] | None = None,
) -> None:
    """Records that a rule of this package failed with `error`, and warn; the block must be as it
    was before.

    author: the rule's function. Raises RuleFailed if a caller wrote it. Raises `error` itself if it
    is a MemoryError or an OnnxgradError other than InternalError. Raises InternalError if the model
    is not valid or `raising` is set.
    """
    if isinstance(error, OnnxgradError) and not isinstance(error, InternalError):
        raise error
    if isinstance(error, MemoryError):
        raise error
    reason = one_line(error, _LONGEST)
    if not isinstance(error, InternalError):
        reason = f"{type(error).__name__}: {reason}"
    if author is not None and not is_ours(author):
        raise RuleFailed(rule, str(where), reason, *_place(author, error)) from error
    if raising or fault_of(program.proto) is not None:
        if isinstance(error, InternalError):
            raise error
        raise InternalError(f"rule {rule} failed at {where}: {reason}") from error
    if trace.slipped(rule, where, reason) and sum(s.rule == rule for s in trace.slips) <= _WARNED:
        warnings.warn(
            f"rewrite rule {rule} failed at {where}, which stays as it was: {reason}; "
            "please report this",
            RuleWarning,
            stacklevel=2,
        )


def guarded(found: Iterator[_T], on_error: Callable[[Exception], None]) -> Iterator[_T]:
    """Yields from `found`; if that fails, calls `on_error` and ends."""
    while True:
        try:
            one = next(found)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # the tests of a pattern may be user code
            on_error(error)
            return
        yield one


def _place(author: Callable[..., Any], error: Exception) -> tuple[str, int]:
    """Returns file and line of the caller's code that failed, or of its function if that only
    returned an invalid answer.
    """
    package = (getattr(author, "__module__", None) or "").partition(".")[0]
    code: CodeType | None = None if package in _CALLERS else getattr(author, "__code__", None)
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _CALLERS
    ]
    if code is not None:
        frames = [f for f in frames if f[0] == code.co_filename] or [
            (code.co_filename, code.co_firstlineno)
        ]
    return frames[-1] if frames else ("", 0)
