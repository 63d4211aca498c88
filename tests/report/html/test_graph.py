"""A program as boxes and lines: modules, values by kind, nested graphs and functions."""

from __future__ import annotations

from typing import Any

import pytest

import onnxgrad
from onnxgrad.report.html.graph import Drawn
from onnxgrad.report.html.scopes import scope_of
from tests.helpers import parse


def drawn(model: Any, **options: Any) -> dict[str, Any]:
    return Drawn(onnxgrad.load(model), **options).to_dict()


def test_nodes_values_and_ends() -> None:
    found = drawn(
        parse("""g (float[N,4] x, int64 k) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
        a = Mul (x, w)  y = Elu <alpha = 0.5> (a) }""")
    )
    names = [v[0] for v in found["values"]]
    kinds = {name: kind for name, _, kind in found["values"]}
    assert kinds == {"x": 1, "k": 1, "w": 2, "a": 0, "y": 0}
    assert [names[v] for v in found["inputs"]] == ["x", "k"]
    assert [names[v] for v in found["outputs"]] == ["y"]
    mul, elu = found["nodes"]
    assert [names[v] for v in mul["i"]] == ["x", "w"] and [names[v] for v in mul["r"]] == ["a"]
    assert elu["o"] == "Elu" and elu["a"] == "alpha=0.5"
    assert next(t for n, t, _ in found["values"] if n == "a") == "f32[N,4]"


def test_torch_names_the_modules() -> None:
    found = drawn("models/training/bert.onnx")
    titles = {title for _, title in found["groups"]}
    assert {"embeddings", "encoder", "layer.0", "attention"} <= titles
    # each node is in a group that stands in the list, outer groups before inner ones
    assert all(0 <= node["g"] < len(found["groups"]) for node in found["nodes"])
    assert all(outer < i for i, (outer, _) in enumerate(found["groups"]))


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        (
            "['', 'model', 'model.layer.0', 'model.layer.0.attn', 'add']",
            ("model", "layer.0", "attn"),
        ),
        ("['', 'a', 'x'] | ['', 'a', 'a.b', 'y']", ("a",)),
        ("['', 'x']", ()),
        ("no list", None),
        ("[1, 2]", None),
        ("[" * 5000, None),
    ],
)
def test_the_scope_of_a_node(text: str, scope: object) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    (b,) = onnxgrad.load(model).main.bindings
    assert scope_of(b) == scope


def test_nested_graphs_are_groups_inside() -> None:
    found = drawn(
        parse("""g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) { q = Relu (x)  p = Neg (q) },
                    else_branch = e () => (float[2] r) { s = Abs (x)  r = Neg (s) }> }""")
    )
    assert [n["o"] for n in found["nodes"]] == ["If", "Relu", "Neg", "Abs", "Neg"]
    titles = [title for _, title in found["groups"]]
    assert "then_branch" in titles and "else_branch" in titles
    names = [v[0] for v in found["values"]]
    assert [names[v] for v in found["nodes"][0]["k"]] == ["p", "r"]


def test_new_nodes_stand_apart() -> None:
    found = drawn("models/training/mlp.onnx", apart="gradient", known=set())
    assert found["groups"][0][1].startswith("gradient")
