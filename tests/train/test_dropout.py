"""The hash of counters: uniform, independent of place, user and seed, and the same in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_bytes, to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.train import SGD, CrossEntropy, Trainer, TrainingStep, training_step
from onnxgrad.train.dropout import bits_like, keys
from onnxgrad.train.engines.base import seed_of
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.verify.running.session import run
from onnxgrad.vocabulary import EngineName
from tests.train.modes_common import DROPOUT, batches, network

USERS = 3
COUNT = 1 << 16


@pytest.fixture(scope="module")
def drawing() -> Any:
    """Bits of three users for each seed."""
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", 1, ["N"])], [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    program = load(made)
    block = program.main
    seed = block.add_input("seed", TensorType(TensorProto.INT64, ()))
    with emitting(block, share=True):
        for key in keys(seed, USERS):
            block.add_output(bits_like(block.inputs[0], key))
    data, x = to_bytes(program), np.zeros(COUNT, np.float32)

    def draw(seed: int) -> Any:
        found = run(data, {"x": x, "seed": np.array(seed)})
        return np.stack(list(found.values()))

    return draw


def mixed(x: Any) -> Any:
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 14)


def by_numpy(seed: int) -> Any:
    """The same by numpy, for another runtime to be held to."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32 & 0xFFFFFFFF)
    of_seed = mixed(mixed(np.array([0x243F6A88, 0x85A308D3], np.uint32) ^ low) ^ high)
    found = []
    for user in range(1, USERS + 1):
        first, second = mixed(of_seed + np.uint32(user * 0x9E3779B9 & 0xFFFFFFFF))
        h = np.arange(COUNT, dtype=np.uint32) + first
        h = (h ^ (h >> 16)) * np.uint32(0x21F0AAAD) + second
        found.append((h ^ (h >> 15)) * np.uint32(0xD35A2D97))
    return np.stack(found)


@pytest.mark.parametrize("seed", [0, 1, (1 << 32) + 1, (1 << 62) + 12345, -1])
def test_integers_wrap_around_as_in_numpy(drawing: Any, seed: int) -> None:
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(drawing(seed), by_numpy(seed))


def centred(bits: Any) -> Any:
    return bits / 2**32 - 0.5


SEEDS = [0, 1, 2, 1 << 32, (1 << 32) + 1, 7 << 32, (7 << 32) + 1000]


def test_numbers_are_uniform(drawing: Any) -> None:
    for seed in SEEDS:
        u = centred(drawing(seed))
        # 6 standard deviations
        assert (np.abs(u.mean(1)) < 6 * np.sqrt(1 / 12 / COUNT)).all()
        assert (np.abs(u.var(1) - 1 / 12) < 6 * np.sqrt(1 / 180 / COUNT)).all()
        counts = np.stack([np.histogram(row, 256, (-0.5, 0.5))[0] for row in u])
        chi2 = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum(1)
        assert (np.abs(chi2 - 255) < 6 * np.sqrt(2 * 255)).all()


def test_places_are_independent(drawing: Any) -> None:
    lags = [*range(1, 33), *(1 << k for k in range(6, 15)), 768, 3072, 1023, 1025]
    for seed in SEEDS:
        for row in centred(drawing(seed)):
            for lag in lags:
                c = 12 * (row[:-lag] * row[lag:]).mean()
                assert abs(c) < 6 / np.sqrt(COUNT - lag), (seed, lag)


def test_masks_of_neighbours_are_independent(drawing: Any) -> None:
    """Dropped together: pairs and triples at a ratio of 0.1 are as frequent as by chance."""
    for seed in SEEDS:
        for row in drawing(seed) < 0.1 * 2**32:
            for size in (2, 3, 4):
                together = np.logical_and.reduce([row[i : COUNT - size + i] for i in range(size)])
                p = 0.1**size
                assert abs(together.mean() - p) < 7 * np.sqrt(size * p / COUNT)


def test_users_and_seeds_are_independent(drawing: Any) -> None:
    rows = np.concatenate([centred(drawing(seed)) for seed in SEEDS])
    correlation = 12 * rows @ rows.T / COUNT
    off = correlation[~np.eye(len(rows), dtype=bool)]
    assert np.abs(off).max() < 6 / np.sqrt(COUNT)
    # nor is one a shifted copy of another
    for shift in (1, 2, 64, 1000):
        moved = 12 * rows[:, shift:] @ rows[:, :-shift].T / COUNT
        assert np.abs(moved).max() < 6.5 / np.sqrt(COUNT)


