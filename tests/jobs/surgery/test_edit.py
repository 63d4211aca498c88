"""Inputs bound to constants, values renamed, outputs dropped: the result computes what the model does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.surgery import edit as job
from onnxgrad.transform.preprocessing.images import Scale
from onnxgrad.transform.preprocessing.steps import Prepared
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.running.session import run
from tests.helpers import interface, parse

TEXT = """g (float[N,3] x, float[N,3] k) => (float[N,3] x, float[N,3] y, float[N,3] z) {
  h = Add (x, k)  y = Exp (h)  t = Mul (k, w)  z = Sin (t) }"""
TEXT = TEXT.replace(" {\n", " <float[3] w = {1, 2, 3}> {\n")
NESTED = """g (float[2] x, bool c) => (float[2] y, float[2] h) { h = Exp (x)
  y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
              else_branch = e () => (float[2] b) { b = Neg (h) }> }"""
K = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"bind": {"k": K}}, (["x"], ["x", "y", "z"])),
        ({"bind": {"k": K.tolist(), "x": K}}, ([], ["x", "y", "z"])),
        ({"bind": {"x": K}, "rename": {"x": "u"}}, (["k"], ["u", "y", "z"])),
        ({"rename": {"x": "u", "y": "v", "h": "y"}}, (["u", "k"], ["u", "v", "z"])),
        ({"rename": {"x": "k", "k": "x"}}, (["k", "x"], ["k", "y", "z"])),
        ({"rename": {"w": "weight"}}, (["x", "k"], ["x", "y", "z"])),
        ({"drop_output": "z"}, (["x", "k"], ["x", "y"])),
        ({"drop_output": ["x", "y"]}, (["x", "k"], ["z"])),
        ({"drop_output": "z", "bind": {"k": K}, "rename": {"y": "z"}}, (["x"], ["x", "z"])),
        ({"free": "w", "bind": {"k": K}}, (["x", "w"], ["x", "y", "z"])),
        ({"free": ["w*"], "rename": {"w": "v"}}, (["x", "k", "v"], ["x", "y", "z"])),
    ],
)
def test_every_change(changes: dict[str, Any], left: tuple[list[str], list[str]]) -> None:
    """Another evaluator than that of the proof computes the same."""
    model, rename = parse(TEXT), changes.get("rename", {})
    if left == (["x"], ["x", "z"]):
        with pytest.raises(InputError, match="'z' is taken"):
            onnxgrad.edit(model, **changes)
        return
    made = onnxgrad.edit(model, **changes)
    onnx.checker.check_model(made, full_check=True)
    assert interface(made) == left
    feeds = {"x": K, "k": K, **feeds_for(model, seed=3, dims={"N": 2}), **changes.get("bind", {})}
    feeds = {name: np.asarray(v, np.float32) for name, v in feeds.items()}
    if "free" in changes:  # the original with another weight
        feeds["w"] = np.float32([-1, 0.5, 4])
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(feeds["w"], "w"))
    wanted = dict(zip("xyz", ReferenceEvaluator(model).run(None, feeds), strict=True))
    mine = {rename.get(n, n): v for n, v in feeds.items() if rename.get(n, n) in left[0]}
    found = dict(zip(left[1], ReferenceEvaluator(made).run(None, mine), strict=True))
    back = {new: old for old, new in rename.items()}
    for name, value in found.items():
        assert np.array_equal(value, wanted[back.get(name, name)]), name


def test_a_freed_weight_becomes_an_initializer_again() -> None:
    model = parse(TEXT)
    freed = onnxgrad.edit(model, free="w")
    assert not freed.graph.initializer
    back = onnxgrad.edit(freed, bind={"w": [1, 2, 3]})
    assert interface(back) == interface(model) and back.graph.node == model.graph.node
    assert numpy_helper.to_array(back.graph.initializer[0]).tolist() == [1, 2, 3]
    old = """<ir_version: 3, opset_import: ["": 9]> g (float[N,2] x, float[2,2] w) => (float[N,2] y)
      <float[2,2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"""
    made = onnxgrad.edit(onnx.parser.parse_model(old), free="w")
    assert interface(made) == (["x", "w"], ["y"]) and not made.graph.initializer


@pytest.mark.parametrize("ir", [3, 8])
def test_an_input_with_a_value_receives_another(ir: int) -> None:
    """Below IR 4, onnxruntime lets no caller replace the value, so the proof cannot pass it."""
    text = f"""<ir_version: {ir}, opset_import: ["": 9]>
      g (float[N,2] x, float[2,2] w) => (float[N,2] y) <float[2,2] w = {{1, 2, 3, 4}}> {{ y = MatMul (x, w) }}"""
    made = onnxgrad.edit(onnx.parser.parse_model(text), bind={"w": [[5, 6], [7, 8]]})
    assert numpy_helper.to_array(made.graph.initializer[0]).tolist() == [[5, 6], [7, 8]]
    assert interface(made)[0] == (["x", "w"] if ir < 4 else ["x"])


def test_a_weight_that_decided_the_form_of_a_file_stays() -> None:
    text = """g (float[3] x) => (float y) <float p = {3}> {
      c = Softplus (x)  q = Pow (c, p)  y = ReduceSum <keepdims = 0> (q) }"""
    with pytest.raises(InputError, match="a new value of 'p' would be wrong"):
        onnxgrad.edit(onnxgrad.gradient(parse(text), "x"), free="p")


def test_the_proof_draws_values_of_a_freed_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the value of the file alone, a result that keeps it would be right."""
    right = job.edited

    def wrong(program: Program, *changes: Any) -> tuple[Program, list[str]]:
        made, notes = right(program, *changes)
        model = to_proto(made)
        model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2, 3]), "kept"))
        for node in model.graph.node:
            node.input[:] = ["kept" if name == "w" else name for name in node.input]
        return load(model), notes

    monkeypatch.setattr(job, "edited", wrong)
    with pytest.raises(NotProved):
        onnxgrad.edit(parse(TEXT), free="w")


