"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnxgrad.surface import *
from onnxgrad.plugins.onnx_training.preview_operators import LowerTraining as LowerTraining
from onnxgrad.plugins.place.driver import PlacedModel as PlacedModel
from onnxgrad.plugins.functions import casadi_derivative as casadi_derivative
from onnxgrad.plugins.functions import function_gradient as function_gradient
from onnxgrad.plugins.functions import place as place
