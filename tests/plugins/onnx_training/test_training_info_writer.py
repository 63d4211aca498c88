"""A step inside of the model as the standard has it, and back: the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save
from onnxgrad.plugins.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.plugins.onnx_training.training_info_writer import KEY, names_of, with_training_info
from onnxgrad.train import (
    SGD,
    AdamW,
    CrossEntropy,
    Optimizer,
    SequenceCrossEntropy,
    Trainer,
    TrainingStep,
    training_step,
)
from onnxgrad.train.engines.blocks import fits
from onnxgrad.train.optimizers import Adafactor
from onnxgrad.train.schedules import Linear
from onnxgrad.verify.running.session import run
from tests.helpers import MODELS_DIR, parse
from tests.train.common import classifier, examples, step
from tests.train.parallel_runs import language, padded


def combined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The training graph of a file, by the words of onnx.proto."""
    both = onnx.ModelProto()
    both.CopyFrom(model)
    del both.training_info[:]
    (info,) = model.training_info
    for field in ("input", "initializer", "output", "node", "value_info", "sparse_initializer"):
        getattr(both.graph, field).extend(getattr(info.algorithm, field))
    return both


def is_by_the_standard(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    both = combined(model)
    onnx.checker.check_model(both, full_check=True)
    (info,) = model.training_info
    held = {t.name for t in both.graph.initializer}
    assert len(held) == len(both.graph.initializer)
    keys = [e.key for e in info.update_binding]
    assert len(set(keys)) == len(keys) and set(keys) <= held
    assert {e.value for e in info.update_binding} <= {v.name for v in both.graph.output}
    names = [n.name for n in both.graph.node if n.name]
    assert len(set(names)) == len(names)
    inference = names_of(model.graph)
    assert not inference & {name for n in info.algorithm.node for name in n.output}
    if info.initialization.node:
        alone = onnx.ModelProto()
        alone.CopyFrom(both)
        alone.graph.CopyFrom(info.initialization)
        onnx.checker.check_model(alone, full_check=True)
        found = run(alone, {})
        tensors = {t.name: numpy_helper.to_array(t) for t in both.graph.initializer}
        for entry in info.initialization_binding:
            np.testing.assert_array_equal(found[entry.value], tensors[entry.key])


def curve(made: TrainingStep, batches: Any, **options: Any) -> list[float]:
    trainer = Trainer(made, threads=1, **options)
    return trainer.fit(batches).losses


def ten() -> list[dict[str, Any]]:
    return [examples(16, i) for i in range(10)]


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01), SGD(lr=0.1, momentum=0.9), Adafactor()])
def test_there_and_back(optimizer: Optimizer, tmp_path: Path) -> None:
    made = step(optimizer)
    save(with_training_info(load(classifier()), made), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    is_by_the_standard(model)
    back = step_from_training_info(tmp_path / "model.onnx")
    assert back.manifest.to_json() == made.manifest.to_json()
    assert {name: a.tobytes() for name, a in back.initial.items()} == {
        name: a.tobytes() for name, a in made.initial.items()
    }
    for engine in ("graph", "blocks") if fits(made) else ("graph",):
        wanted = curve(made, ten(), engine=engine)
        assert curve(back, ten(), engine=engine) == wanted


def test_it_returns_the_kind_that_it_was_given(tmp_path: Path) -> None:
    made, model = step(), classifier()
    onnx.save(model, tmp_path / "m.onnx")
    assert isinstance(with_training_info(load(model), made), Program)
    of = [model, model.SerializeToString(), tmp_path / "m.onnx"]
    first, *others = [with_training_info(original, made) for original in of]
    assert isinstance(first, onnx.ModelProto) and not model.training_info
    assert len(first.training_info) == 1 and others == [first, first]


def test_notes_of_exporters_stay_in_the_model(tmp_path: Path) -> None:
    model = classifier()
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home/somebody")
    found = with_training_info(model, training_step(model, CrossEntropy(), SGD(lr=0.1)))
    assert b"somebody" in found.graph.SerializeToString()
    assert b"somebody" not in found.training_info[0].SerializeToString()


@pytest.mark.parametrize("kind", [gs.import_onnx, onnx_ir.from_proto])
def test_a_graph_that_cannot_hold_it_becomes_a_model(kind: Any) -> None:
    graph = kind(classifier())
    found = with_training_info(graph, training_step(graph, CrossEntropy(), SGD(lr=0.1)))
    assert isinstance(found, onnx.ModelProto) and len(found.training_info) == 1


def test_the_model_stays_and_its_forward_part_is_there_once() -> None:
    model = with_training_info(classifier(), step())
    original = classifier()
    assert model.graph == original.graph
    x = examples(5)["x"]
    np.testing.assert_array_equal(run(model, {"x": x})["logits"], run(original, {"x": x})["logits"])
    (info,) = model.training_info
    own = {name for node in info.algorithm.node for name in node.input}
    assert {"logits", "h2", "x", "w2"} <= own
    assert [v.name for v in info.algorithm.input] == ["labels", "learning_rate"]


def test_a_step_of_the_file_by_its_own_words() -> None:
    """One update by hand: run the combined graph, and move values as update_binding says."""
    made = step(SGD(lr=0.1, momentum=0.9))
    model = with_training_info(classifier(), made)
    both, losses = combined(model), []
    for batch in ten():
        found = run(both, batch)
        losses.append(float(found["loss"]))
        tensors = {t.name: t for t in both.graph.initializer}
        for entry in model.training_info[0].update_binding:
            tensors[entry.key].CopyFrom(numpy_helper.from_array(found[entry.value], entry.key))
    assert losses == pytest.approx(curve(made, ten(), engine="graph"), abs=1e-7)
    assert int(numpy_helper.to_array(tensors["step"])) == 11


def test_options_of_a_step() -> None:
    made = training_step(
        classifier(), CrossEntropy(), SGD(momentum=0.9), metrics=["logits", "gradient_norm"],
        clip_norm=0.5, average=0.9, groups={"b*": {"lr": 0.01}}, schedule=Linear(0.1, total_iters=5),
    )  # fmt: skip
    model = with_training_info(classifier(), made)
    is_by_the_standard(model)
    back = step_from_training_info(model)
    assert back.manifest.to_json() == made.manifest.to_json()
    assert curve(back, ten(), engine="graph") == curve(made, ten(), engine="graph")


def test_half_precision_keeps_its_master_weights() -> None:
    model = language()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    made = training_step(model, SequenceCrossEntropy(), AdamW(lr=0.01))
    file = with_training_info(model, made)
    is_by_the_standard(file)
    reset = {e.key for e in file.training_info[0].initialization_binding}
    assert "head.exp_avg" in reset and not any("master" in name for name in reset)
    batches = [padded(5, i) for i in range(10)]
    assert curve(step_from_training_info(file), batches) == curve(made, batches)


def test_the_held_out_loss_is_that_of_all_labels() -> None:
    """Batches of 5 and 2 labels of 16, the others ignored: no mean over batches."""
    made = training_step(classifier(), CrossEntropy(ignore_index=9), SGD(lr=0.1))
    back = step_from_training_info(with_training_info(classifier(), made))
    data = examples(32)
    data["labels"][5:16] = data["labels"][18:] = 9
    wanted = Trainer(made).evaluate(data, batch_size=32)
    for size in (16, 32):
        assert Trainer(back).evaluate(data, batch_size=size)["loss"] == pytest.approx(
            wanted["loss"], rel=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "resnet18"])
