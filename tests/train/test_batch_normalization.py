"""BatchNormalization in training: what PyTorch's does, in any order of modules, from any form of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import SGD, CrossEntropy, Trainer, TrainingStep, training_step
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.verify.running.session import run
from onnxgrad.vocabulary import EngineName
from tests.helpers import ROOT, stored_arrays
from tests.train.modes_common import batches, network, weights

RESNET = ROOT / "models" / "training" / "resnet18_train.onnx"
# torch 2.13, 20 steps of SGD(lr=0.05, momentum=0.9) on the same weights and batches in train()
LOSSES = [
    1.628604, 2.605139, 0.759155, 4.086472, 1.384719, 3.922757, 2.226815, 1.545995, 1.768574, 2.049494,
    1.307782, 1.229397, 1.255695, 1.349225, 1.360105, 1.249789, 1.427796, 1.346079, 1.346247, 1.5457,
]  # fmt: skip
MEAN = [-1.6493242, 0.0170388, 0.3308504, 0.0496091, -0.1599687]
VARIANCE = [10.1922607, 8.0059681, 9.6913776, 3.5477633, 8.497044]
EVALUATED = 1.3215489


def trainer(engine: EngineName = "auto", **options: Any) -> Trainer:
    step = training_step(network(), CrossEntropy(), SGD(momentum=0.9), **options)
    return Trainer(step, 0.05, engine=engine)


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_twenty_steps_are_those_of_pytorch(engine: EngineName) -> None:
    found = trainer(engine, batch_norm="train")
    data = batches(21)
    losses = [found.step(batch) for batch in data[:20]]
    np.testing.assert_allclose(losses, LOSSES, atol=1e-5)
    np.testing.assert_allclose(found.weights["bn_mean"], MEAN, atol=1e-5)
    np.testing.assert_allclose(found.weights["bn_var"], VARIANCE, rtol=1e-5)
    # evaluation normalises by the statistics as they are now
    np.testing.assert_allclose(found.evaluate(data[20:])["loss"], EVALUATED, atol=1e-5)


@pytest.mark.torch
def test_the_recorded_numbers_are_those_of_pytorch() -> None:
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 5, 3, padding=1, bias=False)
            self.bn = torch.nn.BatchNorm2d(5)
            self.fc = torch.nn.Linear(180, 4)

        def forward(self, x: Any) -> Any:
            return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))

    net, given = Net(), weights()
    names = ["conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    named = dict(zip([*names, "fc.weight", "fc.bias"], given.values(), strict=True))
    net.load_state_dict({k: torch.tensor(v) for k, v in named.items()}, strict=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    data = [{k: torch.tensor(v) for k, v in batch.items()} for batch in batches(21)]
    losses = []
    for batch in data[:20]:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, LOSSES, atol=1e-5)
    np.testing.assert_allclose(net.bn.running_mean.numpy(), MEAN, atol=1e-5)
    np.testing.assert_allclose(net.bn.running_var.numpy(), VARIANCE, rtol=1e-5)
    net.eval()
    loss = torch.nn.functional.cross_entropy(net(data[20]["x"]), data[20]["labels"])
    np.testing.assert_allclose(loss.item(), EVALUATED, atol=1e-5)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_fresh_network_of_the_exporter_follows_pytorch() -> None:
    """Statistics of several layers, equal at the start, and momenta of their own."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8, momentum=0.3),
        torch.nn.Flatten(), torch.nn.Linear(288, 4), torch.nn.BatchNorm1d(4, affine=False),
    ).eval()  # fmt: skip
    exported = torch.onnx.export(
        net, (torch.zeros(8, 3, 6, 6),), dynamo=True, optimize=False, verbose=False,
        dynamic_shapes=({0: torch.export.Dim("N")},),
    )  # fmt: skip
    model = exported.model_proto
    step = training_step(model, CrossEntropy(), SGD(momentum=0.9), batch_norm="train")
    found = Trainer(step, 0.05)
    name = step.manifest.of_role("batch")[0].name
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.05, momentum=0.9)
    for batch in batches(20):
        optimizer.zero_grad()
        given = {k: torch.tensor(v) for k, v in batch.items()}
        loss = torch.nn.functional.cross_entropy(net(given["x"]), given["labels"])
        loss.backward()
        optimizer.step()
        got = found.step({name: batch["x"], "labels": batch["labels"]})
        np.testing.assert_allclose(got, loss.item(), atol=1e-5)
    running = {k: v.numpy() for k, v in net.state_dict().items() if "running" in k}
    assert {fed.name for fed in step.manifest.running()} == set(running)
    for key, value in running.items():
        np.testing.assert_allclose(found.weights[key], value, rtol=1e-5, atol=1e-5)