MASKED = """g (int64[batch,seq] ids, float[batch,seq] mask, float[batch,past] old) => (float[batch,seq,2] y, float[batch,past] kept)
  <float[3,2] E = {1, 2, 3, 4, 5, 6}, int64[1] last = {2}> {
  e = Gather (E, ids)  m = Unsqueeze (mask, last)  h = Mul (e, m)  y = Tanh (h)  kept = Exp (old) }"""


@pytest.mark.parametrize(
    ("bound", "left", "ops"),
    [
        ({"mask": "ones"}, ["ids", "old"], ["Shape", "ConstantOfShape"]),
        ({"mask": "zeros", "ids": [[0, 2]]}, ["old"], ["Shape", "ConstantOfShape"]),
    ],
)
def test_ones_and_zeros_have_the_sizes_of_other_inputs(
    bound: dict[str, Any], left: list[str], ops: list[str]
) -> None:
    done = onnxgrad.edit(parse(MASKED), bind=bound)
    assert interface(done)[0] == left and [n.op_type for n in done.graph.node][:2] == ops
    ids = np.array(bound.get("ids", [[1, 2, 0]]))
    feeds = {"ids": ids, "old": np.ones((1, 1), np.float32)}
    whole = {**feeds, "mask": np.full(ids.shape, bound["mask"] == "ones", np.float32)}
    given = {n: v for n, v in feeds.items() if n in left}
    assert np.array_equal(run(done, given)["y"], run(parse(MASKED), whole)["y"])