def test_real_models(name: str) -> None:
    path = MODELS_DIR / "training" / f"{name}.onnx"
    made = training_step(path, "loss", SGD(lr=0.01))
    file = with_training_info(path, made)
    is_by_the_standard(file)
    (info,) = file.training_info
    assert file.graph == load(path).proto.graph
    # the forward part is there once, but for nodes of which the gradient wants one result more
    forward, whole = len(file.graph.node), len(made.train.main.bindings)
    assert len(info.algorithm.node) < whole - forward + 20
    back = step_from_training_info(file)
    assert back.manifest.to_json() == made.manifest.to_json()


FUNCTION = """
<ir_version: 10, opset_import: ["": 18, "own": 1]>
g (float[N, 3] x) => (float[N, 3] y) { h = own.Twice (x)  y = Mul (h, w) }
<domain: "own", opset_import: ["": 18]>
Twice (a) => (b) { b = Add (a, a) }
"""


@pytest.mark.parametrize(
    "text",
    [
        FUNCTION,
        """<ir_version: 10, opset_import: ["": 18]>
g (float[N, 3] x, bool c) => (float[N, 3] y) {
  h = Mul (x, w)
  y = If (c) <then_branch = t () => (float[N, 3] a) { a = Tanh (h) },
              else_branch = e () => (float[N, 3] b) { b = Relu (h) }>
}""",
        """<ir_version: 10, opset_import: ["": 18]>
g (float[N, 3] x, bool c) => (float[N, 3] y) {
  h = Mul (x, w)
  y = If (c) <then_branch = t () => (float[N, 3] a) <float[3] v = {1, 2, 3}> { a = Mul (h, v) },
              else_branch = e () => (float[N, 3] b) { b = Relu (h) }>
}""",
        """<ir_version: 8, opset_import: ["": 11]>
g (float[N, 3] x) => (float[N, 3] y) { h = Mul (x, w)  y = Softmax <axis = 1> (h) }""",
    ],
    ids=["function", "branches", "weight inside", "old"],
)
def test_kinds_of_models(text: str) -> None:
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, -2, 0.5]), "w"))
    made = training_step(model, "mse", SGD(lr=0.1), ["w", "v"] if "float[3] v" in text else "w")
    file = with_training_info(model, made)
    is_by_the_standard(file)
    rng = np.random.default_rng(0)
    batches: list[dict[str, Any]] = [
        {name: rng.standard_normal((4, 3), np.float32) for name in ("x", "target")}
        for _ in range(10)
    ]
    if "bool c" in text:
        batches = [{**b, "c": np.asarray(i % 2 == 0)} for i, b in enumerate(batches)]
    assert curve(step_from_training_info(file), batches) == curve(made, batches)


