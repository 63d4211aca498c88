"""Weights that an exporter split, merged or left out: found, repaired, trained, and written back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad import Trainer, training_step
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.grad.weights.sharing import find_merged
from onnxgrad.ir.load import load_own
from onnxgrad.plugins.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.train import with_training_info
from onnxgrad.train.step_folder import save_step
from onnxgrad.verify import run
from tests.grad.weights.test_weights import model_of, trained

RNG = np.random.default_rng(5)
TABLE = trained(11, 8)
DEEP = {"one.weight": trained(8, 8), "two.weight": trained(8, 8)}
# a table and its transpose, and two normalisations whose equal parameters are one initializer each
LANGUAGE = """
    e = Gather (embed, x)
    n1 = LayerNormalization (e, norm.weight, norm.bias)
    h1 = MatMul (n1, one.weight)
    n2 = LayerNormalization (h1, norm.weight, norm.bias)
    h2 = MatMul (n2, two.weight)
    y = MatMul (h2, head)
"""
CONSTANTS: Mapping[str, Any] = {
    "embed": TABLE, "head": TABLE.T, "norm.weight": np.ones(8), "norm.bias": np.zeros(8), **DEEP
}  # fmt: skip


def language(constants: Mapping[str, Any] = CONSTANTS, body: str = LANGUAGE) -> onnx.ModelProto:
    model = model_of(body, constants, inputs="int64[N,6] x")
    model.graph.output[0].type.CopyFrom(
        onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["N", 6, 11])
    )
    return model


def trained_names(step: Any) -> set[str]:
    return set(Trainer(step).parameters)


def step_of(model: onnx.ModelProto, **options: Any) -> Any:
    return training_step(model, "sequence_cross_entropy{shift=0}", "sgd{lr=0.02}", **options)


BATCH = {"x": RNG.integers(0, 11, (4, 6)), "labels": RNG.integers(0, 11, (4, 6))}


def losses(step: Any, count: int = 6) -> tuple[list[float], Trainer]:
    trainer = Trainer(step)
    return [trainer.step(BATCH) for _ in range(count)], trainer


def apart() -> onnx.ModelProto:
    """The network as it was written: one table, with two normalisations that have their own."""
    body = LANGUAGE.replace(
        "n2 = LayerNormalization (h1, norm.weight, norm.bias)",
        "n2 = LayerNormalization (h1, later.weight, later.bias)",
    )
    body = body.replace("MatMul (h2, head)", "MatMul (h2, turned)")
    body = "turned = Transpose <perm = [1, 0]> (embed)" + body
    constants = {k: v for k, v in CONSTANTS.items() if k != "head"}
    return language({**constants, "later.weight": np.ones(8), "later.bias": np.zeros(8)}, body)


def test_a_default_export_trains_as_the_network() -> None:
    step = step_of(language())
    assert trained_names(step) == {
        "embed", "norm.weight", "norm.bias", "norm.weight.1", "norm.bias.1", "one.weight", "two.weight"
    }  # fmt: skip
    ours, _ = losses(step)
    theirs, _ = losses(step_of(apart()))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert ours[-1] < 0.9 * ours[0]
    off, _ = losses(step_of(language(), tie="off", untie="off"))
    assert abs(off[-1] - theirs[-1]) > 1e-3 * theirs[-1]  # another network


def test_each_repair_is_a_note_that_names_the_way_back() -> None:
    notes = "\n".join(step_of(language()).notes)
    assert "'head' is 'embed' transposed" in notes and 'tie="off"' in notes
    assert "'norm.weight' stands for 2 parameters" in notes and 'untie="off"' in notes
    assert "'norm.bias' stands for 2 parameters" in notes
    assert not step_of(apart()).notes


def test_what_was_trained_goes_back_into_both_copies() -> None:
    model = language()
    before = model.SerializeToString()
    _, trainer = losses(step_of(model))
    written = trainer.export(model)
    assert model.SerializeToString() == before
    arrays = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
    assert np.array_equal(arrays["head"], arrays["embed"].T)
    assert not np.array_equal(arrays["embed"], TABLE)
    assert not np.array_equal(arrays["norm.weight"], arrays["norm.weight.1"])
    # the written model computes what the last step trained on
    logits = run(written, {"x": BATCH["x"]})["y"].astype(np.float64)
    picked = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(picked, BATCH["labels"][..., None], -1).mean()
    assert loss == pytest.approx(trainer.step(BATCH), rel=1e-5)


def test_values_of_one_copy_alone_are_refused() -> None:
    _, trainer = losses(step_of(language()))
    with pytest.raises(InputError, match=r"'embed' and 'head' are one tied weight.*repairs="):
        onnxgrad.train.export(language(), {"embed": trainer.parameters["embed"]})


def test_a_step_is_resumed_and_exported_from_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(language(), path)
    step = step_of(language())
    save_step(step, tmp_path / "step")
    first, _ = losses(step)
    again, trainer = losses(tmp_path / "step")
    assert again == first
    trainer.export(path, tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx").graph.initializer
    arrays = {t.name: numpy_helper.to_array(t) for t in trained}
    assert np.array_equal(arrays["head"], arrays["embed"].T) and "norm.weight.1" in arrays


def test_training_info_reads_a_tied_weight_once() -> None:
    """A copy in the inference graph would keep its first values: no update binding names it."""
    model = language()
    step = step_of(model)
    file = with_training_info(model, step)
    held = [t.name for t in file.graph.initializer]
    bound = {e.key for e in file.training_info[0].update_binding}
    assert set(held) <= bound and "head" not in held and "norm.weight.1" in held
    assert losses(step_from_training_info(file))[0] == losses(step)[0]
    inputs = {"x": BATCH["x"]}
    np.testing.assert_array_equal(run(file, inputs)["y"], run(model, inputs)["y"])


def test_copies_that_the_calls_name_as_one_parameter_are_tied() -> None:
    """ALBERT by torch.export: each call of a shared layer has a copy of its matrix."""
    body = LANGUAGE.replace(
        "n2 = LayerNormalization (h1, norm.weight, norm.bias)", "n2 = Relu (h1)"
    )
    model = language({**CONSTANTS, "two.weight": DEEP["one.weight"]}, body)
    nodes = [n for n in model.graph.node if n.op_type == "MatMul"][:2]

    def called(names: str) -> Any:
        for node, name in zip(nodes, names, strict=True):
            call = f"%linear_{name} : aten.linear.default](args = (%x, %p_{name}_weight, None))"
            del node.metadata_props[:]
            node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
        return step_of(model)

    assert {"one.weight", "two.weight"} <= trained_names(called("ab"))
    step = called("aa")
    assert "one.weight" in trained_names(step) and "two.weight" not in trained_names(step)
    assert "'two.weight' is 'one.weight': the exporter split" in "\n".join(step.notes)
    assert "two.weight" in trained_names(step_of(model, tie="off"))
    _, trainer = losses(step)
    written = {t.name: numpy_helper.to_array(t) for t in trainer.export(model).graph.initializer}
    assert np.array_equal(written["one.weight"], written["two.weight"])
    assert not np.array_equal(written["one.weight"], DEEP["one.weight"])
    with pytest.raises(InputError, match="are one tied weight"):
        onnxgrad.train.export(model, {"one.weight": DEEP["two.weight"]})


# ---- must not be repaired ------------------------------------------------------------------------


def test_whole_layers_that_are_shared_stay_shared() -> None:
    """ALBERT: one block, called twice. Its normalisation is read twice, as its matrices are."""
    body = """
        e = Gather (embed, x)
        n1 = LayerNormalization (e, norm.weight, norm.bias)
        h1 = MatMul (n1, one.weight)
        n2 = LayerNormalization (h1, norm.weight, norm.bias)
        h2 = MatMul (n2, one.weight)
        y = MatMul (h2, head)
    """
    model = language({k: v for k, v in CONSTANTS.items() if k != "two.weight"}, body)
    step = step_of(model)
    assert trained_names(step) == {"embed", "norm.weight", "norm.bias", "one.weight"}
    notes = "\n".join(step.notes)
    assert "several layers read 'norm.weight'" in notes and "untie=['norm.weight']" in notes
    assert "or all theirs with untie=['*']" in notes
    everything = trained_names(step_of(model, untie=["*"]))
    assert everything == {
        "embed", "norm.weight", "norm.weight.1", "norm.bias", "norm.bias.1", "one.weight"
    }  # fmt: skip
    assert trained_names(step_of(model, untie=["norm.weight"])) == {
        "embed", "norm.weight", "norm.weight.1", "norm.bias", "one.weight"
    }  # fmt: skip


@pytest.mark.parametrize("what", ["scale", "bias"])
def test_shared_values_that_are_not_those_of_new_layers_stay_one(what: str) -> None:
    name = {"scale": "norm.weight", "bias": "norm.bias"}[what]
    step = step_of(language({**CONSTANTS, name: trained(8)}))
    assert f"{name}.1" not in trained_names(step)
    assert f"untie=['{name}']" in "\n".join(step.notes)
    assert f"{name}.1" in trained_names(
        step_of(language({**CONSTANTS, name: trained(8)}), untie=[name])
    )


def test_weights_that_differ_in_one_element_are_two() -> None:
    other = TABLE.T.copy()
    other[3, 2] = np.nextafter(other[3, 2], np.float32(9))
    model = language({**CONSTANTS, "head": other})
    assert "head" in trained_names(step_of(model))
    with pytest.raises(InputError, match="their elements differ"):
        step_of(model, tie=["embed=head"])


def test_two_matrices_with_equal_elements_are_a_question() -> None:
    model = language({**CONSTANTS, "two.weight": DEEP["one.weight"]})
    step = step_of(model)
    assert {"one.weight", "two.weight"} <= trained_names(step)
    assert "tie=['one.weight=two.weight']" in "\n".join(step.notes)
    tied = step_of(model, tie=["one.weight=two.weight"])
    assert "two.weight" not in trained_names(tied)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tie": ["embed"]}, r"tie 'embed': write auto, off or NAME=NAME"),
        ({"tie": ["embed=nothing"]}, r"tie 'embed=nothing': write auto, off or NAME=NAME"),
        (
            {"untie": ["two.wieght"]},
            r"untie 'two.wieght': no weight of this name is read by several layers",
        ),
        ({"tie": ["embed=head"], "wrt": ["embed"]}, r"'head' is not trained"),
    ],
)
def test_misuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        step_of(language(), **options)


def test_gradients_are_not_touched() -> None:
    """Ties concern training: a gradient is asked for by the names of the file."""
    adjoints = onnxgrad.gradient(language(), "params", "y[:,0]").graph.output
    assert {o.name.partition("_grad")[0] for o in adjoints} >= {"embed", "head"}


# ---- what the file says --------------------------------------------------------------------------


def test_names_follow_the_modules() -> None:
    model = language()
    for node, scope in zip(
        [n for n in model.graph.node if n.op_type == "LayerNormalization"], "ab", strict=True
    ):
        node.metadata_props.add(
            key="pkg.torch.onnx.name_scopes", value=f"['', 'norms.{scope}', 'layer_norm']"
        )
    found = {s.weight.name: [p.name for p in s.parts] for s in find_merged(load_own(model)).shared}
    assert found == {"norm.weight": ["norms.b.weight"], "norm.bias": ["norms.b.bias"]}


def test_a_folded_normalisation_is_said() -> None:
    weight = {"onnx::Conv_7": trained(3, 2, 3, 3), "onnx::Conv_8": trained(3)}
    model = model_of(
        "c = Conv (x, onnx::Conv_7, onnx::Conv_8) r = Relu (c) y = ReduceMean <keepdims = 0> (r)",
        weight,
        inputs="float[1,2,5,5] x",
    )
    step = training_step(model, "mse", "sgd")
    assert re.search(
        r"BatchNormalization is folded into the weights of 1 layer", "\n".join(step.notes)
    )


def test_a_layer_that_was_merged_with_an_equal_one_is_named() -> None:
    """Both norms of a parallel block, as in GPT-NeoX: torch.export's list of parameters shows it."""
    model = language()
    (first, *_) = [n for n in model.graph.node if n.op_type == "LayerNormalization"]
    first.metadata_props.add(
        key="pkg.torch.onnx.fx_node", value="call(%x, (24,), %p_h_0_ln_1_weight, %p_h_0_ln_1_bias)"
    )
    names = ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "place.weight", "norm2.scale")
    listed = "\n".join(f"p_h_0_{n.replace('.', '_')}: PARAMETER target='h.0.{n}'" for n in names)
    signature = "pkg.torch.export.ExportedProgram.graph_signature"
    model.graph.metadata_props.add(key=signature, value=f"# inputs\n{listed}\n")
    lost = ("h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.norm2.scale")
    assert find_merged(load_own(model)).lost == lost
    (note,) = [n for n in step_of(model).notes if "lacks the layer" in n]
    assert "of 3 parameters of the network ('h.0.ln_2.weight'" in note and "optimize=False" in note
    assert not any("lacks the layer" in n for n in step_of(model, wrt="head").notes)
    del first.metadata_props[:]  # a tool that drops the metadata of nodes
    assert find_merged(load_own(model)).lost == ()


