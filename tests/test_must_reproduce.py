"""The counts, equalities and guarantees that `optimize` is measured by, on the committed real models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Unsupported, feeds_for, run
from onnxgrad.verify.reference.evaluate import reference
from scripts.fetch_models import NAMES
from tests.helpers import MODELS_DIR

# MatMul + Gemm before and after with merge=always. LSTM cell: 97 of 128 go, one more than combining alone takes away
# (96: see test_the_lstm_cell), because the product with the constant initial state is a constant and is folded.
PRODUCTS = {
    "unet.onnx": (248, 164),
    "bert.onnx": (96, 72),
    "bert.raw.onnx": (96, 72),
    "vit.onnx": (96, 72),
    "clip.onnx": (96, 72),
    "llama.onnx": (109, 73),
    "llama.raw.onnx": (109, 73),
    "t5.onnx": (133, 98),
    "whisper.onnx": (89, 66),
    "whisper.raw.onnx": (89, 66),
    "lstmcell.onnx": (128, 31),
    "gpt2.onnx": (73, 73),
}
CONVOLUTIONS = {"googlenet.onnx": (57, 39), "inception_v3.onnx": (94, 75), "yolox.onnx": (65, 51)}
NOTHING_TO_FIND = ("resnet18.onnx", "densenet121.onnx")


@functools.cache
def before(name: str) -> ModelProto:
    return onnx.load(MODELS_DIR / name)


@functools.cache
def after(name: str, merge: str = "always") -> ModelProto:
    program = load(MODELS_DIR / name)
    Pipeline.of(merge=merge).run(program)
    program.main.check()
    return to_proto(program)


def count(model: ModelProto, *ops: str) -> int:
    return sum(n.op_type in ops for n in model.graph.node)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    found = (count(before(name), "MatMul", "Gemm"), count(after(name), "MatMul", "Gemm"))
    assert found == PRODUCTS[name]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    assert (count(before(name), "Conv"), count(after(name), "Conv")) == CONVOLUTIONS[name]


@pytest.mark.parametrize("name", NOTHING_TO_FIND)
def test_nothing_to_find(name: str) -> None:
    assert count(after(name), "Conv", "MatMul", "Gemm") == count(
        before(name), "Conv", "MatMul", "Gemm"
    )


def test_gpt2_is_packed_already() -> None:
    assert count(after("gpt2.onnx"), "Split") == count(before("gpt2.onnx"), "Split")


def test_the_lstm_cell() -> None:
    """16 steps of four gates on x and four on h: 128 Gemms become 32. Combining alone does that."""
    program = load(MODELS_DIR / "lstmcell.onnx")
    trace = Trace()
    Pipeline.of(passes="combine-parallel-gemm{merge=always}").run(program, trace)
    assert count(to_proto(program), "Gemm") == 32


@pytest.mark.parametrize("name", [*PRODUCTS, *CONVOLUTIONS])
def test_results_are_those_of_the_original(name: str) -> None:
    """Within 1e-6 of max|y| in onnxruntime, or 3 times the original's own float32-against-float64 error."""
    model = before(name)
    feeds = feeds_for(model, seed=11)
    want, got = run(model, feeds, optimize=False), run(after(name), feeds, optimize=False)
    allowed = dict.fromkeys(want, 1e-6)
    if any(distance(want[o], got[o]) > allowed[o] for o in want):
        exact = exact_results(model, feeds)
        allowed = {o: max(1e-6, 3 * distance(exact[o], want[o])) for o in want}
    for output, y in want.items():
        assert distance(y, got[output]) <= allowed[output], output


def exact_results(model: ModelProto, feeds: Any) -> Any:
    try:
        return reference(model, feeds)
    except Unsupported as error:
        pytest.fail(f"over 1e-6 and the float64 reference cannot tell why: {error}")