def test_sizes_of_several_inputs_are_put_together() -> None:
    model = parse("""g (float[N,2] x, float[M] v, int64[M,3,N] k) => (float[M,3,N] y, float[N,2] z, float[M] w)
        { y = Cast <to = 1> (k)  z = Exp (x)  w = Exp (v) }""")
    done = onnxgrad.edit(model, bind={"k": "ones"})
    feeds = {"x": np.ones((4, 2), np.float32), "v": np.ones(5, np.float32)}
    assert np.array_equal(run(done, feeds)["y"], np.ones((5, 3, 4)))
    older = parse("g (float[N] x, float[N] k) => (float[N] y) { y = Add (x, k) }", opset=8)
    with pytest.raises(InputError, match="filling 'k' needs opset 9, not 8"):
        onnxgrad.edit(older, bind={"k": "ones"})
    with pytest.raises(
        InputError, match=r"bind={'old': 'ones'}: no other input has the size 'past'"
    ):
        onnxgrad.edit(parse(MASKED), bind={"old": "ones"})


def test_a_weight_has_another_value(tmp_path: Path) -> None:
    new = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    np.save(tmp_path / "E.npy", new)
    for value in (new, tmp_path / "E.npy", new.tolist()):
        done = onnxgrad.edit(parse(MASKED), set={"E": value})
        assert np.array_equal(numpy_helper.to_array(done.graph.initializer[0]), new)
    (number,) = [
        t for t in onnxgrad.edit(parse(MASKED), set={"E": 3}).graph.initializer if t.dims == [3, 2]
    ]
    assert np.array_equal(numpy_helper.to_array(number), np.full((3, 2), 3))
    freed = onnxgrad.edit(parse(MASKED), set={"E": new}, free="last", verify=False)
    assert interface(freed)[0] == ["ids", "mask", "old", "last"]
    for wrong, words in (
        (
            {"E": np.zeros((2, 2), np.float32)},
            r"the weight requires shape \[3, 2\], but the value has",
        ),
        (
            {"E": np.zeros((3, 2))},
            r"requires f32, but the value is float64: convert it, .*\.astype\('float32'\)$",
        ),
        ({"F": 1}, "the model has no initializer of this name; there are E, last"),
        ({"ids": 1}, "bind={'ids': ...} makes an input constant"),
    ):
        with pytest.raises(InputError, match=words):
            onnxgrad.edit(parse(MASKED), set=wrong)
    with pytest.raises(InputError, match="one weight cannot both be constant and an input"):
        onnxgrad.edit(parse(MASKED), set={"E": new}, free="E")


def test_a_wrong_weight_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = job.tensor_of
    monkeypatch.setattr(job, "tensor_of", lambda array, name: right(array * 2, name))
    with pytest.raises(NotProved):
        onnxgrad.edit(parse(MASKED), set={"E": 3})


def test_values_become_outputs() -> None:
    assert interface(onnxgrad.edit(parse(MASKED), add_output=["h", "E"]))[1] == [
        "y",
        "kept",
        "h",
        "E",
    ]
    done = onnxgrad.edit(parse(MASKED), add_output="all", drop_output="*", rename={"e": "emb"})
    assert interface(done) == (["ids", "mask", "old"], ["emb", "m", "h"])
    assert [n.op_type for n in done.graph.node] == ["Gather", "Unsqueeze", "Mul"]
    named = parse("g (float[2] x) => (float[2] y) { all = Exp (x)  h = Neg (all)  y = Neg (h) }")
    assert interface(onnxgrad.edit(named, add_output="all"))[1] == ["y", "all"]
    for wrong, words in (
        ("y", "add_output='y': it is an output already"),
        ("q*", r"add_output='q\*': the main graph has no value of this name"),
    ):
        with pytest.raises(InputError, match=words):
            onnxgrad.edit(parse(MASKED), add_output=wrong)


def test_an_output_of_unknown_rank_gets_that_of_the_proof() -> None:
    model = parse("g (float[2] x, int64[N] s) => (float[2] y) { h = Reshape (x, s)  y = Neg (x) }")
    done = onnxgrad.edit(model, add_output="h", inputs={"x": K[0, :2], "s": np.array([1, 2, 1])})
    assert len(done.graph.output[1].type.tensor_type.shape.dim) == 3
    onnx.checker.check_model(done)