def test_the_high_bits_all_differ_between_seeds(drawing: Any) -> None:
    """Each of the upper 16 bits is one in half of the numbers, and flips with the seed in half of
    the places.
    """
    a, b = drawing(41), drawing(42)
    for bit in range(16, 32):
        for row in (*a, *(a ^ b)):
            assert abs((row >> bit & 1).mean() - 0.5) < 6 * 0.5 / np.sqrt(COUNT)


ONE = """
<ir_version: 10, opset_import: ["": %d]>
g (float[N, K] x, float[N, K] t) => (float loss, float[N, K] y)
<float[1] w = {1}, float ratio = {%s}, bool on = {%d}>
{ h = Mul (x, w)  y, mask = Dropout (h, ratio, on)  z = Mul (y, t)  loss = ReduceSum <keepdims = 0> (z) }
"""


def one(ratio: float = 0.3, on: bool = False, opset: int = 18) -> onnx.ModelProto:
    """sum(t * dropout(x * w)) over any number of elements."""
    return onnx.parser.parse_model(ONE % (opset, ratio, on))


def feeds(rows: int, columns: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    found = {k: rng.standard_normal((rows, columns)).astype(np.float32) for k in ("x", "t")}
    return found


def step_of(model: onnx.ModelProto, **options: Any) -> TrainingStep:
    return training_step(model, "loss", SGD(), ["w"], metrics=["y"], **options)


def dropped(step: TrainingStep, x: Any, seed: int) -> Any:
    """The result of the Dropout for a seed."""
    more = {"step": np.array(1), "learning_rate": np.float32(0.1).reshape(())}
    given = {"x": x, "t": np.ones_like(x), "seed": np.array(seed), **more, **step.initial}
    return run(to_proto(step.train, weights=True), given, outputs=["y"])["y"]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (128, 512)])
def test_kept_elements_are_scaled(shape: tuple[int, int]) -> None:
    step = step_of(one(), dropout="train")
    x = feeds(*shape)["x"]
    y = dropped(step, x, 5)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / np.float32(0.7), rtol=1e-6)
    assert abs(kept.mean() - 0.7) < 6 * np.sqrt(0.21 / x.size)


def test_the_mean_is_that_of_the_operand() -> None:
    step = step_of(one(), dropout=0.9)
    y = dropped(step, np.ones((512, 512), np.float32), 1)
    assert abs(y.mean() - 1) < 6 * 3 / 512
    assert set(np.unique(y).tolist()) == {0.0, float(np.float32(1 / (1 - 0.9)))}


def test_the_gradient_passes_through_the_same_mask() -> None:
    step = step_of(one(), dropout="train")
    data = feeds(64, 32)
    engine = GraphEngine(step)
    loss = engine.run(data, 1, 1.0).loss
    y = dropped(step, data["x"], seed_of(0, 1))
    np.testing.assert_allclose(loss, (y * data["t"]).sum(), rtol=1e-4)
    # d loss / d w = sum(t * mask * scale * x) = the loss at w = 1
    np.testing.assert_allclose(engine.values["w"], 1 - loss, rtol=1e-4)


def test_by_default_nothing_is_dropped_and_no_seed_is_asked_for() -> None:
    for options in ({}, {"dropout": "off"}, {"dropout": 0.0}):
        step = step_of(one(), **options)
        data = feeds(4, 4)
        np.testing.assert_allclose(
            GraphEngine(step).run(data, 1, 0.1).loss, (data["x"] * data["t"]).sum(), rtol=1e-5
        )
        assert bool(step.manifest.of_role("seed")) == (
            "dropout" in options and options["dropout"] == 0
        )


def test_a_file_in_training_mode_drops_by_the_seed() -> None:
    step = step_of(one(on=True))
    assert [fed.name for fed in step.manifest.of_role("seed")] == ["seed"]
    assert not any(b.op == "Dropout" for b in step.train.main.walk())
    off = step_of(one(on=True), dropout="off")
    assert off.manifest.of_role("seed") == []
    data = feeds(8, 8)
    loss = run(to_proto(step.evaluation), {**data, "w": np.ones(1, np.float32)})["loss"]
    np.testing.assert_allclose(loss, (data["x"] * data["t"]).sum(), rtol=1e-5)


@pytest.mark.parametrize("opset", [12, 13, 17, 22])
def test_files_of_any_opset(opset: int) -> None:
    expected = dropped(step_of(one(), dropout="train"), feeds(8, 8)["x"], 3)
    np.testing.assert_array_equal(
        dropped(step_of(one(opset=opset), dropout="train"), feeds(8, 8)["x"], 3), expected
    )