def test_the_command_says_it_and_inspect_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "step"
    onnx.save(language(), path)
    order = ["train-step", str(path), "--loss", "sequence_cross_entropy{shift=0}", "-o", str(out)]
    assert main([*order, "--no-verify"]) == 0
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "'head' is 'embed' transposed" in printed and "--tie off" in printed
    assert main(["inspect", str(path), "--weights"]) == 0
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "'norm.weight' stands for 2 parameters" in printed and "--untie off" in printed


def test_verbose_notes_list_all_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, names = tmp_path / "m.onnx", [f"s{i}.weight" for i in range(6)]
    readers = [f"a{i} = Add (h, {n}) b{i} = Mul (a{i}, {n})" for i, n in enumerate(names)]
    operands = ", ".join(f"b{i}" for i in range(6))
    body = f"""h = MatMul (x, one.weight) {" ".join(readers)} s = Sum ({operands})
        y = ReduceSum <keepdims = 0> (s)"""
    constants = {"one.weight": trained(6, 6), **{n: trained(6) for n in names}}
    onnx.save(model_of(body, constants), path)
    for flags, shown in ((["-v"], 6), ([], 4)):
        assert main(["inspect", str(path), "--weights", *flags]) == 0
        printed = re.sub(r"\s+", " ", capsys.readouterr().out)
        (note,) = re.findall(r"several layers read (.*?): if", printed)
        assert note.count("'s") == shown and ("more" in note) == (shown < 6)
    assert "--untie '*'" in printed