def test_weights_in_another_file(tmp_path: Path) -> None:
    model, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(parse(MASKED), model, save_as_external_data=True, location="m.data", size_threshold=0)
    np.save(tmp_path / "E.npy", -np.ones((3, 2), np.float32))
    words = ["--set", f"E={tmp_path / 'E.npy'}", "--bind", "mask=ones", "--add-output", "[em]"]
    assert main(["edit", model, "-o", out, *words, "--rename", "E=table"]) == 0
    done = onnx.load(out)
    assert interface(done) == (["ids", "old"], ["y", "kept", "e", "m"])
    assert {t.name: numpy_helper.to_array(t).min() for t in done.graph.initializer} == {
        "table": -1, "last": 2,
    }  # fmt: skip


def test_a_value_that_inference_does_not_compute_is_no_output() -> None:
    model = parse("""g (float[N,2] x, float r) => (float[N,2] y) <bool t = {1}>
        { d, mask = Dropout (x, r, t)  y = Mul (d, r) }""")
    done = onnxgrad.edit(model, mode="inference", add_output="d")
    assert interface(done)[1] == ["y", "d"]
    with pytest.raises(
        InputError, match="add_output='mask': without training mode, nothing computes it"
    ):
        onnxgrad.edit(model, mode="inference", add_output="mask")


def test_a_dropped_output_takes_what_served_it_alone() -> None:
    made = onnxgrad.edit(parse(TEXT), drop_output="z")
    assert [n.op_type for n in made.graph.node] == ["Add", "Exp"] and not made.graph.initializer
    text = TEXT.replace("y = Exp (h)", "y = Exp (h)  dead = Neg (h)")
    kept = onnxgrad.edit(parse(text), rename={"y": "v"})
    assert [n.op_type for n in kept.graph.node].count("Neg") == 1  # nobody wanted it to go


def test_a_bound_size_is_that_of_every_shape() -> None:
    made = onnxgrad.edit(parse(TEXT), bind={"k": K})
    shapes = [
        v.type.tensor_type.shape.dim[0].dim_value for v in (*made.graph.input, *made.graph.output)
    ]
    assert shapes == [2, 2, 2, 2]


def test_values_that_bodies_read() -> None:
    made = onnxgrad.edit(parse(NESTED), rename={"h": "hidden", "c": "flag"}, bind={"x": [1, -2]})
    assert interface(made) == (["flag"], ["y", "hidden"])
    for flag in (True, False):
        found = run(made, {"flag": np.array(flag)})
        assert np.allclose(found["y"], (1 if flag else -1) * np.exp([1, -2]))
    alone = onnxgrad.edit(parse(NESTED), drop_output="y")
    assert [n.op_type for n in alone.graph.node] == ["Exp"]
    with pytest.raises(InputError, match="the name 'a' is taken"):
        onnxgrad.edit(parse(NESTED), rename={"h": "a"})


def test_annotations_and_metadata() -> None:
    model = parse(TEXT)
    note = model.graph.quantization_annotation.add(tensor_name="h")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    model.metadata_props.add(key="author", value="me")
    made = onnxgrad.edit(model, rename={"h": "hidden", "w": "scale"})
    (found,) = made.graph.quantization_annotation
    assert (found.tensor_name, found.quant_parameter_tensor_names[0].value) == ("hidden", "scale")
    assert made.metadata_props[0].value == "me"


