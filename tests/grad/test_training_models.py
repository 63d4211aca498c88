"""All weights and inputs of the training models against PyTorch's float64 gradients (models/training/*.npz)."""

from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.helpers import stored_arrays

FOLDER = Path(__file__).resolve().parent.parent.parent / "models" / "training"
# nodes of the gradient graph by weights and inputs, Constant and Identity not counted; by weights they were 3,892 (issue 13),
# and are to be 5 % fewer: scripts/results/gradient_graphs.md
NODES = {
    "mlp": 32, "cnn": 116, "bert": 578, "vit": 734, "gpt2": 496, "llama": 665, "resnet18": 524, "unet": 352,
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", [p.stem for p in sorted(FOLDER.glob("*.onnx"))])
def test_against_pytorch(name: str, optimize: bool) -> None:
    compare(name, optimize=optimize)


def compare(name: str, *, optimize: bool, form: Literal["fast", "small"] = "fast") -> int:
    """The nodes of the gradient graph, once its results agree."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    expected = stored_arrays(FOLDER / f"{name}.npz")
    wrt = [k.removeprefix("grad:") for k in expected if k.startswith("grad:")]
    graph = gradient(model, wrt, form=form)
    onnx.checker.check_model(graph)
    found = run(
        graph,
        {k.removeprefix("in:"): expected[k] for k in expected if k.startswith("in:")},
        optimize=optimize,
    )
    scale = max(float(np.abs(expected[f"grad:{w}"]).max()) for w in wrt)
    pytorch = max(float(expected[f"error32:{w}"]) for w in wrt) / scale
    errors = {
        w: float(np.abs(found[f"{w}_grad"] - expected[f"grad:{w}"]).max()) / scale for w in wrt
    }
    worst = max(errors, key=lambda w: errors[w])
    assert errors[worst] <= max(5e-6, 3 * pytorch), (
        f"{worst}: {errors[worst]:.2e} (PyTorch's float32: {pytorch:.2e})"
    )
    np.testing.assert_allclose(found[graph.graph.output[0].name], expected["loss64"], rtol=1e-5)
    return sum(n.op_type not in ("Constant", "Identity") for n in graph.graph.node)


@pytest.mark.parametrize(("name", "nodes"), [("cnn", 97), ("bert", 551), ("resnet18", 405)])
def test_the_small_form(name: str, nodes: int) -> None:
    assert compare(name, optimize=True, form="small") <= nodes


@pytest.mark.parametrize("name", NODES)
def test_size(name: str) -> None:
    if not (FOLDER / f"{name}.onnx").exists():
        pytest.skip(f"models/training/{name}.onnx is made by scripts/export_training.py")
    expected = stored_arrays(FOLDER / f"{name}.npz")
    graph = gradient(
        onnx.load(FOLDER / f"{name}.onnx"),
        [k.removeprefix("grad:") for k in expected if k.startswith("grad:")],
    )
    counts = Counter(n.op_type for n in graph.graph.node)
    nodes = sum(counts.values()) - counts["Constant"] - counts["Identity"]
    assert nodes <= NODES[name], counts.most_common(12)
