"""Models of other exporters than PyTorch's: Keras, scikit-learn, LightGBM, XGBoost, JAX, PaddlePaddle.

The files stand in tests/data/exporters, made by scripts/export_others.py; made_by.json says with which versions.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.ir.save import to_proto
from tests.helpers import DATA_DIR

FOLDER = DATA_DIR / "exporters"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.onnx"))
# one of each exporter by default, the others when there is time
QUICK = {
    "jax/gru.onnx", "keras/branches.onnx", "keras/lstm.onnx", "onnxmltools/lightgbm_binary.onnx",
    "onnxmltools/xgboost_three.onnx", "paddle/cnn.onnx", "paddle/loop.onnx", "sklearn/columns.onnx",
    "sklearn/logistic_regression.onnx", "sklearn/mlp.onnx", "sklearn/text.onnx",
}  # fmt: skip
NO_FLOAT64 = {"sklearn/text.onnx": "com.microsoft::Tokenizer is not known"}
# constant between the thresholds of its trees
STEPS = {"sklearn/gradient_boosting.onnx", *(f for f in FILES if f.startswith("onnxmltools/"))}

each = pytest.mark.parametrize(
    "name", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FILES]
)


def test_ten_of_each() -> None:
    for exporter in ("jax", "keras", "onnxmltools", "paddle", "sklearn"):
        made = json.loads((FOLDER / exporter / "made_by.json").read_text(encoding="utf-8"))
        files = {Path(name).stem for name in FILES if name.startswith(exporter + "/")}
        assert files == set(made["models"]) and len(files) >= 10 and made["versions"]


@pytest.mark.parametrize("name", FILES)
def test_load_and_save(name: str) -> None:
    given = onnx.load(FOLDER / name)
    found = to_proto(onnxgrad.load(FOLDER / name))
    assert found.SerializeToString(deterministic=True) == given.SerializeToString(
        deterministic=True
    )


@each
def test_optimize(name: str) -> None:
    done = onnxgrad.optimize(FOLDER / name, report=True)
    proof = done.proof
    assert proof.verdict == "equal" and proof.checks["onnxruntime"].ran
    assert all(proof.compared[v.name] for v in done.model.graph.output)
    if name in NO_FLOAT64:
        assert NO_FLOAT64[name] in proof.checks["float64"].why
    else:
        assert proof.checks["float64"].ran, proof.checks["float64"].why


@each
def test_gradient(name: str) -> None:
    """By whatever float input there is, or else by the weights; of every output of floats."""
    program = onnxgrad.load(FOLDER / name)
    wrt = [v.name for v in program.main.inputs if v.dtype == onnx.TensorProto.FLOAT] or "params"
    for output in program.main.outputs:
        if output.dtype != onnx.TensorProto.FLOAT:
            with pytest.raises(onnxgrad.InputError, match="not a floating-point tensor"):
                onnxgrad.gradient(program, target=output.name, adjoint="input")
        else:
            steps = wrt if name in STEPS else ()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "no requested value reaches target")
                found = onnxgrad.check_gradient(FOLDER / name, wrt, output.name, allow_empty=steps)
            assert found.ok, str(found)