def test_a_ratio_in_an_attribute_and_none_at_all() -> None:
    text = ONE.replace("(h, ratio, on)", "<ratio = 0.3> (h)").replace("y, mask", "y") % (10, 0.3, 0)
    text = text.replace("keepdims = 0> (z)", "axes = [0, 1], keepdims = 0> (z)")
    expected = dropped(step_of(one(), dropout="train"), feeds(8, 8)["x"], 3)
    found = dropped(step_of(onnx.parser.parse_model(text), dropout="train"), feeds(8, 8)["x"], 3)
    np.testing.assert_array_equal(found, expected)
    bare = onnx.parser.parse_model(ONE.replace("(h, ratio, on)", "(h)") % (18, 0.3, 0))
    y = dropped(step_of(bare, dropout="train"), np.ones((64, 64), np.float32), 3)
    assert set(np.unique(y).tolist()) == {0.0, 2.0}


def test_a_mask_that_is_read_is_the_mask() -> None:
    text = ONE.replace("z = Mul (y, t)", "m = Cast <to = 1> (mask)  z = Mul (m, y)") % (18, 0.3, 0)
    step = step_of(onnx.parser.parse_model(text), dropout="train")
    data = feeds(16, 16)
    y = dropped(step, data["x"], seed_of(0, 1))
    loss = GraphEngine(step).run(data, 1, 0.1).loss
    np.testing.assert_allclose(loss, y.sum(), rtol=1e-4, atol=1e-3)


def test_a_ratio_that_an_input_gives() -> None:
    text = ONE.replace("float[N, K] t)", "float[N, K] t, float ratio)") % (18, 0.3, 0)
    text = text.replace(", float ratio = {0.3}", "")
    step = step_of(onnx.parser.parse_model(text), dropout="train")
    data = feeds(64, 64)
    x = data["x"]
    for ratio in (0.0, 0.3, 1.0):
        found = GraphEngine(step).run({**data, "ratio": np.array(ratio, np.float32)}, 1, 0.1).loss
        if ratio == 0.3:
            y = dropped(step_of(one(), dropout="train"), x, seed_of(0, 1))
            np.testing.assert_allclose(found, (y * data["t"]).sum(), rtol=1e-3)
        else:
            np.testing.assert_allclose(found, (1 - ratio) * (x * data["t"]).sum(), rtol=1e-4)


def test_a_mode_that_an_input_gives() -> None:
    text = ONE.replace("float[N, K] t)", "float[N, K] t, bool on)") % (18, 0.3, 0)
    model = onnx.parser.parse_model(text.replace(", bool on = {0}", ""))
    data = {**feeds(16, 16), "on": np.array(True)}
    total = (data["x"] * data["t"]).sum()
    left = step_of(model)
    assert "no seed repeats" in left.notes[0]
    off, on = step_of(model, dropout="off"), step_of(model, dropout="train")
    assert off.notes == ()
    np.testing.assert_allclose(GraphEngine(off).run(data, 1, 0.1).loss, total, rtol=1e-4)
    assert on.notes == ("1 Dropout in training",)
    found = [GraphEngine(on).run(data, 1, 0.1).loss for _ in range(2)]
    assert found[0] == found[1]
    for step in (left, off, on):
        assert Trainer(step, 0.1).evaluate([data])["loss"] == pytest.approx(total, rel=1e-4)


