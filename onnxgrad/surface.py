"""Imports every public name, and thereby registers every gradient rule and pass. `onnxgrad` imports
this module at the first use of a public name.
"""

from onnxgrad import train
from onnxgrad.errors import (
    CannotRun,
    InputError,
    InternalError,
    NotProved,
    OnnxgradError,
    RuleFailed,
    RuleWarning,
)
from onnxgrad.functions import (
    bench,
    check_gradient,
    check_product,
    ci,
    convert_opset,
    diff,
    float16,
    gradient,
    hessian_vector_product,
    inspect,
    jacobian,
    jvp,
    mark_checkpoints,
    optimize,
    reduce,
    run,
    verify,
)
from onnxgrad.grad import (
    GradientReport,
    body,
    vjp,
    vjp_all,
    zero,
)
from onnxgrad.grad.checkpointing.recomputation import Checkpoint
from onnxgrad.grad.gradient_pass import GradientPass
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load, to_graphsurgeon
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import save, to_proto
from onnxgrad.ir.var import Var
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.growth import Grown
from onnxgrad.jobs.inspection.contents import Summary, Weights, weights
from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.jobs.outcome import OptimizedModel
from onnxgrad.jobs.reduce import ReducedModel
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.jobs.surgery.fixed_dims import fix_dims
from onnxgrad.jobs.training.fit import Fitted
from onnxgrad.limits import LimitReached
from onnxgrad.passes.base import FamilyPass, Pass, RulePass, register
from onnxgrad.rewrite.combine import combine
from onnxgrad.rewrite.context import PatternContext, rewrite_bindings, rewrite_call
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import rewrite
from onnxgrad.surgery import (
    edit,
    extract,
    hessian,
    join,
    lift,
    linearize,
    open_batch,
    preprocess,
    rebase,
    set_metadata,
    vmap,
)
from onnxgrad.testing import temporary_rules
from onnxgrad.training import Trainer, fit, training_step
from onnxgrad.verify import Report, RunFailed, Unsupported
from onnxgrad.verify.bench import BenchReport
from onnxgrad.verify.reference.user_operators import kernel
from onnxgrad.verify.running.libraries import custom_ops
from onnxgrad.version import __version__

__all__ = [
    "BenchReport",
    "BindingBlock",
    "CannotRun",
    "Checkpoint",
    "CiReport",
    "Diff",
    "Each",
    "FamilyPass",
    "Fitted",
    "GradientPass",
    "GradientReport",
    "Grown",
    "InputError",
    "InternalError",
    "LimitReached",
    "NotProved",
    "OnnxgradError",
    "OptimizedModel",
    "P",
    "Pass",
    "PatternContext",
    "ReducedModel",
    "Report",
    "RewriteRefuted",
    "RuleFailed",
    "RulePass",
    "RuleWarning",
    "RunFailed",
    "Summary",
    "Trainer",
    "Unsupported",
    "Var",
    "Weights",
    "__version__",
    "bench",
    "body",
    "capture",
    "check_gradient",
    "check_product",
    "ci",
    "combine",
    "convert_opset",
    "custom_ops",
    "decline",
    "diff",
    "edit",
    "emitting",
    "extract",
    "fit",
    "fix_dims",
    "float16",
    "gradient",
    "hessian",
    "hessian_vector_product",
    "inspect",
    "jacobian",
    "join",
    "jvp",
    "kernel",
    "lift",
    "linearize",
    "load",
    "mark_checkpoints",
    "op",
    "open_batch",
    "optimize",
    "preprocess",
    "rebase",
    "reduce",
    "register",
    "rewrite",
    "rewrite_bindings",
    "rewrite_call",
    "run",
    "save",
    "set_metadata",
    "temporary_rules",
    "to_graphsurgeon",
    "to_proto",
    "train",
    "training_step",
    "verify",
    "vjp",
    "vjp_all",
    "vmap",
    "weights",
    "zero",
]
