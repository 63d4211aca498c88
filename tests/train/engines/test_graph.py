"""The portable step gives the same values whichever of its buffers are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.train import SGD, AdamW, CrossEntropy, Optimizer, training_step
from onnxgrad.train.engines.blocks import BlocksEngine
from onnxgrad.train.engines.graph import GraphEngine, InPlace, may_be_overwritten
from onnxgrad.train.optimizers import OPTIMIZERS, Adafactor
from tests.helpers import ROOT, stored_arrays
from tests.language_models import LanguageModel
from tests.train.common import examples, step
from tests.train.follower import Follower
from tests.train.update.test_emission import OPTIONS


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(
            name,
            optimizer,
            id=f"{name}-{kind}",
            # every optimiser on one model, every model with the one of two states
            marks=[pytest.mark.slow] * (name != "mlp" and kind != "adamw"),
        )
        for name in ("mlp", "gpt2", "resnet18")
        for kind, optimizer in (
            ("sgd", SGD()),
            ("momentum", SGD(momentum=0.9)),
            ("adamw", AdamW()),
        )
    ],
)
@pytest.mark.parametrize("in_place", ["states", "all"])
def test_shared_buffers_change_no_value(name: str, optimizer: Optimizer, in_place: InPlace) -> None:
    path = ROOT / "models" / "training" / f"{name}.onnx"
    stored = stored_arrays(path.with_suffix(".npz"))
    task = training_step(path, optimizer=optimizer)
    batch = {fed.name: stored[f"in:{fed.name}"] for fed in task.manifest.of_role("batch")}
    shared, safe = (
        GraphEngine(task, threads=1, in_place=in_place),
        GraphEngine(task, threads=1, in_place="none"),
    )
    losses = [[engine.run(batch, t, 1e-2).loss for t in range(1, 9)] for engine in (shared, safe)]
    assert losses[0] == losses[1]
    expected = safe.values
    assert all(np.array_equal(value, expected[key]) for key, value in shared.values.items())
    assert len(expected) > len(task.manifest.of_role("parameter")) or isinstance(optimizer, SGD)


def test_going_back_gives_the_parameters_of_before() -> None:
    engine = GraphEngine(step(SGD()), threads=1)
    before = engine.values
    engine.run(examples(4), 1, 0.1)
    assert any(not np.array_equal(value, before[key]) for key, value in engine.values.items())
    engine.back()
    assert all(np.array_equal(value, before[key]) for key, value in engine.values.items())


def test_metrics_are_of_this_step() -> None:
    engine = GraphEngine(step(SGD(), metrics=["logits"]), threads=1)
    first, second = (engine.run(examples(n, seed=n), 1, 0.0) for n in (4, 6))
    assert first.metrics["logits"].shape == (4, 3)
    assert second.metrics["logits"].shape == (6, 3)
    x = examples(6, seed=6)["x"]
    values = engine.values
    hidden = np.maximum(x @ values["w1"] + values["b1"], 0)
    np.testing.assert_allclose(
        second.metrics["logits"], hidden @ values["w2"] + values["b2"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": None}, "the batch lacks 'labels'"),
        ({"more": np.zeros(2)}, "'more', which is not an input"),
        (
            {"x": np.zeros((4, 7), np.float32)},
            r"has shape \[4, 7\], but the step requires \[N, 8\]",
        ),
        ({"x": np.zeros((5, 8), np.float32)}, "has 4 for N, 'x' of the same batch 5"),
        ({"x": np.zeros((4, 8), np.int64)}, "is int64, but the step requires float32"),
        ({"x": np.zeros((0, 8), np.float32), "labels": np.zeros(0, np.int64)}, "is empty"),
        (
            {"labels": np.array([0, 1, 3, -100])},
            r"has the label 3 at \[2\]: labels are 0 to 2, or -100, which is",
        ),
        ({"labels": np.array([0, -1, 2, 1])}, r"has the label -1 at \[1\]"),
    ],
)
def test_a_batch_that_does_not_fit(change: dict[str, object], words: str) -> None:
    batch = {k: v for k, v in {**examples(4), **change}.items() if v is not None}
    with pytest.raises(InputError, match=words):
        GraphEngine(step(), threads=1).run(batch, 1, 0.1)


def test_a_past_of_length_0_is_no_empty_batch() -> None:
    language = LanguageModel("llama", "int8", layers=1)
    loss = CrossEntropy("logits", axis=-1)
    engine = GraphEngine(
        training_step(language.build(), loss, SGD(), wrt="model.norm.*"), threads=1
    )
    batch = language.batch()
    labels = batch["input_ids"]
    assert 0 in batch["past_key_values.0.key"].shape
    assert np.isfinite(engine.run({**batch, "labels": labels}, 1, 0.1).loss)
    without = {"input_ids": labels[:, :0], "attention_mask": labels, "labels": labels[:, :0]}
    with pytest.raises(InputError, match="'labels' of the batch is empty"):
        engine.run({**batch, **without}, 1, 0.1)


def test_an_unknown_provider() -> None:
    with pytest.raises(InputError, match="choose one of cpu, cuda"):
        GraphEngine(step(), provider="abacus")


@pytest.mark.covering
@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["", "accumulate"])
def test_where_every_update_waits_for_the_norm_parameters_have_one_buffer(
    cls: type[Optimizer], options: dict[str, Any]
) -> None:
    task = step(cls(), clip_norm=0.5, average=0.9, **options)
    shared, safe = (GraphEngine(task, threads=1, in_place=how) for how in ("all", "none"))
    names = {fed.name for fed in task.manifest.of_role("parameter")}
    assert options or cls is Adafactor or names <= shared._single
    for engine in (shared, safe):
        for number in range(1, 9):
            engine.part = (number - 1) % task.manifest.accumulate
            engine.run(examples(8, seed=number), 1 + number // task.manifest.accumulate, 1e-2)
    expected = safe.values
    assert all(np.array_equal(value, expected[key]) for key, value in shared.values.items())


@pytest.mark.covering
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "plain")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_same_as_who_follows_the_manifest(options: dict[str, Any], accumulate: int) -> None:
    task = step(accumulate=accumulate, **options)
    follower, engine = Follower(task), GraphEngine(task, threads=1)
    for number in range(8):
        batch = examples(8, seed=number)
        engine.part = number % accumulate
        found = engine.run(batch, follower.number, follower.rate)
        assert found.loss == pytest.approx(follower.step(batch), rel=1e-6)
        if engine.last and task.manifest.gradient_norm:
            norm = task.manifest.gradient_norm
            assert found.metrics[norm] == pytest.approx(follower.outputs[norm], rel=1e-5)
    for name, value in engine.values.items():
        np.testing.assert_allclose(value, follower.values[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("last", [0, 1])
def test_going_back_begins_sums_anew(last: int) -> None:
    engine = GraphEngine(step(SGD(), accumulate=2), threads=1)
    before = engine.values
    for engine.part in (0, last):
        engine.run(examples(4), 1, 0.1)
    engine.back()
    assert all(np.array_equal(value, before[key]) for key, value in engine.values.items())


def test_no_memory_is_planned_beside_what_the_first_run_took() -> None:
    for session in (
        BlocksEngine(step(), threads=1)._session,
        *(file.session for file in GraphEngine(step(), threads=1)._files),
    ):
        assert not session.get_session_options().enable_mem_pattern


SAFE = {
    "read once, by the update": "n = Add (p, x)",
    "read before": "a = Mul (p, x) n = Sub (a, x)",
    "read twice by the update": "n = Mul (p, p)",
}
UNSAFE = {
    "read beside the update": "n = Add (x, x) y = Mul (p, x)",
    "read through a view beside it": "v = Transpose (p) n = Add (p, x) y = MatMul (v, x)",
    "an update that is no elementwise one": "n = MatMul (p, x)",
    "returned itself": "n = Add (p, x) y = Identity (p)",
    "read in a branch": "n = Add (p, x) y = If (c) <then_branch = t () => (float[2, 2] o) { o = Relu (p) },"
    " else_branch = e () => (float[2, 2] o2) { o2 = Neg (x) }>",
}


def answer(body: str) -> bool:
    more = ", float[2, 2] y" if " y = " in body else ""
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[2, 2] p, float[2, 2] x, bool c) => (float[2, 2] n{more}) '
    block = load(onnx.parser.parse_model(f"{text} {{ {body} }}")).main
    named = {v.name: v for v in block.vars()}
    return may_be_overwritten(block, named["p"], named["n"])


@pytest.mark.parametrize("body", SAFE.values(), ids=SAFE)
def test_safe(body: str) -> None:
    assert answer(body)


@pytest.mark.parametrize("body", UNSAFE.values(), ids=UNSAFE)
def test_unsafe(body: str) -> None:
    assert not answer(body)