def first_statistics(step: TrainingStep, batch: dict[str, Any]) -> dict[str, Any]:
    """The running statistics after one step."""
    engine = GraphEngine(step)
    engine.run(batch, 1, 0.0)
    return {fed.name: engine.values[fed.name] for fed in step.manifest.running()}


def test_statistics_move_by_the_unbiased_variance() -> None:
    found = first_statistics(
        training_step(network(), CrossEntropy(), SGD(), batch_norm="train"), batches(1)[0]
    )
    given, batch = weights(), batches(1)[0]
    model = network()
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, None))
    c = np.float64(run(model, {"x": batch["x"]}, outputs=["c"])["c"])
    axes = (0, 2, 3)
    np.testing.assert_allclose(
        found["bn_mean"], 0.9 * given["bn_mean"] + 0.1 * c.mean(axes), atol=1e-6
    )
    expected = 0.9 * given["bn_var"] + 0.1 * c.var(axes, ddof=1)
    np.testing.assert_allclose(found["bn_var"], expected, rtol=1e-6)


def test_by_default_statistics_are_constants() -> None:
    step = training_step(network(), CrossEntropy(), SGD())
    assert step.manifest.running() == []
    assert "bn_mean" not in {v.name for v in step.train.main.inputs}
    assert not any(b.attr("training_mode") for b in step.train.main.walk() if b.op[:5] == "Batch")


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15, 21])
def test_files_of_any_opset(opset: int) -> None:
    step = training_step(network(opset=opset), CrossEntropy(), SGD(), batch_norm="train")
    expected = training_step(network(), CrossEntropy(), SGD(), batch_norm="train")
    a, b = (first_statistics(s, batches(1)[0]) for s in (step, expected))
    for name, value in b.items():
        np.testing.assert_allclose(a[name], value, rtol=1e-6)


def test_statistics_that_are_constant_nodes_go_back_into_them() -> None:
    model = network()
    value = model.graph.initializer.pop(3)
    assert value.name == "bn_mean"
    node = onnx.helper.make_node("Constant", [], ["bn_mean"], value=value)
    model.graph.node.insert(0, node)
    found = Trainer(training_step(model, CrossEntropy(), SGD(), batch_norm="train"), 0.1)
    expected = Trainer(training_step(network(), CrossEntropy(), SGD(), batch_norm="train"), 0.1)
    for one in (found, expected):
        one.step(batches(1)[0])
    np.testing.assert_array_equal(found.weights["bn_mean"], expected.weights["bn_mean"])
    written = found.export(model)
    tensor = onnx.numpy_helper.to_array(written.graph.node[0].attribute[0].t)
    np.testing.assert_array_equal(tensor, found.weights["bn_mean"])
    assert found.evaluate(batches(1)) == expected.evaluate(batches(1))


def twice(*second: str) -> onnx.ModelProto:
    """The network with another BatchNormalization behind the first, of these four operands."""
    model = network()
    again = f"n2 = BatchNormalization <momentum = 0.9> (n, {', '.join(second)})"
    node = onnx.parser.parse_graph(
        f"g (float[N,5,6,6] n) => (float[N,5,6,6] n2) {{ {again} }}"
    ).node[0]
    model.graph.node.insert(2, node)
    model.graph.node[3].input[0] = "n2"
    return model


def test_a_module_that_is_called_twice_moves_its_statistics_twice() -> None:
    model = twice("bn_w", "bn_b", "bn_mean", "bn_var")
    step = training_step(model, CrossEntropy(), SGD(), batch_norm="train")
    once = first_statistics(
        training_step(network(), CrossEntropy(), SGD(), batch_norm="train"), batches(1)[0]
    )
    found = first_statistics(step, batches(1)[0])
    # the second batch of numbers has scale and bias as its statistics
    given = weights()
    np.testing.assert_allclose(
        found["bn_mean"], 0.9 * once["bn_mean"] + 0.1 * given["bn_b"], atol=1e-5
    )
    unbiased = 288 / 287 * given["bn_w"] ** 2
    np.testing.assert_allclose(found["bn_var"], 0.9 * once["bn_var"] + 0.1 * unbiased, rtol=1e-4)


