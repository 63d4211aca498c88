"""What is said to Olive about our pass, without Olive."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import onnxgrad
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import config_of
from tests.helpers import ROOT

FOLDER = ROOT / "onnxgrad" / "plugins" / "olive"
OURS = ROOT / "onnxgrad" / "olive" / "package_config.json"  # users name this file
# what Olive itself decides, what is no data in JSON, `report` and `lift`, since a pass gives a model, interpreters, and a second file
LEFT_OUT = {"model", "provider", "report", "lift", "explain", "print_after", "against", "rebasable"}


def test_it_names_the_class() -> None:
    passes = json.loads(OURS.read_text("utf-8"))["passes"]
    for name, found in passes.items():
        module, _, cls = found["module_path"].rpartition(".")
        spec = find_spec(module)
        assert spec is not None and Path(str(spec.origin)).parent == FOLDER
        tree = ast.parse(Path(str(spec.origin)).read_text("utf-8"))
        assert cls == name in {n.name for n in tree.body if isinstance(n, ast.ClassDef)}


def test_its_options_are_those_of_optimize() -> None:
    options = config_of(OptimizeOptions)  # which olive/optimize.py reads
    assert "config_of(OptimizeOptions)" in (FOLDER / "optimize.py").read_text("utf-8")
    named = [name.rstrip("_") for name in inspect.signature(onnxgrad.optimize).parameters]
    assert sorted(options) == sorted(set(named) - LEFT_OUT)


def test_its_command_has_its_name(tmp_path: Path) -> None:
    """A package of Olive's name stands for Olive: its list, and one pass of its own."""
    (tmp_path / "olive").mkdir()
    (tmp_path / "olive" / "__init__.py").touch()
    (tmp_path / "olive" / "package_config.py").write_text(
        "class OlivePackageConfig:\n"
        "    @staticmethod\n"
        "    def get_default_config_path():\n"
        "        return __file__.replace('.py', '.json')\n"
    )
    theirs = {"passes": {"Theirs": {"module_path": "olive.Theirs"}}, "extra": 1}
    (tmp_path / "olive" / "package_config.json").write_text(json.dumps(theirs))
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    words = [sys.executable, "-m", "onnxgrad.olive.package_config"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
    found = json.loads(done.stdout)
    assert list(found["passes"]) == ["Theirs", "OnnxgradOptimize"] and found["extra"] == 1
    assert (
        found["passes"]["OnnxgradOptimize"]["module_path"]
        == "onnxgrad.olive.optimize.OnnxgradOptimize"
    )