def distance(want: Any, got: Any) -> float:
    """The largest difference relative to max|want|."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    assert want.shape == got.shape
    return float(
        np.max(np.abs(want - got), initial=0.0) / (np.max(np.abs(want), initial=0.0) or 1.0)
    )


def test_onnxruntime_fuses_every_batch_norm_of_mobilenet(tmp_path: Path) -> None:
    """No-op CastLike and Expand on the biases keep all 52 unfused in the export, under every other tool as well."""

    def left(model: ModelProto) -> int:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.intra_op_num_threads = 1
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return count(onnx.load(tmp_path / "optimized.onnx"), "BatchNormalization")

    name = "mobilenet_v2.raw.onnx"
    assert left(before(name)) == 52
    assert left(after(name, "auto")) == 0
    program = load(MODELS_DIR / name)
    Pipeline.of("clean").run(program)
    clean = to_proto(program)
    assert count(clean, "BatchNormalization") == 52 and left(clean) == 0, (
        "the clean-up alone is what it needs"
    )


def test_metadata_of_untouched_nodes_survives_and_merged_nodes_carry_the_union() -> None:
    old = {n.output[0]: n for n in before("bert.onnx").graph.node}
    scopes: list[str] = []
    for node in after("bert.onnx").graph.node:
        metadata = {e.key: e.value for e in node.metadata_props}
        source = old.get(node.output[0])
        made_by = metadata.get("onnxgrad.made_by", "")
        if source is not None and source.op_type == node.op_type and not made_by:
            assert node.metadata_props == source.metadata_props
        elif node.op_type == "MatMul":
            assert "combine_parallel_matmul" in made_by
            scopes.append(metadata["namespace"])
    assert len(scopes) == 12
    for scope in scopes:
        assert all(f".{part}" in scope or part in scope for part in ("query", "key", "value")), (
            scope
        )


@pytest.mark.parametrize("name", ["bert.raw.onnx", "mobilenet_v2.raw.onnx", "lstmcell.onnx"])
def test_the_same_input_gives_the_same_bytes(name: str) -> None:
    program = load(MODELS_DIR / name)
    Pipeline.of(merge="always").run(program)
    assert to_proto(program).SerializeToString() == after(name).SerializeToString()


def test_optimizing_again_changes_nothing() -> None:
    for name in ("bert.onnx", "llama.onnx", "mobilenet_v2.raw.onnx"):
        program = load(after(name))
        trace = Trace()
        Pipeline.of(merge="always").run(program, trace)
        assert not trace.rewrites, [f.rule for f in trace.rewrites][:5]


@pytest.mark.parametrize("name", ["lstmcell.onnx", "mobilenet_v2.raw.onnx"])
def test_stopping_after_n_rewrites_gives_the_first_n(name: str) -> None:
    """What bisection stands on: a limit changes nothing but the end."""

    def rewrites(limit: int | None) -> list[tuple[str, str, str]]:
        trace = Trace(limit=limit)
        Pipeline.of(merge="always").run(load(MODELS_DIR / name), trace)
        return [(f.pass_name, f.rule, f.where) for f in trace.rewrites]

    every = rewrites(None)
    for limit in (1, len(every) // 3, len(every) - 1):
        assert rewrites(limit) == every[:limit]


def test_the_argument_is_never_changed() -> None:
    model = before("lstmcell.onnx")
    held = model.SerializeToString()
    optimize(model, merge="always", verify=False)
    assert model.SerializeToString() == held


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["auto", "always"])
@pytest.mark.parametrize("name", sorted(path.name for path in MODELS_DIR.glob("*.onnx")))
def test_every_committed_model_is_proved(name: str, merge: str) -> None:
    """`optimize` raises when the proof fails."""
    optimize(str(MODELS_DIR / name), merge=merge)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_fetched_model_is_proved(name: str, fetched: Callable[[str], Path]) -> None:
    """Real trained models: on generated feeds, or the refusal names the option that gives feeds."""
    try:
        optimize(str(fetched(name)), merge="always", allow_growth=True)
    except InputError as error:
        assert "inputs=" in str(error) or "dims=" in str(error), error
