"""An adapter changes nothing at first; then it moves W by alpha / rank A B, wherever W is read, and never forms that."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import MSE, SGD, AdamW, CrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import adapters_of, lora
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT, stored_arrays
from tests.language_models import ARCHITECTURES, WEIGHTS, Architecture, LanguageModel, Weights
from tests.train.adapters.common import FORMS, feeds_of, form, moved, with_weights
from tests.train.common import classifier, examples

MODELS = ROOT / "models"


def stored(path: Any) -> dict[str, Any]:
    found = stored_arrays(path)
    return {k.removeprefix("in:"): found[k] for k in found if k.startswith("in:")} or dict(found)


def inputs_of(name: str) -> dict[str, Any]:
    values = stored(MODELS / f"{name}.npz")
    model = onnx.load(MODELS / f"{name}.onnx", load_external_data=False)
    return {v.name: values[v.name] for v in model.graph.input}


# ---- at the start --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "targets", "count"),
    [
        ("gpt2", "*.attn.c_attn.weight", 12),
        ("gpt2", ["*.mlp.*", "*.wpe*", "!*.h.3.*"], 23),
        ("bert", "*.attention.self.query,*.attention.self.value", 24),
        ("clip", "*.self_attn.*_proj", 48),
        ("resnet18", "*downsample*", 3),
    ],
)
def test_outputs_of_real_models_are_the_same_bits(name: str, targets: Any, count: int) -> None:
    path = MODELS / f"{name}.onnx"
    model = lora(path, targets, rank=4)
    assert len(adapters_of(model).weights) == count
    before, after = run(path, inputs_of(name)), run(model, inputs_of(name))
    assert before.keys() == after.keys()
    for k in before:
        np.testing.assert_array_equal(before[k], after[k], err_msg=k)


@pytest.mark.parametrize("name", FORMS)
def test_outputs_of_each_form_are_the_same_bits(name: str) -> None:
    model = form(name)
    with_adapters = lora(model, "W", rank=2)
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(model, feeds)["y"], run(with_adapters, feeds)["y"])


def test_initial_values_are_loralibs_and_come_from_the_seed_and_the_name_alone() -> None:
    rng = np.random.default_rng(0)
    text = "(float[N,400] x, int64[N] i) => (float[N,300] y) { a = MatMul (x, V) b = MatMul (x, W) c = Gather (T, i) d = Add (a, b) y = Add (c, d) }"
    sizes = {"V": (400, 300), "W": (400, 300), "T": (500, 300)}
    model = with_weights(text, **{k: rng.standard_normal(s).astype("f") for k, s in sizes.items()})
    both, one = adapters_of(lora(model, "V,W,T")).values, adapters_of(lora(model, "W")).values
    other = adapters_of(lora(model, "W", seed=1)).values
    a = both["W.lora_A"]
    assert a.shape == (400, 8) and a.dtype == np.float32
    # kaiming_uniform with a = sqrt(5): within 1 / sqrt(400), variance 1 / (3 * 400)
    assert 0.0499 < np.abs(a).max() <= 0.05
    np.testing.assert_allclose(a.var(), 1 / 1200, rtol=0.05)
    assert not both["W.lora_B"].any() and not both["T.lora_A"].any()
    np.testing.assert_allclose(both["T.lora_B"].std(), 1.0, rtol=0.05)
    assert both["T.lora_A"].shape == (500, 8) and both["T.lora_B"].shape == (8, 300)
    np.testing.assert_array_equal(a, one["W.lora_A"])
    assert not np.array_equal(a, both["V.lora_A"]) and not np.array_equal(a, other["W.lora_A"])


def test_the_same_call_gives_the_same_bytes_and_the_kind_that_was_given() -> None:
    model = classifier()
    first, second = lora(model, "w1", rank=2), lora(model, "w1", rank=2)
    assert isinstance(first, onnx.ModelProto)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )
    assert model == classifier()
    program = onnxgrad.load(model)
    assert type(lora(program, "w1", rank=2)) is type(program)
    assert "lora" not in str(program.main)


def test_values_of_the_model_keep_their_names() -> None:
    model = form("matmul")
    model.graph.output.extend([onnx.helper.make_tensor_value_info("z", 1, None)])
    model.graph.node.append(onnx.helper.make_node("Neg", ["y"], ["z"]))
    after = moved(lora(model, "W", rank=2))
    assert [v.name for v in after.graph.output] == ["y", "z"]
    found = run(after, feeds_of(model))
    np.testing.assert_array_equal(found["z"], -found["y"])


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_an_adapter_moves_the_weight_by_its_product(name: str) -> None:
    model = form(name)
    after = moved(lora(model, "W", rank=2, alpha=3.0))
    found = adapters_of(after)
    a, b = found.factors("W")
    assert (len(a), b.shape[1]) == (7, 6)
    delta = 1.5 * a.astype(np.float64) @ b
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    tensor = next(t for t in dense.graph.initializer if t.name == "W")
    w = onnx.numpy_helper.to_array(tensor)
    turned = delta if FORMS[name][2] else delta.T
    tensor.CopyFrom(
        onnx.numpy_helper.from_array((w + turned.reshape(w.shape)).astype(w.dtype), "W")
    )
    feeds = feeds_of(model)
    expected = run(dense, feeds)["y"]
    size = np.abs(expected).max()
    assert np.abs(expected - run(model, feeds)["y"]).max() > 0.01 * size
    np.testing.assert_allclose(run(after, feeds)["y"], expected, rtol=0, atol=2e-6 * size)


@pytest.mark.parametrize("name", [n for n in FORMS if n != "inside"])
def test_the_gradient_of_adapters_is_right(name: str) -> None:
    after = moved(lora(form(name), "W", rank=2, alpha=3.0))
    report = onnxgrad.check_gradient(
        after, "*.lora_*", "y", inputs=feeds_of(form(name)), tolerance=1e-4
    )
    assert report.ok, str(report)


def test_the_gradient_inside_a_branch_is_right() -> None:
    after = moved(lora(form("inside"), "W", rank=2))
    feeds = feeds_of(form("inside"))
    report = onnxgrad.check_gradient(after, "*.lora_*", "y", inputs=feeds, tolerance=1e-4)
    assert report.ok, str(report)


# ---- training ------------------------------------------------------------------------------------


def test_training_moves_adapters_only_and_the_loss_falls() -> None:
    model = lora(classifier(), "w*", rank=2)
    step = training_step(model, CrossEntropy(), AdamW(weight_decay=0.0), wrt="*.lora_*")
    names = {fed.name for fed in step.manifest.of_role("parameter")}
    assert names == {"w1.lora_A", "w1.lora_B", "w2.lora_A", "w2.lora_B"}
    trainer = Trainer(step, 1e-2)
    losses = [trainer.step(examples(32)) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    trained, before = trainer.export(model), classifier()
    for tensor in before.graph.initializer:
        now = next(t for t in trained.graph.initializer if t.name == tensor.name)
        assert now.raw_data == tensor.raw_data


@pytest.mark.parametrize("name", ["matmul", "transposed", "left", "gemm_transposed", "conv"])
def test_no_matrix_of_the_weights_size_is_formed(name: str) -> None:
    """No result of forward, backward or update has the weight's 42 elements, in any layout; the
    batch of 3 x 5 rows gives none by accident. What turns the fixed weight itself may.
    """
    step = training_step(lora(form(name), "W", rank=2), MSE(), SGD(), wrt="*.lora_*")
    results = [(b.op, v.shape) for b in step.train.main.walk() for v in b.outputs if v is not None]
    assert all(s is not None for _, s in results)
    sized = [(op, s) for op, s in results if [n for n in s or () if n != 1] in ([6, 7], [7, 6])]
    allowed = {"Transpose"} if name == "transposed" else set()
    assert {op for op, _ in sized} <= allowed, sized
    outputs = [v.name for v in step.train.main.outputs]
    assert outputs == ["loss", "W.lora_A.new", "W.lora_B.new"]


def test_the_whole_gradient_would_be_seen_by_that_test() -> None:
    step = training_step(form("matmul"), MSE(), SGD(), wrt="W")
    shapes = [v.shape for b in step.train.main.walk() for v in b.outputs if v is not None]
    assert (7, 6) in shapes


def test_training_adapters_of_a_language_model() -> None:
    path = MODELS / "training" / "gpt2.onnx"
    model = lora(path, "*.attn.*,transformer.wte.weight", rank=2)
    assert len(adapters_of(model).weights) == 9  # the table is the last product's too
    trainer = Trainer(training_step(model, wrt="*.lora_*"), 1e-2)
    batch = stored(path.with_suffix(".npz"))
    losses = [trainer.step(batch) for _ in range(20)]
    np.testing.assert_allclose(
        losses[0], stored_arrays(path.with_suffix(".npz"))["loss64"], rtol=1e-6
    )
    assert losses[-1] < losses[0] - 0.5


# ---- quantised weights ---------------------------------------------------------------------------


def quantised() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return with_weights(
        "(float[N,7] x) => (float[N,6] y) { w = DequantizeLinear (W, s) y = MatMul (x, w) }",
        W=rng.integers(-127, 128, (7, 6)).astype(np.int8),
        s=np.array(0.02, np.float32),
    )


def packed() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    text = "(float[N,32] x) => (float[N,6] y) { y = com.microsoft.MatMulNBits <K = 32, N = 6, bits = 4, block_size = 16> (x, W, s) }"
    model = with_weights(
        text,
        W=rng.integers(0, 256, (6, 2, 8)).astype(np.uint8),
        s=rng.uniform(0.01, 0.02, 12).astype(np.float32),
    )
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("model", [quantised(), packed()], ids=["DequantizeLinear", "MatMulNBits"])
def test_adapters_stand_beside_quantised_weights(model: onnx.ModelProto) -> None:
    adapted = lora(model, "W", rank=2, alpha=3.0)
    feeds = feeds_of(model)
    before = run(model, feeds)["y"]
    np.testing.assert_array_equal(before, run(adapted, feeds)["y"])
    after = moved(adapted)
    a, b = adapters_of(after).factors("W")
    expected = before + 1.5 * feeds["x"].astype(np.float64) @ a @ b
    np.testing.assert_allclose(run(after, feeds)["y"], expected, atol=1e-5)
    held = {t.name: t for t in after.graph.initializer}
    assert held["W"] == model.graph.initializer[0]
    trainer = Trainer(training_step(adapted, MSE(), wrt="*.lora_*"), 1e-2)
    batch = {**feeds, "target": before + 1.0}
    losses = [trainer.step(batch) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_gradients_pass_weights_of_four_bits() -> None:
    """Two layers of int4 in blocks, as onnxruntime's quantiser writes them: QLoRA's setting
    (Dettmers et al. 2023).
    """
    rng = np.random.default_rng(0)
    scales = {f"s{i}": rng.uniform(0.02, 0.05, (2, 32)).astype(np.float32) for i in (1, 2)}
    text = """(float[N,32] x) => (float[N,32] y) {
        v = DequantizeLinear <axis = 0, block_size = 16> (W1, s1)  h = MatMul (x, v)  t = Tanh (h)
        w = DequantizeLinear <axis = 0, block_size = 16> (W2, s2)  y = MatMul (t, w) }"""
    model = with_weights(text, **scales)
    model.opset_import[0].version = 21
    for name in ("W1", "W2"):
        numbers = rng.integers(-8, 8, 32 * 32)
        model.graph.initializer.append(
            onnx.helper.make_tensor(name, onnx.TensorProto.INT4, (32, 32), numbers)
        )
    adapted, feeds = lora(model, "W*", rank=2), feeds_of(model)
    before = run(model, feeds)["y"]
    np.testing.assert_allclose(run(adapted, feeds)["y"], before, atol=1e-5)
    trainer = Trainer(training_step(adapted, MSE(), AdamW(), wrt="*.lora_*"), 1e-2)
    assert sorted(trainer.parameters) == ["W1.lora_A", "W1.lora_B", "W2.lora_A", "W2.lora_B"]
    losses = [trainer.step({**feeds, "target": -before}) for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    kept = {t.name: t for t in to_proto(trainer.task.train).graph.initializer}
    assert kept["W1"].data_type == kept["W2"].data_type == onnx.TensorProto.INT4


def test_gradients_pass_packed_weights() -> None:
    rng = np.random.default_rng(0)
    model = with_weights(
        "(float[N,32] x) => (float[N,6] y) { h = MatMul (x, V) t = Tanh (h) "
        "y = com.microsoft.MatMulNBits <K = 32, N = 6, bits = 4, block_size = 16> (t, W, s) }",
        V=(0.2 * rng.standard_normal((32, 32))).astype(np.float32),
        W=rng.integers(0, 256, (6, 2, 8)).astype(np.uint8),
        s=rng.uniform(0.01, 0.02, 12).astype(np.float32),
    )
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    after, feeds = moved(lora(model, "V,W", rank=2)), feeds_of(model)
    report = onnxgrad.check_gradient(after, "*.lora_*", "y", inputs=feeds, tolerance=1e-4)
    assert report.ok, str(report)
    assert len(report.values) == 4


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "lora: rank must be at least 1, not 0"),
        ({"rank": True}, "rank must be a whole number"),
        ({"rank": 2.5}, "rank must be a whole number"),
        ({"rank": 4, "targets": "w2"}, "rank 4 is larger than the smaller side of 'w2', 16 to 3"),
        ({"alpha": float("nan")}, "alpha must be a number, not nan"),
        ({"alpha": 0}, "alpha must not be 0"),
        ({"alpha": "8"}, "alpha must be a number"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"targets": 5}, "lora: targets must be text or a list, not 5"),
        ({"targets": ["w1", 5]}, "lora: targets must be text, not 5"),
        ({"targets": "attn*"}, "'attn*' matches no matrix .*; there are w1"),
        ({"targets": "w11"}, "'w11' matches no matrix of the main graph.* (did you mean 'w1'?)"),
        ({"targets": "b1"}, "'b1' matches no matrix"),
        ({"targets": "w1,!w2"}, "'!w2' excludes nothing"),
        ({"targets": "w1,!w*"}, "leave no weight"),
        ({"targets": []}, "leave no weight"),
    ],
)
def test_bad_requests(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        lora(classifier(), **{"targets": "w1", "rank": 2, **options})
    for part in words.split(".*"):
        assert part in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    one = lora(classifier(), "w1", rank=np.int64(2), alpha=np.float32(3), seed=np.uint8(4))
    assert one == lora(classifier(), "w1", rank=2, alpha=3.0, seed=4)


def test_a_model_with_adapters_gets_no_others() -> None:
    with pytest.raises(InputError, match="has adapters already"):
        lora(lora(classifier(), "w1", rank=2), "w2", rank=2)


def test_a_name_that_is_taken() -> None:
    model = classifier()
    model.graph.node[0].name = "w1.lora_B"
    with pytest.raises(InputError, match=r"value or node 'w1.lora_B' already"):
        lora(model, "w1", rank=2)


def test_old_models() -> None:
    model = form("matmul")
    model.ir_version, model.opset_import[0].version = 3, 9
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", 1, [7, 6]))
    after = lora(model, "W", rank=2)
    assert after.ir_version == 4
    feeds = {"x": feeds_of(form("matmul"))["x"]}
    np.testing.assert_array_equal(run(model, feeds)["y"], run(after, feeds)["y"])
    model.opset_import[0].version = 6
    with pytest.raises(InputError, match="need opset 7 or newer, the model has 6"):
        lora(model, "W", rank=2)


def test_the_note_says_what_was_done() -> None:
    model = lora(classifier(), ["w*", "!w2"], rank=2, alpha=4)
    note = json.loads(next(e.value for e in model.metadata_props if e.key == "onnxgrad.lora"))
    assert (note["rank"], note["alpha"], note["targets"]) == (2, 4.0, ["w*", "!w2"])
    assert note["values"] == ["w1.lora_A", "w1.lora_B"]


# ---- language models -----------------------------------------------------------------------------


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_language_model_for_onnxruntime_is_adapted(
    architecture: Architecture, weights: Weights
) -> None:
    language = LanguageModel(architecture, weights)
    model, batch = language.build(), language.batch()
    adapted = lora(model, "*attn*", rank=2)
    assert len(adapters_of(adapted).weights) == language.layers * (
        2 if architecture == "qwen" else 4
    )
    before, after = run(model, batch), run(adapted, batch)
    for name, value in before.items():  # fusions differ, so that the last bits may
        np.testing.assert_allclose(after[name], value, atol=2e-6 * np.abs(value).max())
