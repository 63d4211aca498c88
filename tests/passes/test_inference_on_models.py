"""What the inference passes make of real models: counts, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgrad.ir.program import Program
from onnxgrad.jobs.rewriting import optimize_program
from onnxgrad.passes.pipeline import PRESETS, Pipeline
from tests.helpers import MODELS_DIR
from tests.rewriting import apply, model_of, weights

CLEAN = "remove-unused,remove-noops,fold-constant,merge-equal"
BACKWARD = f"{CLEAN},simplify-inference,fold-constant,backward-fold-scale-axis,fold-constant,fold-bias,remove-unused"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def count(program: Program) -> Counter[str]:
    return Counter(b.op for block in program.blocks() for b in block.bindings)


def proved(path: Path, passes: str) -> Counter[str]:
    """Operator counts after `passes`, which are proved."""
    done = optimize_program(path, Pipeline.of(passes=passes, merge="always"), proof={"seeds": (0,)})
    assert done.report is not None and done.report.ok
    return count(done.program)


@pytest.mark.slow
def test_every_batch_norm_of_mobilenet_is_folded(models_dir: Path) -> None:
    after = proved(models_dir / "mobilenet_v2.raw.onnx", BACKWARD)
    assert (after["Conv"], after["BatchNormalization"], after["Mul"], after.total()) == (
        52,
        0,
        0,
        103,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "convs", "folded"), [("rapidocr_cls", 53, 35), ("rapidocr_rec", 38, 6)]
)
def test_batch_norms_of_trained_models_are_folded(
    fetched: Callable[[str], Path], name: str, convs: int, folded: int
) -> None:
    done = optimize_program(fetched(name), Pipeline.of(passes=BACKWARD), proof={"seeds": (0,)})
    after = count(done.program)
    assert (after["Conv"], after["BatchNormalization"]) == (convs, 0)
    assert sum(f.rule == "batch_norm" for f in done.trace.rewrites) == folded
    assert sum(f.rule == "scale_of_product" for f in done.trace.rewrites) == folded


@pytest.mark.slow
@pytest.mark.parametrize(("name", "convs"), [("resnet50", 53), ("shufflenet", 49)])
def test_batch_norms_of_light_models_are_folded(name: str, convs: int) -> None:
    after = proved(LIGHT / f"light_{name}.onnx", BACKWARD)
    assert (after["Conv"], after["BatchNormalization"]) == (convs, 0)


@pytest.mark.slow
def test_densenet_pre_activations_fold_forward_and_the_rest_is_explained(models_dir: Path) -> None:
    path = models_dir / "densenet121.onnx"
    after = proved(path, f"{BACKWARD},forward-fold-scale-axis,fold-constant,remove-unused")
    assert (after["BatchNormalization"], after["Mul"], after["Add"]) == (0, 0, 62)
    explained = optimize_program(path, Pipeline.of(passes=BACKWARD), prove=False, explain=True)
    assert any("read elsewhere" in reason for _, _, reason in explained.trace.declined)


def test_default_leaves_alone_what_would_get_slower(models_dir: Path) -> None:
    """DenseNet's BatchNormalizations stand in front of a Relu: taken apart they would be two kernels each."""
    done = optimize_program(
        models_dir / "densenet121.onnx", Pipeline.of("default"), prove=False, explain=True
    )
    assert count(done.program)["BatchNormalization"] == 62
    assert any("not a product" in reason for _, _, reason in done.trace.declined)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in MODELS_DIR.glob("*.onnx")))
def test_canonical_is_proved_on_every_model(name: str) -> None:
    """What `default` does is proved in tests/test_must_reproduce.py."""
    done = optimize_program(MODELS_DIR / name, Pipeline.of("canonical"), proof={"seeds": (0,)})
    assert done.report is not None and done.report.ok


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silero_16k", "silero_ifless"])
def test_nested_branches_are_unharmed(fetched: Callable[[str], Path], name: str) -> None:
    for preset in ("default", "inference", "canonical"):
        done = optimize_program(fetched(name), Pipeline.of(preset), proof={"seeds": (0,)})
        assert done.report is not None and done.report.ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "before", "after"),
    [
        ("mtcnn_rnet", "MatMul", 3, 2),
        ("mtcnn_onet", "MatMul", 4, 2),
        ("mtcnn_pnet", "Conv", 5, 4),
        ("caustic", "Gemm", 45, 42),
    ],
)
def test_parallel_heads_of_trained_models(
    fetched: Callable[[str], Path], name: str, op: str, before: int, after: int
) -> None:
    path = fetched(name)
    assert sum(n.op_type == op for n in onnx.load(path).graph.node) == before
    assert (
        proved(
            path, f"{CLEAN},combine-parallel-matmul,combine-parallel-gemm,combine-parallel-conv"
        )[op]
        == after
    )


TRAINING = """g (float[2,3,6,6] x) => (float[2,4,4,4] y) <float ratio = {0.5}, bool t = {1}, bool f = {0}>
  { c = Conv(x, w)  b = BatchNormalization(c, gamma, beta, mean, var)  d = Dropout(b, ratio, f)  y = Relu(d) }"""


def test_training_safe_keeps_what_training_needs() -> None:
    sizes = {"w": (4, 3, 3, 3), "gamma": (4,), "beta": (4,), "mean": (4,), "var": (4,)}
    model = model_of(TRAINING, weights(sizes, positive="var"))
    kept = apply(model, ",".join(PRESETS["training-safe"]))
    assert kept.counts["BatchNormalization"] == kept.counts["Dropout"] == 1
    assert {"w", *sizes} <= set(kept.program.main.initializers)
    folded = apply(model, ",".join(PRESETS["inference"]))
    assert folded.ops == ["Conv", "Relu"]
    folded.prove()
