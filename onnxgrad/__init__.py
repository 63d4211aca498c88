"""Better and differentiated ONNX files, proved by running them in onnxruntime."""

from onnxgrad import startup as _startup  # noqa: F401  # before all others
from onnxgrad.errors import InputError, InternalError, NotProved, OnnxgradError
from onnxgrad.grad import (
    body,
    check_gradient,
    function_gradient,
    gradient,
    mark_checkpoints,
    vjp,
    vjp_all,
    zero,
)
from onnxgrad.grad.checkpoint import Checkpoint
from onnxgrad.grad.forward import jvp
from onnxgrad.grad.gradient_pass import GradientPass
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.interop.given_back import to_graphsurgeon
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import save, to_proto
from onnxgrad.passes.base import FamilyPass, Pass, RulePass, register
from onnxgrad.pipeline.optimize import RewriteRefuted, optimize
from onnxgrad.report.diff import Diff, diff
from onnxgrad.report.summary import Summary, inspect
from onnxgrad.rewrite.combine import combine
from onnxgrad.rewrite.context import PatternContext, rewrite_bindings, rewrite_call
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import rewrite
from onnxgrad.testing import temporary_rules
from onnxgrad.train import Trainer, training_step
from onnxgrad.train.preview_training import LowerTraining
from onnxgrad.verify import RunFailed, Unsupported, verify
from onnxgrad.version import __version__

__all__ = [
    "BindingBlock",
    "Checkpoint",
    "Diff",
    "Each",
    "FamilyPass",
    "GradientPass",
    "InputError",
    "InternalError",
    "LowerTraining",
    "NotProved",
    "OnnxgradError",
    "P",
    "Pass",
    "PatternContext",
    "RewriteRefuted",
    "RulePass",
    "RunFailed",
    "Summary",
    "Trainer",
    "Unsupported",
    "__version__",
    "body",
    "capture",
    "check_gradient",
    "combine",
    "decline",
    "diff",
    "emitting",
    "function_gradient",
    "gradient",
    "inspect",
    "jvp",
    "load",
    "mark_checkpoints",
    "op",
    "optimize",
    "register",
    "rewrite",
    "rewrite_bindings",
    "rewrite_call",
    "save",
    "temporary_rules",
    "to_graphsurgeon",
    "to_proto",
    "train",
    "training_step",
    "verify",
    "vjp",
    "vjp_all",
    "zero",
]
