"""Models joined, edited, opened and split around the passes of `optimize`: each change is proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.jobs.surgery import edit as job
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.running.session import run
from tests.helpers import interface, parse

ADAPTED = """g (float[N,3] x, float k, float[2,3] w, float[2,1] a, float[1,3] b) => (float[N,2] y, float[N,2] z) {
  i = Identity (x)  ab = MatMul (a, b)  s = Mul (ab, k)  ws = Add (w, s)  t = Transpose (ws)
  y = MatMul (i, t)  z = Exp (y) }"""
HEAD = "g (float[M,2] v, float h) => (float[M,2] u) { r = Identity (v)  u = Mul (r, h) }"
AROUND: dict[str, Any] = {
    "before": {"bind": {"k": 2}, "drop_output": ["z"]},
    "after": {"rename": {"y": "logits", "x": "features", "a": "down"}, "bind": {"h": 0.5}},
    "lift": ["w", "[ab]"],
}


def test_changes_around_the_passes(tmp_path: Path) -> None:
    onnx.save(parse(HEAD), tmp_path / "head.onnx")
    join = {"model": tmp_path / "head.onnx", "map": {"y": "v"}, "keep_output": "y"}
    done = onnxgrad.optimize(parse(ADAPTED), **AROUND, join=join, dims={"N": 3}, report=True)
    prepare, rest = done.model
    assert interface(prepare) == (["w", "down", "b"], ["t"])
    assert interface(rest) == (["features", "t"], ["logits", "u"])
    assert not {n.op_type for n in (*rest.graph.node, *prepare.graph.node)} & {"Identity", "Exp"}
    changes = done.to_dict()["changes"]
    assert [c["proof"] for c in changes] == ["equal on cpu"] * 4
    assert "4 nodes once at load, 2 nodes in each run" in str(done) and "joined with" in str(done)
    feeds = {n: v for n, v in feeds_for(parse(ADAPTED), seed=3, dims={"N": 2}).items() if n != "k"}
    y, _ = ReferenceEvaluator(parse(ADAPTED)).run(None, {**feeds, "k": np.float32(2)})
    given = {**feeds, "down": feeds["a"], "features": feeds["x"]}
    for made in (prepare, rest):
        given |= run(made, {v.name: given[v.name] for v in made.graph.input})
    assert np.allclose(given["logits"], y, atol=1e-6) and np.allclose(given["u"], y / 2, atol=1e-6)


def test_inputs_of_the_proof_follow_new_names() -> None:
    """Only these values run: both shapes of the Gather's indices are of one size."""
    text = "g (float[5] x, int64[N] i) => (float[N] y) { g = Identity (i)  y = Gather (x, g) }"
    changes = {"rename": {"i": "rows", "y": "picked"}}
    inputs = {"i": np.array([4, 0])}
    made = onnxgrad.optimize(parse(text), after=changes, inputs=inputs, report=True)
    assert interface(made.model) == (["x", "rows"], ["picked"])
    made = onnxgrad.optimize(
        parse(text), before=changes, inputs={"rows": np.array([4, 0])}, allow_empty="picked"
    )
    assert interface(made) == (["x", "rows"], ["picked"])
    after = {"bind": {"i": [1, 2]}, "rename": {"y": "picked"}}
    made = onnxgrad.optimize(
        parse(text), after=after, inputs=inputs, dims={"N": 2}, allow_empty="y"
    )
    assert interface(made) == (["x"], ["picked"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"before": {"bnd": {}}}, "before: unknown key 'bnd'; did you mean 'bind'"),
        ({"before": {"rename": 3}}, "before: edit: rename must be a table, not 3"),
        ({"before": {"bind": {"q": 1}}}, "before: bind q: the model has no input of this name"),
        ({"after": {"drop_output": "q"}}, "after: drop_output q: the model has no output of this name"),
        ({"join": {"map": {}}}, "join: 'model' must name a file"),
        ({"join": {"model": "none.onnx"}}, "join: none.onnx: No such file"),
        ({"join": {"model": "models/training/mlp.onnx", "map": {"q": "x"}}}, "join: map q=x: A has no output or input 'q'"),
        ({"lift": "q"}, "weights='q': the model has no input or initializer of this name"),
        ({"lift": True}, "nothing depends on weights alone"),
    ],
)  # fmt: skip
def test_changes_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        onnxgrad.optimize(parse(ADAPTED), **options)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_wrong_change_is_refuted(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parse(ADAPTED), tmp_path / "m.onnx")
    (tmp_path / "r.toml").write_text(f"[{when}]\nbind = {{ k = 2 }}\n")
    monkeypatch.setattr(job, "_bind", lambda p, n, a: _right_bind(p, n, a + 1))
    words = ["optimize", str(tmp_path / "m.onnx"), "--config", str(tmp_path / "r.toml")]
    assert main([*words, "-o", str(tmp_path / "o.onnx")]) == 1
    error = capsys.readouterr().err
    assert f"edited {when} the passes: DIFFERENT" in error and "nothing was written" in error
    assert not (tmp_path / "o.onnx").exists()


_right_bind = job._bind


