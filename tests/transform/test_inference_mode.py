"""A file in training mode becomes one for inference: by `edit`, by `fit` and by `Trainer.export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from onnxgrad.train import Trainer, training_step
from onnxgrad.train.evaluation import Shown
from onnxgrad.transform import inference_mode
from onnxgrad.transform.inference_mode import described, in_training_mode
from onnxgrad.verify.running.session import run

NODES = {
    15: "n, rm, rv = BatchNormalization <training_mode = 1> (h, s, o, mu, va) d = Dropout (n, ratio, t)",
    13: "n, rm, rv, sm, sv = BatchNormalization (h, s, o, mu, va) d, mask = Dropout (n, ratio, t)",
    # the switch is a constant of a node, and the mask is read
    14: "yes = Constant <value = bool {1}> () n, rm, rv = BatchNormalization <training_mode = 1> (h, s, o, mu, va) "
    "e, mask = Dropout (n, ratio, yes) d = Where (mask, e, e)",
}


def in_training(opset: int, more: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,4] x) => (float[N,2] logits{more}) '
        f"{{ h = Gemm (x, w1, b1) {NODES[opset]} logits = Gemm (d, w2, b2) old = Identity (rm) }}"
    )
    rng = np.random.default_rng(0)
    values = {
        "w1": rng.normal(0, 0.5, (4, 8)), "b1": np.zeros(8), "w2": rng.normal(0, 0.5, (8, 2)),
        "b2": np.zeros(2), "s": np.ones(8), "o": np.zeros(8), "mu": np.full(8, 0.3),
        "va": np.full(8, 2.0), "ratio": np.array(0.5),
    }  # fmt: skip
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "t"))
    return model


def rows(count: int = 64) -> dict[str, Any]:
    x = np.random.default_rng(1).normal(2, 1, (count, 4)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] > 2).astype(np.int64)}


def alone(model: Any, x: Any) -> Any:
    return np.concatenate([np.asarray(run(model, {"x": row[None]})["logits"]) for row in x[:12]])


@pytest.mark.covering
@pytest.mark.parametrize("outputs", [", float[8] rm, float[8] old", ""])
@pytest.mark.parametrize("opset", NODES)
def test_edit_switches_a_file_and_drops_running_statistics(opset: int, outputs: str) -> None:
    model = in_training(opset, outputs)
    assert described(in_training_mode(model)) == "1 BatchNormalization and 1 Dropout"
    made = onnxgrad.edit(model, mode="inference")
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.output] == ["logits"]
    assert not in_training_mode(made)
    # the nodes stay, what only their switch read goes
    assert {"BatchNormalization", "Dropout"} <= {n.op_type for n in made.graph.node}
    read = {name for n in made.graph.node for name in n.input}
    assert ("t" in {t.name for t in made.graph.initializer}) is (opset == 14) and "yes" not in read
    x = rows(12)["x"]
    np.testing.assert_allclose(alone(made, x), run(made, {"x": x})["logits"], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="no BatchNormalization and no Dropout"):
        onnxgrad.edit(made, mode="inference")


@pytest.mark.covering
@pytest.mark.parametrize("opset", NODES)
@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("batch_norm", ["train", "frozen", None])
def test_the_exported_file_computes_what_was_evaluated(
    tmp_path: Path, opset: int, validation: bool, batch_norm: Any
) -> None:
    onnx.save(in_training(opset), tmp_path / "m.onnx")
    trainer = Trainer(
        training_step(
            tmp_path / "m.onnx", "cross_entropy", "adam{lr=0.05}", batch_norm=batch_norm,
            dropout="train",
        ),
        threads=1,
    )  # fmt: skip
    trainer.fit(rows(), epochs=3, validation=rows(40) if validation else None)
    trainer.export(tmp_path / "m.onnx", tmp_path / "o.onnx")
    expected = trainer.predict(rows())["logits"]
    largest = np.abs(expected).max()
    np.testing.assert_allclose(
        alone(tmp_path / "o.onnx", rows()["x"]), expected[:12], rtol=0, atol=1e-6 * largest
    )
    trainer.export(tmp_path / "m.onnx", tmp_path / "k.onnx", keep_training_mode=True)
    assert in_training_mode(onnx.load(tmp_path / "k.onnx")).keys() == {
        "BatchNormalization",
        "Dropout",
    }
    # the nodes can be trained again, and a note says how
    again = training_step(tmp_path / "o.onnx", "cross_entropy", batch_norm="train", dropout="train")
    assert again.manifest.running() and again.manifest.of_role("seed")
    assert "switched to inference after its training" in again.notes[0]
    assert not any(
        "switched" in n for n in training_step(tmp_path / "k.onnx", "cross_entropy").notes
    )


def test_fit_says_what_it_switched(tmp_path: Path) -> None:
    done = onnxgrad.fit(in_training(15), rows(), "cross_entropy", epochs=1, report=True)
    assert not in_training_mode(done.model)
    note = "1 BatchNormalization and 1 Dropout switched to inference in the trained model"
    assert note in done.notes[-1] and "keep_training_mode=True" in done.notes[-1]
    kept = onnxgrad.fit(in_training(15), rows(), "cross_entropy", keep_training_mode=True)
    assert in_training_mode(kept)
    plain = onnxgrad.edit(in_training(15), mode="inference")
    done = onnxgrad.fit(plain, rows(), "cross_entropy", report=True)
    assert not any("switched" in note for note in done.notes)


@pytest.mark.parametrize("free", [(), ("w1",)])
def test_a_wrong_switch_is_refused(monkeypatch: pytest.MonkeyPatch, free: tuple[str, ...]) -> None:
    """Beside a freed weight, too: the reference switches by other rules."""
    switch = inference_mode._switch

    def exchanged(node: Any, version: int) -> dict[str, str]:
        found = switch(node, version)
        if node.op_type == "BatchNormalization":
            node.input[3], node.input[4] = node.input[4], node.input[3]
        return found

    monkeypatch.setattr(inference_mode, "_switch", exchanged)
    with pytest.raises(NotProved):
        onnxgrad.edit(in_training(15), mode="inference", free=free)


def test_the_preset_for_inference_switches() -> None:
    """Before its passes; other presets, and passes by name, leave the mode as it is."""
    model = in_training(15, ", float[8] rm, float[8] old")
    made = onnxgrad.optimize(model, preset="inference", before={"rename": {"logits": "scores"}})
    assert [v.name for v in made.graph.output] == ["scores"]
    assert [n.op_type for n in made.graph.node] == ["Gemm", "Gemm"]
    expected = run(onnxgrad.edit(model, mode="inference"), {"x": rows(9)["x"]})["logits"]
    np.testing.assert_allclose(run(made, {"x": rows(9)["x"]})["scores"], expected, atol=1e-5)
    for other in ({}, {"passes": "remove-unused"}):
        kept = onnxgrad.optimize(model, **other)
        assert in_training_mode(kept) and len(kept.graph.output) == 3


def test_a_model_that_draws_is_written_with_a_note(tmp_path: Path) -> None:
    """PyTorch's exporter writes a Dropout2d as a draw: no two runs are equal, so none are compared."""
    model = in_training(15)
    logits = model.graph.node[-2]
    logits.output[0] = "sure"
    model.graph.node.append(onnx.helper.make_node("RandomUniformLike", ["sure"], ["u"]))
    model.graph.node.append(onnx.helper.make_node("Mul", ["sure", "u"], ["logits"]))
    step = training_step(model, "cross_entropy")
    assert "1 node of the model draws random numbers, in evaluation" in step.notes[-1]
    trainer = Trainer(step, threads=1)
    trainer.fit(rows(), epochs=1, validation=rows())
    trainer.predict(rows())
    assert not in_training_mode(trainer.export(model))


