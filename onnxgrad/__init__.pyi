"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnxgrad.surface import *
from onnxgrad.plugins.place.driver import PlacedModel as PlacedModel
from onnxgrad.plugins.functions import place as place
