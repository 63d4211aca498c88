"""A folder holds one step, whole; what is damaged or of another step is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import SGD, CrossEntropy, Manifest, Trainer, training_step
from onnxgrad.train.manifest import KEYS, SCHEMA
from onnxgrad.train.step_folder import (
    DEPLOYED,
    VECTOR,
    VECTORS,
    opened_step,
    read_step,
    save_step,
    seal_step,
)
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.common import classifier, examples, step
from tests.train.follower import Follower


def test_it_comes_back(tmp_path: Path) -> None:
    task = step()
    save_step(task, tmp_path / "new" / "folder")
    again = read_step(tmp_path / "new" / "folder")
    assert again.manifest == Manifest.from_json(task.manifest.to_json())
    assert to_proto(again.train) == to_proto(task.train)
    assert to_proto(again.evaluation) == to_proto(task.evaluation)
    assert all(np.array_equal(value, again.initial[name]) for name, value in task.initial.items())
    for name in ("train.onnx", "eval.onnx"):
        onnx.checker.check_model(tmp_path / "new" / "folder" / name, full_check=True)


def test_large_frozen_weights_stay_in_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxgrad.ir.load.LARGE_FILE", 1 << 18)
    monkeypatch.setattr("onnxgrad.train.step_folder.LARGE_FILE", 1 << 18)
    model = parse(
        "g (float[N,4] x) => (float[N,3] logits) { h = MatMul (x, frozen) logits = MatMul (h, w) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("frozen", (4, 1 << 15)), ("w", (1 << 15, 3))):
        value = rng.standard_normal(shape).astype(np.float32) / 100
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    task = training_step(model, CrossEntropy("logits"), SGD(0.1), ["w"])
    save_step(task, tmp_path / "step")
    again = read_step(tmp_path / "step")
    for program in (again.train, again.evaluation):
        frozen = program.main.initializers["frozen"].initializer
        assert frozen is not None and not frozen.raw_data
    batch = {"x": rng.standard_normal((5, 4)).astype(np.float32), "labels": np.arange(5) % 3}
    inside, outside = Trainer(task, threads=1), Trainer(tmp_path / "step", threads=1)
    losses = [(inside.step(batch), outside.step(batch)) for _ in range(3)]
    assert losses == [(a, a) for a, _ in losses] and len(set(losses)) == 3
    before = {f.name: f.read_bytes() for f in (tmp_path / "step").iterdir()}
    save_step(again, tmp_path / "other")
    assert {f.name: f.read_bytes() for f in (tmp_path / "other").iterdir()} == before


def test_the_manifest_says_what_feeds_what(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    said = json.loads((tmp_path / "manifest.json").read_text())
    assert said["format"] == "onnxgrad training step"
    assert said["version"] == 3
    graph = onnx.load(tmp_path / "train.onnx").graph
    feds = [fed for feds in said["inputs"].values() for fed in feds]
    assert {fed["name"] for fed in feds} == {v.name for v in graph.input}
    assert {fed["next"] for fed in feds if "next" in fed} <= {v.name for v in graph.output}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 4}, "of version 4, this onnxgrad reads version 3: install a newer one"),
        ({"version": 2}, "of version 2, this onnxgrad reads version 3: build the step again"),
        ({"format": "cake"}, "not the manifest of a training step"),
        ({"inputs": {"batch": [{"name": "x"}]}}, "damaged"),
        ({"inputs": {"bach": []}}, "'bach' is unknown"),
        ({"clip_norm": None}, "'clip_norm' is null: leave the key out"),
        ({"more": 1}, "damaged"),
    ],
)
def test_a_manifest_that_cannot_be(tmp_path: Path, change: dict[str, object], words: str) -> None:
    save_step(step(), tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=words):
        read_step(tmp_path)


def test_states_of_zeros_are_not_stored(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    with safetensors_file.opened(tmp_path / "state.safetensors") as stored:
        assert sorted(stored) == ["b1", "b2", "w1", "w2"]
    read = json.loads((tmp_path / "manifest.json").read_text())["inputs"]
    assert all(fed["zeros"] for fed in read["state"])
    assert not any("zeros" in fed for fed in read["parameter"])
    begun = Trainer(tmp_path)
    losses = [begun.step(examples(8)) for _ in range(3)]
    begun.save(tmp_path / "later")
    assert losses == [Trainer(step()).step(examples(8)), *losses[1:]]
    # a checkpoint is complete
    arrays, words = safetensors_file.read(tmp_path / "later")
    del arrays["w1.exp_avg"]
    safetensors_file.write(tmp_path / "later", arrays, words)
    with pytest.raises(InputError, match=r"lacks 'w1\.exp_avg'"):
        Trainer(tmp_path).restore(tmp_path / "later")


def test_the_model_predicts_with_weights_from_the_state(tmp_path: Path) -> None:
    """Without labels, with the weights of any checkpoint: as the exported model."""
    save_step(step(), tmp_path)
    trainer = Trainer(tmp_path)
    for _ in range(3):
        trainer.step(examples(8))
    graph = onnx.load(tmp_path / "predict.onnx")
    assert {v.name for v in graph.graph.input} == {"x", *trainer.parameters}
    assert [v.name for v in graph.graph.output] == ["logits"]
    x = {"x": examples(4)["x"]}
    found = run(graph, {**x, **trainer.parameters})["logits"]
    exported = run(trainer.export(classifier()), x)["logits"]
    np.testing.assert_allclose(found, exported, rtol=0, atol=1e-6)


def test_frozen_weights_beside_the_graphs_are_written_once_for_both(tmp_path: Path) -> None:
    """All graphs read the external data of train.onnx, in a graph with nested graphs too."""
    text = """(float[N, 8] x, bool f) => (float[N, 8] logits) { h = MatMul (x, w)  b = If (f) <
        then_branch = g () => (float[N, 8] p) { p = MatMul (h, frozen) },
        else_branch = e () => (float[N, 8] q) { q = Relu (h) }>  logits = Tanh (b) }"""
    model = parse("g " + text)
    rng = np.random.default_rng(0)
    for name in ("w", "frozen"):
        value = (0.3 * rng.standard_normal((8, 8))).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 16}
    onnx.save(copy_of(model), tmp_path / "m.onnx", **options)
    save_step(training_step(tmp_path / "m.onnx", CrossEntropy(), SGD(), wrt="w"), tmp_path / "st")
    data = sorted(path.name.partition(".")[0] for path in (tmp_path / "st").glob("*.data"))
    assert data == ["train"]
    trainer = Trainer(tmp_path / "st")
    x = examples(4)["x"]
    graph = onnx.load(tmp_path / "st" / "predict.onnx")
    assert [v.name for v in graph.graph.input] == ["x", "f", "w"]
    for f in (np.array(True), np.array(False)):
        trainer.step({"x": x, "f": f, "labels": np.arange(4)})
        found = run(graph, {"x": x, "f": f, **trainer.parameters})["logits"]
        wanted = run(trainer.export(model), {"x": x, "f": f})["logits"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_model_that_returns_only_its_loss_predicts_nothing(tmp_path: Path) -> None:
    text = """g (float[N, 8] x, float[N] y) => (float loss) {
        h = MatMul (x, w)  d = Sub (h, y)  s = Mul (d, d)  loss = ReduceMean <keepdims = 0> (s)
    }"""
    model = parse(text)
    weight = numpy_helper.from_array(np.ones(8, np.float32), "w")
    model.graph.initializer.append(weight)
    save_step(training_step(model), tmp_path)
    assert not (tmp_path / "predict.onnx").exists()
    assert read_step(tmp_path).manifest.predict is None


def test_another_graph_does_not_predict(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    (tmp_path / "predict.onnx").write_bytes((tmp_path / "train.onnx").read_bytes())
    with pytest.raises(InputError, match=r"predict\.onnx is not the file"):
        read_step(tmp_path)
    with pytest.raises(InputError, match=r"'predict': .* but reads 'learning_rate'"):
        seal_step(tmp_path)


def test_notes_of_exporters_are_left_out(tmp_path: Path) -> None:
    model = classifier()
    model.metadata_props.add(key="license", value="free")
    named = [model.graph, *model.graph.node, *model.graph.initializer, model.graph.input[0]]
    for proto in named:
        proto.doc_string = "/home/somebody/net.py(3): forward"
        proto.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home/somebody")
    model.graph.node[0].metadata_props.add(key="layer_ann", value="gpu")
    before = model.SerializeToString()
    made = training_step(model, CrossEntropy())
    save_step(made, tmp_path / "st")
    assert model.SerializeToString() == before
    for name in ("train.onnx", "eval.onnx", "predict.onnx"):
        data = (tmp_path / "st" / name).read_bytes()
        assert b"somebody" not in data and b"license" in data and b"layer_ann" in data
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    found = Trainer(tmp_path / "st").step(examples(8))
    assert found == Trainer(made).step(examples(8))


@pytest.mark.parametrize("engine", ["graph", "blocks"])
@pytest.mark.parametrize("name", ["plain", "full"])
def test_the_shipped_vectors_are_met(name: str, engine: Any) -> None:
    folder = VECTORS / name
    vector, _ = safetensors_file.read(folder / VECTOR)
    batches = {k.removeprefix("batch."): a for k, a in vector.items() if k.startswith("batch.")}
    rate, seed = float(vector["rate"]), int(vector["seed"])
    trainer = Trainer(folder, rate=rate, seed=seed, engine=engine)
    parts = [{k: a[i] for k, a in batches.items()} for i in range(len(batches["x"]))]
    found = trainer.fit(parts, steps=10).losses
    np.testing.assert_allclose(found, vector["losses"], rtol=0, atol=1e-5)
    assert trainer.evaluate(parts)["loss"] == pytest.approx(float(vector["held_out"]), abs=1e-5)
    outputs = run(onnx.load(folder / "predict.onnx"), {"x": batches["x"][0], **trainer.weights})
    np.testing.assert_allclose(outputs["logits"], vector["output.logits"], rtol=0, atol=1e-5)


def test_the_vectors_have_what_a_client_must_know() -> None:
    """Each part of the loop: with another seed, without zeros, an update or ignored labels it fails."""
    read = {name: read_step(VECTORS / name).manifest for name in ("plain", "full")}
    roles = {fed.role for manifest in read.values() for fed in manifest.inputs}
    assert roles == set(KEYS) - {"average", "scaling"}
    assert read["full"].accumulate == 2 and read["full"].update is not None
    labels, _ = safetensors_file.read(VECTORS / "full" / VECTOR)
    assert (labels["batch.labels"] == -100).any() and int(labels["seed"]) > 0
    assert (VECTORS / "plain" / "train.onnx").stat().st_size < 4000
    for name, manifest in read.items():
        text = (VECTORS / name / "manifest.json").read_text()
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
        assert any(fed.zeros for fed in manifest.inputs)


def test_the_vectors_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train-step", "--vectors", str(tmp_path / "v")]) == 0
    read_step(tmp_path / "v" / "full")
    assert (tmp_path / "v" / SCHEMA.name).read_bytes() == SCHEMA.read_bytes()
    assert main(["train-step", "m.onnx", "--vectors", str(tmp_path)]) == 2
    assert "--vectors FOLDER makes no step" in capsys.readouterr().err


def test_a_folder_without_a_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is .* a training step"):
        read_step(tmp_path)


def test_parts_of_two_steps(tmp_path: Path) -> None:
    save_step(step(average=0.9), tmp_path / "a")
    save_step(step(SGD()), tmp_path / "b")
    (tmp_path / "a" / "state.safetensors").write_bytes(
        (tmp_path / "b" / "state.safetensors").read_bytes()
    )
    with pytest.raises(InputError, match=r"lacks 'w1\.average'"):
        read_step(tmp_path / "a")
    arrays, _ = safetensors_file.read(tmp_path / "b" / "state.safetensors")
    safetensors_file.write(tmp_path / "b" / "state.safetensors", arrays, {"model": "another"})
    with pytest.raises(InputError, match="of another model"):
        read_step(tmp_path / "b")


def test_a_step_of_two_graphs_comes_back(tmp_path: Path) -> None:
    made = step(accumulate=2, clip_norm=0.5, groups={"b*": {"weight_decay": 0.0}})
    save_step(made, tmp_path)
    found = read_step(tmp_path)
    assert found.update is not None and (tmp_path / "update.onnx").exists()
    batches = [examples(8, seed=i) for i in range(6)]
    losses = [Follower(task).losses(batches) for task in (made, found)]
    assert losses[0] == losses[1]
    (tmp_path / "update.onnx").unlink()
    with pytest.raises(InputError, match=r"update\.onnx"):
        read_step(tmp_path)


def test_an_opened_step_reads_a_value_when_it_is_asked_for(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    with opened_step(tmp_path) as found:
        again = read_step(tmp_path).initial
        assert found.initial.keys() == again.keys()
        assert found.initial["w1"] is not found.initial["w1"]
        assert all(np.array_equal(found.initial[name], value) for name, value in again.items())


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("averaged", [False, True])
def test_a_step_deploys_its_own_model(tmp_path: Path, ir_version: int, averaged: bool) -> None:
    """From its folder and from memory, with the same bytes."""
    model = onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["" : 15]> g (float[N,4] x, float[4,3] w, float[3] s) '
        "=> (float[N,3] logits, float[3] rm) { h = MatMul (x, w) "
        "logits, rm, rv = BatchNormalization <training_mode = 1> (h, s, b, s, s) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, 3), "s": (3,), "b": (3,)}.items():
        value = rng.uniform(1, 2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    if ir_version == 3:
        model.graph.input.append(onnx.helper.make_tensor_value_info("b", 1, [3]))
    step = training_step(model, "cross_entropy{output=logits}", average=0.9, batch_norm="frozen")
    save_step(step, tmp_path / "step")
    data = {"x": rng.normal(size=(8, 4)).astype(np.float32), "labels": np.arange(8) % 3}
    for name, given in {"folder": tmp_path / "step", "memory": step}.items():
        trainer = Trainer(given, threads=1, seed=0)
        trainer.fit(data, epochs=2)
        trainer.deploy(tmp_path / name, averaged=averaged)
    assert (tmp_path / "folder").read_bytes() == (tmp_path / "memory").read_bytes()
    made = onnx.load(tmp_path / "folder")
    onnx.checker.check_model(made, full_check=True)
    weights = {e.key: e.value for e in made.metadata_props}["onnxgrad.trained"]
    assert json.loads(weights) == {"weights": list(trainer.parameters), "steps": 2}
    found = run(made, {"x": data["x"]})["logits"]
    expected = trainer.predict({"x": data["x"]}, averaged=averaged)["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["plain", "full"])
def test_the_shipped_model_to_deploy(tmp_path: Path, name: str) -> None:
    Trainer(VECTORS / name, threads=1).deploy(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (VECTORS / name / DEPLOYED).read_bytes()


def test_a_step_with_nothing_but_a_loss_deploys_nothing(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N,4] x) => (float loss) '
        "<float[4] w = {1, 2, 3, 4}> { y = Mul (x, w) loss = ReduceMean <keepdims = 0> (y) }"
    )
    with pytest.raises(
        InputError, match="there is no model to write; mark its result as an output"
    ):
        Trainer(training_step(model)).deploy(tmp_path / "m.onnx")