@pytest.mark.parametrize(
    "second",
    [
        ("w2", "bn_b", "bn_mean", "bn_var"),
        ("w2", "bn_b", "bn_mean", "v2"),
        ("w2", "bn_mean", "m2", "v2"),
        ("w2", "bn_b", "m2", "m2"),
    ],
)
def test_equal_numbers_that_were_merged_are_refused(second: tuple[str, ...]) -> None:
    model = twice(*second)
    for name in ("w2", "m2", "v2"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(5, np.float32), name))
    with pytest.raises(InputError, match="merged into one"):
        training_step(model, CrossEntropy(), SGD(), batch_norm="train")
    training_step(model, CrossEntropy(), SGD())


def test_statistics_that_the_file_does_not_hold() -> None:
    model = network()
    model.graph.initializer.pop(3)
    model.graph.input.append(onnx.helper.make_tensor_value_info("bn_mean", 1, [5]))
    with pytest.raises(InputError, match="is not in the main graph"):
        training_step(model, CrossEntropy(), SGD(), batch_norm="train")


@pytest.mark.slow
def test_a_file_in_training_form_trains_unless_it_is_frozen() -> None:
    stored = stored_arrays(RESNET.with_suffix(".npz"))
    batch = {k.removeprefix("in:"): stored[k] for k in stored if k.startswith("in:")}
    step = training_step(RESNET, optimizer=SGD())
    assert len(step.manifest.running()) == 40
    engine = GraphEngine(step)
    np.testing.assert_allclose(engine.run(batch, 1, 0.1).loss, stored["loss64"], rtol=1e-5)
    assert not any(
        (step.initial[fed.name] == engine.values[fed.name]).all() for fed in step.manifest.running()
    )
    frozen = training_step(RESNET, optimizer=SGD(), batch_norm="frozen")
    assert frozen.manifest.running() == []
    held = run(to_proto(frozen.evaluation), {**batch, **frozen.initial})["loss"]
    np.testing.assert_allclose(GraphEngine(frozen).run(batch, 1, 0.1).loss, held, rtol=1e-5)


def test_results_of_the_training_form_are_the_statistics_that_move() -> None:
    model = network()
    node = model.graph.node[1]
    node.output.extend(["next_mean", "next_var"])
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    model.graph.output.append(onnx.helper.make_tensor_value_info("next_mean", 1, [5]))
    step = training_step(model, CrossEntropy("logits"), SGD(), metrics=["next_mean"])
    engine = GraphEngine(step)
    result = engine.run(batches(1)[0], 1, 0.0)
    np.testing.assert_array_equal(result.metrics["next_mean"], engine.values["bn_mean"])
    plain = training_step(network(), CrossEntropy(), SGD(), batch_norm="train")
    expected = first_statistics(plain, batches(1)[0])
    np.testing.assert_array_equal(result.metrics["next_mean"], expected["bn_mean"])


def test_half_precision_with_statistics_of_its_own() -> None:
    """float16 activations with float32 statistics, and float16 statistics."""
    expected = first_statistics(
        training_step(network(), CrossEntropy(), SGD(), batch_norm="train"), batches(1)[0]
    )
    for wide in (True, False):
        model = network()
        for tensor in model.graph.initializer:
            if not (wide and tensor.name in ("bn_mean", "bn_var")):
                array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        for v in (*model.graph.input, *model.graph.output):
            v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        step = training_step(model, CrossEntropy(), SGD(), batch_norm="train")
        batch = batches(1)[0]
        found = first_statistics(step, {**batch, "x": batch["x"].astype(np.float16)})
        for name, value in expected.items():
            assert found[name].dtype == (np.float32 if wide else np.float16)
            np.testing.assert_allclose(found[name], value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_loss_that_is_no_number_leaves_the_statistics(engine: EngineName) -> None:
    found = trainer(engine, batch_norm="train")
    first, second = batches(2)
    found.step(first)
    before = found.weights
    with pytest.raises(Diverged):
        found.step({**second, "x": second["x"] * np.float32(np.nan)})
    for name, value in before.items():
        np.testing.assert_array_equal(found.weights[name], value)


def test_export_writes_statistics_and_nothing_else() -> None:
    found = trainer(batch_norm="train")
    for batch in batches(3):
        found.step(batch)
    model = network()
    written = found.export(model)
    after = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    np.testing.assert_array_equal(after["bn_var"], found.weights["bn_var"])
    assert written.graph.node == model.graph.node
    batch = batches(4)[3]
    logits = run(written, {"x": batch["x"]})["logits"]
    p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -p[np.arange(8), batch["labels"]].mean()
    np.testing.assert_allclose(loss, found.evaluate([batch])["loss"], rtol=1e-5)
