"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnxgrad.surface import *
from onnxgrad.plugins.onnx_training.preview_operators import LowerTraining as LowerTraining
from onnxgrad.plugins.place.driver import PlacedModel as PlacedModel
from onnxgrad.plugins.functions import casadi_derivative as casadi_derivative
from onnxgrad.plugins.functions import function_gradient as function_gradient
from onnxgrad.plugins.outline_as import outline_as as outline_as
from onnxgrad.plugins.functions import place as place
from onnxgrad.plugins.onnxscript.to_rules import to_onnxscript_rules as to_onnxscript_rules
