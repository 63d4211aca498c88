"""Proof by running: both graphs in onnxruntime and in a float64 reference, on meaningful inputs.

Nothing here imports a pass, a rewrite rule or a gradient: the proof shares no code with what it
proves.
"""

from onnxgrad.errors import Unsupported
from onnxgrad.verify.blame import bisect
from onnxgrad.verify.compare import Difference, compare
from onnxgrad.verify.feeds.dims import dim_plans
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.input_files import load_inputs
from onnxgrad.verify.proof import verify
from onnxgrad.verify.report import Case, Leg, Report
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.installed import doctor_report, runtime_limits
from onnxgrad.verify.running.session import Session, open_session, run, run_many

__all__ = [
    "Case", "Difference", "Leg", "Report", "RunFailed", "Session", "Unsupported", "bisect",
    "compare", "dim_plans", "doctor_report", "feeds_for", "load_inputs", "open_session", "run",
    "run_many", "runtime_limits", "verify",
]  # fmt: skip