def test_weights_of_a_file_that_are_inputs_too() -> None:
    old = """<ir_version: 3, opset_import: ["": 9]> g (float[N,2] x, float[2,2] w) => (float[N,2] y)
      <float[2,2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"""
    made = onnxgrad.edit(onnx.parser.parse_model(old), bind={"x": [[1, 2]]}, rename={"w": "v"})
    assert interface(made) == (["x", "v"], ["y"])  # below IR 4 every weight is an input
    new = onnx.parser.parse_model(old.replace("ir_version: 3", "ir_version: 8"))
    made = onnxgrad.edit(new, bind={"w": np.eye(2, dtype=np.float32)})
    assert interface(made) == (["x"], ["y"])
    assert run(made, {"x": np.float32([[3, 4]])})["y"].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {},
            "no change is requested: see bind, set, free, rename, rename_node, rename_dim, add_output, ",
        ),
        ({"free": "q"}, "the model has no initializer of this name"),
        ({"free": "k"}, "free='k': it is an input already"),
        ({"bind": {"k": 1}}, "value has .*: ones and zeros fill open sizes, other numbers do not"),
        ({"free": "q*"}, "the model has no initializer of this name"),
        ({"bind": {"kk": 1}}, "the model has no input of this name .did you mean 'k'"),
        (
            {"bind": {"k": K, "x": K[:1]}},
            "'k' is bound to a value whose N is 2, but another bound axis has 1",
        ),
        ({"rename": {"q": "p"}}, "the main graph has no value 'q'"),
        ({"rename": {"x": "h"}}, "the name 'h' is taken: rename that one too"),
        ({"rename": {"x": "p", "k": "p"}}, "the name 'p' is taken by 'x', which gets it too"),
        ({"rename": {"x": ""}}, "the new name is empty"),
        ({"drop_output": "q"}, "the model has no output of this name"),
        ({"drop_output": ["x", "y", "z"]}, "a model needs an output"),
    ],
)
def test_changes_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.edit(parse(TEXT), **changes)


def test_a_training_step_keeps_its_names() -> None:
    model = parse(TEXT)
    model.training_info.add().algorithm.node.add(op_type="Neg", input=["w"], output=["q"])
    with pytest.raises(InputError, match="training_info reads 'w'"):
        onnxgrad.edit(model, rename={"w": "v"}, verify=False)