def test_everything_and_nothing_dropped() -> None:
    data = feeds(8, 8)
    total = (data["x"] * data["t"]).sum()
    for ratio, expected in ((0.0, total), (1.0, 0.0)):
        loss = GraphEngine(step_of(one(ratio), dropout="train")).run(data, 1, 0.1).loss
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_layers_and_steps_differ_and_runs_do_not() -> None:
    middle = "d1 = Dropout (f, ratio) d2 = Dropout (d1, ratio)  f2 = Dropout (d2, ratio)"
    step = training_step(network(middle), CrossEntropy(), SGD(), dropout="train")
    model = to_proto(step.train, weights=True)
    masks = [v.name for b in step.train.main.walk() for v in b.outputs if v and v.dtype == 9]
    masks = [name for name in masks if name.startswith("reshape")]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(m, 9, None) for m in masks)
    batch = batches(1)[0]
    more = {"step": np.array(1), "learning_rate": np.float32(0.1).reshape(())}

    def drawn(seed: int) -> Any:
        given = {**batch, **step.initial, **more, "seed": np.array(seed)}
        return np.stack(list(run(model, given, outputs=masks).values()))

    first, second = drawn(1), drawn(2)
    assert first.dtype == bool
    assert first.shape == (3, 8, 180)
    np.testing.assert_array_equal(first, drawn(1))
    for a, b in ((first[0], first[1]), (first[1], first[2]), (first[0], second[0])):
        both = (~a & ~b).mean()
        assert abs(both - 1 / 16) < 6 * np.sqrt(1 / 16 / a.size)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_run_taken_up_again_ends_with_the_same_bytes(
    engine: EngineName, accumulate: int, tmp_path: Path
) -> None:
    def trainer(seed: int) -> Trainer:
        step = training_step(
            network(DROPOUT), CrossEntropy(), SGD(momentum=0.9), dropout="train",
            batch_norm="train", accumulate=accumulate,
        )  # fmt: skip
        return Trainer(step, 0.05, engine=engine, threads=1, seed=seed)

    data = batches(6)
    whole = trainer(4)
    for batch in data:
        whole.step(batch)
    begun = trainer(4)
    for batch in data[:3]:
        begun.step(batch)
    begun.save(tmp_path / "state")
    rest = trainer(0)
    rest.restore(tmp_path / "state")
    for batch in data[3:]:
        rest.step(batch)
    other = trainer(5)
    for batch in data:
        other.step(batch)
    for name, value in whole.weights.items():
        assert value.tobytes() == rest.weights[name].tobytes()
    assert (whole.weights["fc_w"] != other.weights["fc_w"]).any()


def test_both_engines_drop_the_same() -> None:
    step = training_step(network(DROPOUT), CrossEntropy(), SGD(), dropout="train")
    losses = [
        [Trainer(step, 0.05, engine=engine, seed=3).step(b) for b in batches(1)]
        for engine in ("graph", "blocks")
    ]
    assert losses[0] == losses[1]


def test_micro_batches_have_masks_of_their_own() -> None:
    step = step_of(one(), dropout="train", accumulate=2)
    engine, data = GraphEngine(step), feeds(16, 16)
    losses = []
    for number in (1, 2):
        for engine.part in (0, 1):
            losses.append(engine.run(data, number, 0.0).loss)
    assert len(set(losses)) == 4


@pytest.mark.parametrize("checkpoint", ["auto", ["n", "f2"], ["g", "e"]])
def test_a_recomputed_segment_drops_the_same_again(checkpoint: Any) -> None:
    middle = "g = Sigmoid (f) d = Dropout (g, ratio) e = Tanh (d)  f2 = Dropout (e, ratio)"
    found = []
    for choice in (None, checkpoint):
        step = training_step(
            network(middle), CrossEntropy(), SGD(), dropout="train", checkpoint=choice
        )
        trainer = Trainer(step, 0.05, engine="graph", threads=1)
        found.append(([trainer.step(b) for b in batches(5)], trainer.weights["conv_w"]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)


def test_half_precision_is_scaled_in_its_own() -> None:
    model = one()
    for v in (*model.graph.input, *model.graph.output):
        v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float16), "w"))
    step = step_of(model, dropout="train")
    x = feeds(8, 8)["x"].astype(np.float16)
    y = dropped(step, x, 3)
    np.testing.assert_array_equal(
        y != 0, dropped(step_of(one(), dropout="train"), feeds(8, 8)["x"], 3) != 0
    )
    np.testing.assert_allclose(y[y != 0], x[y != 0] / 0.7, rtol=2e-3)


def test_the_original_is_exported_with_its_dropout() -> None:
    model = network(DROPOUT)
    trainer = Trainer(training_step(model, CrossEntropy(), SGD(), dropout="train"), 0.1)
    trainer.step(batches(1)[0])
    written = trainer.export(model)
    assert written.graph.node == model.graph.node
    assert written.graph.input == model.graph.input
    after = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    np.testing.assert_array_equal(after["fc_w"], trainer.weights["fc_w"])


@pytest.mark.parametrize("given", [1, 1.0, -0.1, True, "on", float("nan")])
def test_what_no_ratio_is(given: Any) -> None:
    words = "dropout must be one of off, train or a number, from 0 to below 1, not"
    with pytest.raises(InputError, match=words):
        training_step(network(DROPOUT), dropout=given)


def test_a_seed_out_of_range() -> None:
    with pytest.raises(InputError, match="seed must be from 0"):
        seed_of(-1, 1)