def test_files_of_changes_lie_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "k.npy", np.float32(2))
    onnx.save(parse(HEAD.replace("float h", "float[M,2] h")), tmp_path / "sub" / "head.onnx")
    (tmp_path / "sub" / "r.toml").write_text(
        'join = { model = "head.onnx", map = { y = "v", z = "h" } }\n[before]\nbind.k = "k.npy"\n'
    )
    made = onnxgrad.optimize(parse(ADAPTED), recipe=tmp_path / "sub" / "r.toml")
    assert interface(made) == (["x", "w", "a", "b"], ["u"])


def test_outputs_that_may_be_empty_are_those_of_each_stage(tmp_path: Path) -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Neg (x)  z = Log (x) }")
    head = parse(
        "h (float[M] v) => (float[M] u, float[M] w) { n = Neg (v)  u = Exp (n)  w = Sqrt (n) }"
    )
    onnx.save(head, tmp_path / "head.onnx")
    around: dict[str, Any] = {
        "join": {"model": tmp_path / "head.onnx", "map": {"y": "v"}, "prefix": "h_"},
        "before": {"rename": {"h_u": "n"}},
        "after": {"rename": {"h_w": "roots"}, "drop_output": "z"},
        "inputs": {"x": np.float32([-1, -2])},
    }
    with pytest.raises(NotProved, match="nothing finite"):
        onnxgrad.optimize(model, **around)
    made = onnxgrad.optimize(model, **around, allow_empty=("z", "h_w"))
    assert interface(made)[1] == ["n", "roots"]
    with pytest.raises(InputError, match="q: the model has no such output"):
        onnxgrad.optimize(model, **around, allow_empty=("z", "h_w", "q"))


def test_steps_of_a_recipe_around_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The passes rewrite the model without its steps, and files of labels lie beside the recipe."""
    text = """g (float[1,3,4,4] x) => (float[1,3] y) {
      i = Identity (x) m = GlobalAveragePool (i) y = Flatten (m) }"""
    onnx.save(parse(text), tmp_path / "m.onnx")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    (tmp_path / "r.toml").write_text(
        '[after.preprocess]\nbefore = "resize{size=[4,4]},to-float"\n'
        'after = { y = "top-k{k=2,labels=labels.txt}" }\n',
        encoding="utf-8",
    )
    words = ["optimize", str(tmp_path / "m.onnx"), "--config", str(tmp_path / "r.toml")]
    assert main([*words, "-o", str(tmp_path / "o.onnx")]) == 0
    assert "steps added after the passes: equal on cpu" in capsys.readouterr().out
    made = onnx.load(tmp_path / "o.onnx")
    assert "Identity" not in {n.op_type for n in made.graph.node}
    picture = np.zeros((1, 5, 6, 3), np.uint8)
    picture[..., 2] = 9
    assert run(made, {"x": picture})["labels"].tolist() == [["blue", "red"]]
    config = '{"image_processor_type": "ViTImageProcessor", "size": 4, "do_normalize": false}'
    (tmp_path / "c.json").write_text(config, encoding="utf-8")
    (tmp_path / "r.toml").write_text('[after.preprocess]\nconfig = "c.json"\n', encoding="utf-8")
    assert main([*words, "-o", str(tmp_path / "o.onnx")]) == 0
    assert "x: resize{size=[4,4],mode=pil-bilinear},to-float" in capsys.readouterr().out
    steps = {"preprocess": {"before": "resize{size=[4,4]},to-float", "after": "argmax"}}
    done = onnxgrad.optimize(parse(text), before=steps, report=True)
    assert interface(done.model) == (["x"], ["classes"])
    assert [c["what"] for c in done.to_dict()["changes"]] == ["steps added before the passes"]
    for table, message in (
        ({"preprocess": {"befor": "bgr"}}, "before: preprocess: unknown key 'befor'; did you mean"),
        ({"preprocess": {"before": "bg"}}, "before: preprocess: before: unknown step 'bg'"),
    ):
        with pytest.raises(InputError, match=message):
            onnxgrad.optimize(parse(text), before=table)


def test_names_of_dimensions_and_new_weights_around_the_passes(tmp_path: Path) -> None:
    """The proof's sizes follow the names; a file of weights lies beside the recipe."""
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "s.npy", np.float32([3, 4]))
    (tmp_path / "sub" / "r.toml").write_text(
        '[before]\nset.s = "s.npy"\nrename_dim = { N = "rows" }\n'
        '[after]\nadd_output = "h"\nrename_dim = { rows = "batch" }\nrename_node = { first = "scale" }\n'
        "[verify]\ndims = { rows = 5 }\n"
    )
    model = parse(
        "g (float[N,2] x) => (float[N,2] y) <float[2] s = {1, 2}> { h = Mul (x, s)  y = Exp (h) }"
    )
    model.graph.node[0].name = "first"
    done = onnxgrad.optimize(model, recipe=tmp_path / "sub" / "r.toml", report=True)
    made = done.model
    assert interface(made) == (["x"], ["y", "h"]) and made.graph.node[0].name == "scale"
    assert onnx.numpy_helper.to_array(made.graph.initializer[0]).tolist() == [3, 4]
    shape = made.graph.output[1].type.tensor_type.shape
    assert [d.dim_param or d.dim_value for d in shape.dim] == ["batch", 2]
    assert [c["proof"] for c in done.to_dict()["changes"]] == ["equal on cpu"] * 2