@pytest.mark.parametrize("wrong", ["value", "name"])
def test_a_wrong_result_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(program: Any, changes: job.Changes) -> Any:
        if wrong == "value":
            bound = {k: v + 1 for k, v in changes.arrays.items()}
            return right(program, replace(changes, bound=bound))
        return right(program, replace(changes, values={"y": "z", "z": "y"}))

    right = job.edited
    monkeypatch.setattr(job, "edited", late)
    with pytest.raises(NotProved):
        onnxgrad.edit(parse(TEXT), bind={"k": K})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name may hold an equals sign."""
    model = parse(TEXT.replace("(k, w)", "(k, w)"))
    model.graph.output[2].name = model.graph.node[3].output[0] = "a=b"
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "k.npy", K)
    words = [
        "edit",
        str(tmp_path / "m.onnx"),
        "-o",
        str(tmp_path / "o.onnx"),
        "--rename",
        "a=b=c=d",
    ]
    assert (
        main(
            [
                *words,
                "--bind",
                f"k={tmp_path / 'k.npy'}",
                "--drop-output",
                "y",
                "--json",
                str(tmp_path / "j"),
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert "N is 2 now" in said.err and "equal on cpu  2 runs" in said.out
    assert interface(onnx.load(tmp_path / "o.onnx")) == (["x"], ["x", "c=d"])
    found = json.loads((tmp_path / "j").read_text())
    assert found["proof"]["verdict"] == "equal" and found["inputs"] == ["x"]
    assert main([*words, "--bind", "k=word"]) == 2
    assert "'word' is neither a number" in capsys.readouterr().err
    assert (
        main([*words[:2], "-o", str(tmp_path / "k.npy"), "--bind", f"k={tmp_path / 'k.npy'}"]) == 2
    )
    assert "output and input are the same file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(p.as_posix() for p in Path("models").rglob("*.onnx")))
def test_on_the_models(path: str) -> None:
    block = onnxgrad.load(path).main
    names = [v.name for v in (*block.inputs, *block.outputs)]
    onnxgrad.edit(path, rename={name: f"new_{name}" for name in names})
    given = feeds_for(onnx.load(path), seed=3)
    onnxgrad.edit(path, bind=dict([list(given.items())[-1]]))
    if len(block.outputs) > 1:
        onnxgrad.edit(path, drop_output=block.outputs[0].name)


def test_names_with_commas_are_several_unless_a_value_has_the_name() -> None:
    model = parse("""g (float[N,2] x) => (float[N,2] h, float[N,2] t, float[N,2] y)
        <float[2] w = {1, 2}, float[2] v = {3, 4}> { h = Mul (x, w) t = Mul (h, v) y = Neg (t) }""")
    assert interface(onnxgrad.edit(model, drop_output="h,t"))[1] == ["y"]
    assert interface(onnxgrad.edit(model, free=["w, v"]))[0] == ["x", "w", "v"]
    nodes = model.graph.node
    model.graph.output[0].name = nodes[0].output[0] = nodes[1].input[0] = "h,t"
    assert interface(onnxgrad.edit(model, drop_output="h,t"))[1] == ["t", "y"]
    assert interface(onnxgrad.edit(model, drop_output=["h", "t", "t"]))[1] == ["y"]
    joined = onnxgrad.join(model, parse("g (float[N,2] h) => (float[N,2] z) { z = Exp (h) }"),
                           map={"h,t": "h"}, keep_output="h,t")  # fmt: skip
    assert interface(joined)[1] == ["h,t", "t", "y", "z"]


def test_steps_and_presets_come_after_the_other_changes() -> None:
    model = parse("""g (float[N,3,4,4] x, float k) => (float[N,3] y, float[N,3] z) {
        m = GlobalAveragePool (x) f = Flatten (m) y = Mul (f, k) z = Neg (y) }""")
    made = onnxgrad.edit(
        model, bind={"k": 50}, rename={"x": "image", "y": "logits"}, add_output="f",
        drop_output="z", before="resize{size=[4,4]},to-float", after={"logits": "softmax,argmax"},
    )  # fmt: skip
    assert interface(made) == (["image"], ["f", "classes"])
    photo = np.zeros((2, 9, 7, 3), np.uint8)
    photo[0, :, :, 2] = photo[1, :, :, 1] = 255
    found = run(made, {"image": photo})
    assert found["classes"].tolist() == [2, 1]
    assert np.allclose(found["f"], [[0, 0, 1], [0, 1, 0]])
    twice = onnxgrad.edit(model, bind={"k": 50}, rename={"x": "image"}, verify=False)
    twice = onnxgrad.preprocess(twice, {"image": "resize{size=[4,4]},to-float"}, verify=False)
    once = onnxgrad.edit(
        model, bind={"k": 50}, rename={"x": "image"}, before="resize{size=[4,4]},to-float"
    )
    assert once.SerializeToString() == twice.SerializeToString()
    with pytest.raises(InputError, match="no input is called 'x'"):
        onnxgrad.edit(model, rename={"x": "image"}, before={"x": "to-float"})


def test_steps_are_proved_against_the_given_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(
        "g (float[1,3,4,4] x) => (float[1,3] y) { m = GlobalAveragePool (x) y = Flatten (m) }"
    )

    def emit(self: Scale, at: Prepared) -> Prepared:
        return replace(at, value=at.value * np.float32(1.01))

    monkeypatch.setattr(Scale, "emit", emit)
    with pytest.raises(NotProved, match="DIFFERENT"):
        onnxgrad.edit(model, rename={"y": "z"}, before="image{dtype=float32},scale{factor=1}")


def test_a_table_of_edits_has_steps_in_a_table_of_their_own() -> None:
    model = parse("g (float[1,3] x) => (float[1,3] y) { y = Neg (x) }")
    with pytest.raises(InputError, match="after: unknown key 'after'"):
        onnxgrad.optimize(model, after={"after": "argmax"})
    made = onnxgrad.optimize(model, after={"preprocess": {"after": "argmax"}})
    assert interface(made)[1] == ["classes"]