def test_another_result_is_not_written() -> None:
    import onnxruntime as ort

    made = onnxgrad.edit(in_training(15), mode="inference")
    session = ort.InferenceSession(made.SerializeToString())
    x = rows(8)["x"]
    good = session.run(["logits"], {"x": x})[0]
    Shown({"x": x}, {"logits": good}).check(session)
    with pytest.raises(NotProved, match="does not compute what was evaluated: 'logits' differs"):
        Shown({"x": x}, {"logits": good + np.float32(0.01)}).check(session)
    for wrong in (np.where(good == good.max(), np.float32(np.nan), good), good[:4]):
        with pytest.raises(NotProved, match="does not compute what was evaluated: 'logits' "):
            Shown({"x": x}, {"logits": wrong}).check(session)


def test_functions_and_statistics_inside() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15, "own" : 1]>
        g (float[N,3] x) => (float[N,3] y, float[3] m) { y, m = own.bn (x, s, o, mu, va) }
        <domain: "own", opset_import: ["" : 15]>
        bn (x, s, o, mu, va) => (y, m) { y, m, v = BatchNormalization <training_mode = 1> (x, s, o, mu, va) }"""
    )
    for name in ("s", "o", "mu", "va"):
        model.graph.initializer.append(numpy_helper.from_array(np.full(3, 2, np.float32), name))
    made = onnxgrad.edit(model, mode="inference", verify=False)
    found = run(made, {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_allclose(found["m"], [2, 2, 2])
    np.testing.assert_allclose(
        found["y"], 2 * (1 - 2) / np.sqrt(2 + 1e-5) + 2 + np.zeros((1, 3)), rtol=1e-6
    )
