"""Models and runs for check_cuda.sh: `python scripts/cuda_checks.py wrong|tree|data FILE`,
`train NAME`, `diverged`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import Trainer, train, training_step  # noqa: E402  # the script runs from a checkout

# of 20 losses of AdamW, on CUDA against the CPU, relative
_AGREE = 1e-3


def wrong(path: Path) -> None:
    """Writes models/lstmcell.onnx with one matrix 1 % larger."""
    model = onnx.load(ROOT / "models" / "lstmcell.onnx")
    matrix = next(
        t
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2
    )
    larger = (numpy_helper.to_array(matrix) * 1.01).astype(np.float32)
    matrix.CopyFrom(numpy_helper.from_array(larger, matrix.name))
    onnx.save(model, path)


def tree(path: Path) -> None:
    """Writes a model with a redundant Cast before a tree regressor, which has no CUDA kernel."""
    trees = helper.make_node(
        "TreeEnsembleRegressor", ["c"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1.0, 2.0],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.FLOAT), trees],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 1])],
    )
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=domains), path)


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Returns the inputs recorded beside models/training/NAME.onnx."""
    with np.load(ROOT / "models" / "training" / f"{name}.npz") as record:
        return {k.removeprefix("in:"): record[k] for k in record.files if k.startswith("in:")}


def data(path: Path) -> None:
    """Writes the inputs of models/training/mlp.onnx as a data file."""
    np.savez(path, **inputs_of("mlp"))


def trained(name: str) -> None:
    """Trains twenty steps on the CPU and on CUDA: losses must agree, on the right provider."""
    feeds = inputs_of(name)
    model = ROOT / "models" / "training" / f"{name}.onnx"
    step = training_step(model, "loss", train.AdamW(lr=1e-3), clip_norm=1.0)
    losses = {}
    for provider in ("cpu", "cuda"):
        trainer = Trainer(step, provider=provider, engine="graph")
        losses[provider] = [trainer.step(feeds) for _ in range(20)]
    pairs = zip(losses["cpu"], losses["cuda"], strict=True)
    worst = max(abs(a - b) / max(abs(a), 1e-6) for a, b in pairs)
    finite = all(np.isfinite(v).all() for v in trainer.parameters.values())
    print("worst relative difference of 20 losses", worst)
    if not worst < _AGREE or not finite:
        sys.exit(f"{name} trains otherwise on cuda")
    print("trained on cuda")


def diverged() -> None:
    """Checks that a step that is not finite leaves the parameters unchanged."""
    model = ROOT / "models" / "training" / "mlp.onnx"
    trainer = Trainer(
        training_step(model, "loss", train.SGD(lr=1e-2), accumulate=2), provider="cuda"
    )
    feeds = inputs_of("mlp")
    spoiled = {k: v * np.nan if v.dtype.kind == "f" else v for k, v in feeds.items()}
    for _ in range(2):
        trainer.step(feeds)
    before = {k: v.copy() for k, v in trainer.parameters.items()}
    try:
        for _ in range(2):
            trainer.step(spoiled)
    except train.Diverged as error:
        print("Diverged:", error)
    else:
        sys.exit("a step of NaN was not noticed")
    if not all(np.array_equal(before[k], v) for k, v in trainer.parameters.items()):
        sys.exit("the parameters changed")
    print("as before; the next loss is", trainer.step(feeds))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["wrong" | "tree" | "data" as kind, path]:
            {"wrong": wrong, "tree": tree, "data": data}[kind](Path(path))
            print(f"wrote {path}")
        case ["train", name]:
            trained(name)
        case ["diverged"]:
            diverged()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
