"""Better and differentiated ONNX files, proved by running them in onnxruntime."""

from onnxgrad.errors import InputError, InternalError, NotProved, OnnxgradError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import emitting, op
from onnxgrad.ir.save import save
from onnxgrad.passes.optimize import optimize
from onnxgrad.rewrite.combine import combine
from onnxgrad.rewrite.engine import rewrite
from onnxgrad.verify import verify
from onnxgrad.version import __version__

__all__ = [
    "BindingBlock",
    "InputError",
    "InternalError",
    "NotProved",
    "OnnxgradError",
    "__version__",
    "combine",
    "emitting",
    "load",
    "op",
    "optimize",
    "rewrite",
    "save",
    "verify",
]
