"""Workflows of Olive with our pass, in Python and on its command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxgrad
from onnxgrad import P, capture, op, rewrite
from tests.helpers import ROOT

pytest.importorskip("olive", reason="Olive is not installed: pip install '.[olive]'")

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("default"),  # those of Olive and of what it imports
]

OURS = ROOT / "onnxgrad" / "olive" / "package_config.json"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is sent anywhere, and caches stay with the test."""
    monkeypatch.setenv("OLIVE_DISABLE_TELEMETRY", "1")
    monkeypatch.chdir(tmp_path)


def workflow(model: Path, *passes: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_model": {"type": "ONNXModel", "model_path": str(model)},
        "passes": {f"p{i}": one for i, one in enumerate(passes)},
        "output_dir": "out",
        "cache_dir": "cache",
        "evaluate_input_model": False,
    }


def ran(model: Path, *passes: dict[str, Any]) -> Path:
    """The result of a workflow, as Olive names it."""
    from olive.workflows import run

    done = run(workflow(model, *passes), package_config=json.loads(OURS.read_text("utf-8")))
    found = Path(done.get_best_candidate().model_path)
    return found / "model.onnx" if found.is_dir() else found  # with its weights beside it


def of_olive(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("olive", path=str(Path(sys.executable).parent))
    assert program is not None
    return subprocess.run(
        [program, *words], capture_output=True, text=True, env=dict(os.environ), timeout=500
    )


def test_its_command_line_gives_the_bytes_of_ours(models_dir: Path, tmp_path: Path) -> None:
    model = models_dir / "resnet18.onnx"
    Path("workflow.json").write_text(json.dumps(workflow(model, {"type": "OnnxgradOptimize"})))
    done = of_olive("run", "--config", "workflow.json", "--package-config", str(OURS))
    assert done.returncode == 0, done.stderr
    ours = [sys.executable, "-m", "onnxgrad", "optimize", str(model), "-o", "ours.onnx"]
    subprocess.run(ours, check=True, cwd=tmp_path, capture_output=True)
    assert Path("out/model.onnx").read_bytes() == Path("ours.onnx").read_bytes()


def test_beside_passes_of_olive(models_dir: Path) -> None:
    """Its own list and ours in one file."""
    listed = [sys.executable, "-m", "onnxgrad.olive.package_config"]
    text = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    Path("passes.json").write_text(text)
    model = models_dir / "lstmcell.onnx"
    theirs, ours = {"type": "OnnxPeepholeOptimizer"}, {"type": "OnnxgradOptimize", "seeds": [3]}
    from olive.workflows import run

    done = run(workflow(model, theirs, ours), package_config="passes.json")
    found = done.get_best_candidate()
    assert found.from_pass().lower() == "onnxgradoptimize"
    assert onnxgrad.verify(model, found.model_path).ok


def test_options(models_dir: Path) -> None:
    options = {
        "passes": ["remove-noops", "fold-constant"], "merge": "never", "target_opset": 21,
        "verify": "each", "dims": {"batch": 2}, "checks": ["float64"], "timeout": 500,
    }  # fmt: skip
    found = ran(models_dir / "mobilenet_v2.raw.onnx", {"type": "OnnxgradOptimize", **options})
    assert onnx.load(found).opset_import[0].version == 21
    alone = onnxgrad.optimize(
        models_dir / "mobilenet_v2.raw.onnx",
        passes=["remove-noops", "fold-constant"], merge="never", target_opset=21,
    )  # fmt: skip
    assert onnx.load(found) == alone


def test_what_is_refuted_fails_the_workflow(models_dir: Path) -> None:
    x = capture("x")

    @rewrite(P.Relu(x))
    def relu_is_abs(x):
        """Relu(x) = Abs(x), which is wrong."""
        return op.Abs(x)

    @onnxgrad.register
    class Wrong(onnxgrad.RulePass):
        """Relu(x) = Abs(x)."""

        name = "wrong"
        laws = (relu_is_abs,)

    with pytest.raises(ValueError, match=r"resnet18\.onnx: .*number 1, relu_is_abs .*wrong"):
        ran(models_dir / "resnet18.onnx", {"type": "OnnxgradOptimize", "passes": "wrong"})
    assert not list(Path().glob("out/**/*.onnx")) and not list(Path().glob("cache/**/*.onnx"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": "remove-noop"}, "did you mean 'remove-noops'"),
        ({"pases": "remove-noops"}, "no option 'pases': did you mean 'passes'"),
        ({"verify": "maybe"}, "verify must be true or false or one of each"),
        ({"target_opset": "new"}, "target_opset"),
    ],
)
def test_bad_options(models_dir: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ran(models_dir / "lstmcell.onnx", {"type": "OnnxgradOptimize", **options})


def test_its_command_line_fails_too(models_dir: Path) -> None:
    given = workflow(models_dir / "lstmcell.onnx", {"type": "OnnxgradOptimize", "timeout": 1e-3})
    Path("workflow.json").write_text(json.dumps(given))
    done = of_olive("run", "--config", "workflow.json", "--package-config", str(OURS))
    assert done.returncode != 0 and "lstmcell.onnx: " in done.stderr
    assert not list(Path().glob("out/**/*.onnx"))


def test_external_weights_stay_outside(models_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "in" / "net.onnx"
    model.parent.mkdir()
    onnx.save(
        onnx.load(models_dir / "resnet18.onnx"), model, save_as_external_data=True, location="w"
    )
    found = ran(model, {"type": "OnnxgradOptimize"})
    beside = [p for p in found.parent.iterdir() if p.suffix == ".data"]
    assert len(beside) == 1 and beside[0].stat().st_size > 10 * found.stat().st_size
    assert onnxgrad.verify(models_dir / "resnet18.onnx", found).ok