def test_weights_in_a_file_beside(tmp_path: Path) -> None:
    model = classifier()
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    made = training_step(tmp_path / "m.onnx", CrossEntropy(), SGD(lr=0.1))
    (tmp_path / "out").mkdir()
    save(with_training_info(load(tmp_path / "m.onnx"), made), tmp_path / "out" / "t.onnx")
    back = step_from_training_info(tmp_path / "out" / "t.onnx")
    assert curve(back, ten()) == curve(made, ten())


def test_a_second_step_replaces_the_first() -> None:
    once = with_training_info(classifier(), step())
    made = training_step(once, CrossEntropy(), SGD(lr=0.1))
    twice = with_training_info(once, made)
    assert len(twice.training_info) == 1 and [e.key for e in twice.metadata_props].count(KEY) == 1
    assert curve(step_from_training_info(twice), ten()) == curve(made, ten())


def test_what_is_refused() -> None:
    other = classifier()
    other.graph.node[2].op_type = "Tanh"
    with pytest.raises(InputError, match="from another model"):
        with_training_info(other, step())
    micro = training_step(classifier(), CrossEntropy(), accumulate=2)
    with pytest.raises(InputError, match="accumulate=1"):
        with_training_info(classifier(), micro)
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, 3] y) { h = Mul (x, w)  y = Dropout (h) }'
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, -2, 0.5]), "w"))
    with pytest.raises(InputError, match="cannot express a loss that differs"):
        with_training_info(model, training_step(model, "mse", dropout="train"))
