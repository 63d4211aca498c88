"""What is said to Olive about our pass, without Olive."""

from __future__ import annotations

import ast
import inspect
import json

import onnxgrad
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import config_of
from tests.helpers import ROOT

FOLDER = ROOT / "onnxgrad" / "olive"
# what Olive itself decides, what is no data in JSON, `report` and `lift`, since a pass gives a model, and interpreters
LEFT_OUT = {"model", "provider", "report", "lift", "explain", "print_after", "against"}


def test_it_names_the_class() -> None:
    passes = json.loads((FOLDER / "package_config.json").read_text("utf-8"))["passes"]
    for name, found in passes.items():
        module, _, cls = found["module_path"].rpartition(".")
        tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8"))
        assert cls == name in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}


def test_its_options_are_those_of_optimize() -> None:
    options = config_of(OptimizeOptions)  # which olive/optimize.py reads
    assert "config_of(OptimizeOptions)" in (FOLDER / "optimize.py").read_text("utf-8")
    named = [name.rstrip("_") for name in inspect.signature(onnxgrad.optimize).parameters]
    assert sorted(options) == sorted(set(named) - LEFT_OUT)
