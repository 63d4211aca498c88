"""`onnxgrad.inspect`: facts of a model, as data and as text."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad import InputError, Summary, inspect, op
from onnxgrad.jobs.inspection.contents import Value, text_of, weights
from tests.helpers import parse

TEXT = """<ir_version: 10, opset_import: ["": 20, "d": 1], producer_name: "me", producer_version: "2",
 metadata_props: ["k": "v"]>
g (float[N,2] x, bool c, float[2] b = {1, 2}) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, int64 one = {1}> {
  a = MatMul(x, w)
  s = If (c) <then_branch = t () => (float[N,2] p) { p = Add(a, b) }, else_branch = e () => (float[N,2] q) { q = Neg(a) }>
  y = d.f(s)
}
<domain: "d", opset_import: ["": 20]> f (p) => (q) { q = Tanh(p) }"""


def test_facts() -> None:
    found = inspect(parse(TEXT))
    assert isinstance(found, Summary)
    assert (found.model, found.ir_version, found.opsets, found.producer) == (
        "g",
        10,
        {"": 20, "d": 1},
        "me 2",
    )
    assert found.inputs == [
        Value("x", "f32[N,2]"),
        Value("c", "bool[]"),
        Value("b", "f32[2]", default=True),
    ]
    assert found.outputs == [Value("y", "f32[N,2]")]
    assert (found.initializers, found.functions, found.nested) == (3, [("d", "f", "")], 2)
    assert found.metadata == {"k": "v"} and found.external == []
    assert found.stats.nodes == 6 and found.stats.parameters == 7
    assert found.stats.dtypes == {"f32": 6, "i64": 1}


def test_as_json() -> None:
    found = json.loads(json.dumps(inspect(parse(TEXT)).to_dict()))
    assert found["functions"] == ["d::f"] and found["inputs"][0] == {
        "name": "x",
        "type": "f32[N,2]",
    }
    assert found["operators"] == {"Add": 1, "If": 1, "MatMul": 1, "Neg": 1, "Tanh": 1, "d::f": 1}
    assert found["nodes"] == 6 and found["parameters"] == 7 and found["metadata"] == {"k": "v"}


def test_as_text() -> None:
    lines = str(inspect(parse(TEXT))).splitlines()
    assert lines[0] == "g"
    facts = {
        line.split("   ")[0].strip(): line.split("   ", 1)[1].strip()
        for line in lines[1 : lines.index("")]
    }
    assert (
        facts["nodes"] == "6"
        and facts["parameters"] == "7 (6 f32, 1 i64)"
        and facts["functions"] == "f"
    )
    assert (
        facts["opset"] == "ai.onnx 20, d 1"
        and facts["made by"] == "me 2"
        and facts["nested graphs"] == "2"
    )
    assert "weights in" not in facts
    assert any(line.split() == ["input", "with", "default", "b", "f32[2]"] for line in lines)
    assert not any(line.endswith("\n") for line in lines)


def test_as_markdown() -> None:
    text = inspect(parse(TEXT)).to_markdown()
    assert text.startswith("### g\n\n|") and "| operator | count | FLOPs | results |\n" in text
    assert "| --- | --: | --: | --: |\n| MatMul | 1 | ? | ? |\n" in text
    assert "| output | y | f32\\[N,2\\] |" in text


def test_a_file_is_called_by_its_path_and_names_its_weights(tmp_path: Path) -> None:
    model = parse(TEXT)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()  # nobody reads it
    found = inspect(path)
    assert found.model == str(path) and found.external == ["w.bin"] and found.stats.parameters == 7
    assert inspect(onnxgrad.load(path)) == found


def test_a_program_as_it_is_now() -> None:
    program = onnxgrad.load(parse("g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }"))
    onnxgrad.rewrite_call(onnxgrad.P.Relu(onnxgrad.capture("x")), lambda x: op.Tanh(x), program)
    assert inspect(program).stats.operators == {"Identity": 1, "Tanh": 1}


def test_long_lists_are_cut_in_the_text_only() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for i in range(40):
        model.metadata_props.add(key=f"k{i}", value=100 * "v" if i == 0 else "v")
    found = inspect(model)
    assert (
        "and 10 more (-v)" in str(found)
        and "k39" not in str(found)
        and 77 * "v" + "..." in str(found)
    )
    assert (
        "k39" in found.to_markdown()
        and 100 * "v" in found.to_markdown()
        and len(found.metadata) == 40
    )


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.onnx"):
        inspect(tmp_path / "nothing.onnx")
    with pytest.raises(InputError, match="unknown operator Nonsense"):
        inspect(parse("g (float[2] x) => (float[2] y) { y = Nonsense(x) }"))


BRANCHES = """g (float[2,3] x, bool c) => (float[2,3] y) {
  y = If (c) <then_branch = t () => (float[2,3] p) <float[3,3] w = {1,2,3,4,5,6,7,8,9}> { p = MatMul (x, w) },
              else_branch = e () => (float[2,3] q) <float[3] shift = {0,0,0}> { q = Sub (x, shift) }> }"""


def test_nested_weights_are_listed_and_the_model_is_left_alone() -> None:
    model = parse(BRANCHES)
    before = model.SerializeToString()
    found = weights(model)
    assert [(v.name, v.type, v.is_weight, v.why) for v in found.values] == [
        ("w", "f32[3,3]", True, "matrix of a product"),
        ("shift", "f32[3]", False, "a table that was not trained: all 0"),
    ]
    assert model.SerializeToString() == before
    assert found.to_dict()["left_out"] == [
        {"name": "shift", "type": "f32[3]", "why": found.values[1].why}
    ]


def test_without_v_the_first_of_each_reason() -> None:
    text = "".join(f" a{i + 1} = MatMul (a{i}, w{i})" for i in range(40))
    given = ", ".join(f"float[1,1] w{i} = {{{i}.5}}" for i in range(40))
    found = weights(parse(f"g (float[1,1] a0) => (float[1,1] a40) <{given}> {{{text} }}"))
    assert "weight (40)" in str(found) and "and 10 more (-v)" in str(found)
    assert "left out" not in str(found)


def test_outputs_show_the_declared_size_beside_the_computed_one() -> None:
    model = parse("""g (float[B,S,8] x, float[B,?] u) => (float[rows,8] y, int64[1,k] z, float[2,6,8] w, float[B,n] v) <int64[2] t = {-1, 8}> {
      y = Reshape(x, t) z = NonZero(y) w = Relu(x) v = Neg(u) }""")
    types = ["f32[rows=B*S,8]", "i64[1,k]", "f32[2=B,6=S,8]", "f32[B,n=u.1]"]
    assert [v.type for v in inspect(model).outputs] == types
    text = text_of(model)
    assert all(f"  {name}: {shown} = " in text for name, shown in zip("yzwv", types, strict=True))
    assert "rows=" not in str(onnxgrad.load(model))  # in no type that anything is decided by
