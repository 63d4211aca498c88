"""The errors a user can meet. Each is one line: what was wrong, where, and what to do."""

from __future__ import annotations


class OnnxgradError(Exception):
    """Base of every error this package raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 3


class InputError(OnnxgradError):
    """The model, a file or the usage is bad (exit code 2)."""

    exit_code = 2


class NotProved(OnnxgradError):
    """The answer is no: results differ, a gradient is wrong, a gate is missed (exit code 1)."""

    exit_code = 1


class InternalError(OnnxgradError):
    """A broken promise of our own code, such as a rule that does not terminate (exit code 3)."""
