"""Proof by running: both models run in onnxruntime and in a float64 reference, on meaningful
inputs.

The package imports no pass, rewrite rule or gradient, so the proof shares no code with the code
that it checks.

Public names are imported on first use (PEP 562), because the child processes that run models must
start before anything else is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxgrad.errors import Unsupported
    from onnxgrad.verify.blame import bisect
    from onnxgrad.verify.compare import Difference
    from onnxgrad.verify.feeds.dims import dim_plans
    from onnxgrad.verify.feeds.generate import feeds_for
    from onnxgrad.verify.feeds.input_files import load_inputs
    from onnxgrad.verify.proof import verify
    from onnxgrad.verify.report import Case, Check, Report
    from onnxgrad.verify.running.child_process import RunFailed
    from onnxgrad.verify.running.installed import doctor_report, runtime_limits
    from onnxgrad.verify.running.session import Session, open_session, run, run_many

__all__ = [
    "Case",
    "Check",
    "Difference",
    "Report",
    "RunFailed",
    "Session",
    "Unsupported",
    "bisect",
    "dim_plans",
    "doctor_report",
    "feeds_for",
    "load_inputs",
    "open_session",
    "run",
    "run_many",
    "runtime_limits",
    "verify",
]  # fmt: skip

_HOMES = {
    "errors": "Unsupported",
    "verify.blame": "bisect",
    "verify.compare": "Difference",
    "verify.feeds.dims": "dim_plans",
    "verify.feeds.generate": "feeds_for",
    "verify.feeds.input_files": "load_inputs",
    "verify.proof": "verify",
    "verify.report": "Case Check Report",
    "verify.running.child_process": "RunFailed",
    "verify.running.installed": "doctor_report runtime_limits",
    "verify.running.session": "Session open_session run run_many",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Imports a public name."""
    if name not in _HOME:
        raise AttributeError(f"module 'onnxgrad.verify' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"onnxgrad.{_HOME[name]}"), name)
    return found
