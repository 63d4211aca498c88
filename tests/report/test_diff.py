"""`onnxgrad.diff`: every kind of difference, and what it says of models in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad import Diff, InputError, diff, op
from tests.helpers import parse

TEXT = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float unused = {0}> {
  a = MatMul(x, w)
  y = Relu(a)
}"""

Edit = Callable[[ModelProto], object]
# kind of difference -> (an edit, what is said about it)
EDITS: dict[str, tuple[Edit, str]] = {
    "model": (lambda m: setattr(m, "producer_name", "me"), "producer_name: '' -> 'me'"),
    "interface": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 3),
        "input x: f32[N,2] -> f32[N,3]",
    ),
    "added": (lambda m: m.graph.node.append(helper.make_node("Neg", ["x"], ["n"])), "n = Neg(x)"),
    "removed": (lambda m: m.graph.node.pop(), "y = Relu(a)"),
    "replaced": (lambda m: setattr(m.graph.node[1], "op_type", "Tanh"), "y: Relu(a) -> Tanh(a)"),
    "rewired": (lambda m: m.graph.node[1].input.__setitem__(0, "x"), "y: Relu(a) -> Relu(x)"),
    "attributes": (
        lambda m: m.graph.node[1].attribute.append(helper.make_attribute("__k", 2)),
        "y: Relu __k added",
    ),
    "node_metadata": (lambda m: m.graph.node[1].metadata_props.add(key="k", value="v"), "y"),
    "order": (
        lambda m: m.graph.node.insert(0, m.graph.node.pop()),
        "graph: the nodes are in another order, from a on",
    ),
    "initializers": (
        lambda m: m.graph.initializer[0].CopyFrom(
            helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1, 2, 3, 5])
        ),
        "w: other values",
    ),
    "functions": (
        lambda m: m.functions.append(helper.make_function("d", "f", ["p"], ["q"], [], [])),
        "d::f added",
    ),
    "other": (lambda m: setattr(m.graph, "doc_string", "words"), "graph: doc_string differs"),
}


def edited(edit: Edit) -> ModelProto:
    model = parse(TEXT)
    edit(model)
    return model


def test_every_kind_of_line_has_an_edit() -> None:
    assert {f.name for f in fields(Diff)} == {*EDITS, "operators", "models"}


@pytest.mark.parametrize("kind", EDITS)
def test_each_kind(kind: str) -> None:
    edit, said = EDITS[kind]
    model = parse(TEXT)
    found = diff(model, edited(edit))
    assert isinstance(found, Diff) and not found.same
    assert getattr(found, kind) == [said]
    others = {
        name: value
        for name, value in found.to_dict().items()
        if name not in ("same", kind, "operators")
    }
    assert not any(others.values()), others
    assert said in str(found)
    assert diff(model, model).same and model == parse(TEXT)


def test_operators_are_counted_on_both_sides() -> None:
    found = diff(parse(TEXT), edited(EDITS["replaced"][0]))
    assert found.operators == {"Relu": (1, 0), "Tanh": (0, 1)}
    assert json.loads(json.dumps(found.to_dict()))["operators"] == {"Relu": [1, 0], "Tanh": [0, 1]}


def test_what_it_says() -> None:
    assert str(diff(parse(TEXT), parse(TEXT))) == "the same"
    assert str(diff(parse(TEXT), edited(EDITS["replaced"][0]))) == (
        "operator   A   B        change\n"
        "──────────────────────────────\n"
        "Relu       1   0   -1 (-100 %)\n"
        "Tanh       0   1            +1\n"
        "\n"
        "nodes with another operator (1)\n"
        "  y: Relu(a) -> Tanh(a)"
    )


def test_a_long_list_is_cut_in_the_text_only() -> None:
    model = parse(TEXT)
    model.graph.node.extend(helper.make_node("Neg", ["x"], [f"n{i}"]) for i in range(20))
    found = diff(parse(TEXT), model)
    assert len(found.added) == 20
    assert (
        "nodes added (20)" in str(found)
        and "and 8 more (-v)" in str(found)
        and "n19" not in str(found)
    )
    assert "n19 = Neg(x)" in found.to_markdown() and "more" not in found.to_markdown()


def test_weights_are_compared_wherever_they_lie(tmp_path: Path) -> None:
    model = parse(TEXT)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    inside = onnx.ModelProto()
    inside.CopyFrom(model)
    path = tmp_path / "outside.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert diff(inside, path).same and diff(onnxgrad.load(path), inside).same
    (tmp_path / "w.bin").write_bytes(bytes((tmp_path / "w.bin").stat().st_size))
    assert diff(inside, path).initializers == ["w: other values"]
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match="external data of initializer 'w' cannot be read"):
        diff(inside, path)


def test_a_program_as_it_is_now() -> None:
    program = onnxgrad.load(parse(TEXT))
    onnxgrad.rewrite_call(onnxgrad.P.Relu(onnxgrad.capture("x")), lambda x: op.Tanh(x), program)
    assert diff(parse(TEXT), program).replaced == ["y: Relu(a) -> Tanh(a)"]


def test_no_control_characters_in_the_text() -> None:
    found = diff(parse(TEXT), edited(lambda m: setattr(m.graph.node[1], "op_type", "T\x1b[2J")))
    assert "\x1b" not in str(found) and "T\\x1b[2J" in str(found)
    assert "\x1b" not in found.to_markdown()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.onnx"):
        diff(parse(TEXT), tmp_path / "nothing.onnx")
    with pytest.raises(InputError, match="truncated"):
        diff(b"no model", parse(TEXT))
