"""Modules become groups: by torch's metadata, by names, by place; none of one node, none too large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onnxgrad
from onnxgrad.report.html.graph import Drawn, Group, grouped, scope_of
from tests.helpers import parse
from tests.report.html.common import section_of


def shape(group: Group) -> object:
    return [m if isinstance(m, int) else (m.title, shape(m)) for m in group.members]


def numbers(group: Group) -> Iterator[int]:
    """The numbers of all nodes in a group."""
    for member in group.members:
        yield from numbers(member) if isinstance(member, Group) else [member]


def test_nested_groups_keep_the_order_of_nodes() -> None:
    scopes = [("a",), ("a",), (), ("b", "c"), ("b", "c"), ("b",)]
    assert shape(grouped(scopes)) == [("a", [0, 1]), 2, ("b", [("c", [3, 4]), 5])]


def test_a_group_of_one_node_is_that_node() -> None:
    assert shape(grouped([("a",), ("b", "c"), ("b", "c")])) == [0, ("b.c", [1, 2])]


def test_what_holds_one_group_alone_is_called_with_it() -> None:
    assert shape(grouped([("a", "b"), ("a", "b"), ("c",), ("c",)])) == [
        ("a.b", [0, 1]),
        ("c", [2, 3]),
    ]


def test_many_nodes_without_modules_are_divided_by_place() -> None:
    found = grouped([()] * 5000)
    sizes, work = [], [found]
    while work:
        group = work.pop()
        sizes.append(len(group.members))
        work += [m for m in group.members if isinstance(m, Group)]
    assert max(sizes) <= 60
    assert list(numbers(found)) == list(range(5000))
    first = found.members[0]
    assert isinstance(first, Group) and first.title == "node 1 … 900"
    inner = first.members[0]
    assert isinstance(inner, Group) and inner.title == "node 1 … 30"


def test_many_modules_are_divided_too() -> None:
    found = grouped([(f"layer{i // 2}",) for i in range(140)])
    assert [m.title for m in found.members if isinstance(m, Group)] == [
        "layer0 … layer29", "layer30 … layer59", "layer60 … layer69",
    ]  # fmt: skip


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


MODEL = """g (float[2,3] x) => (float[2,3] y) {
    a = Identity (x)  b = Transpose <perm = [1, 0]> (a)  c = Transpose <perm = [1, 0]> (b)  d = Relu (c)  y = Neg (d) }"""


def test_removed_and_changed_nodes_know_their_rewrites() -> None:
    done = onnxgrad.optimize(parse(MODEL), report=True, verify=False)
    found = section_of(done.to_html(), "graph")
    before, after = found["graphs"]
    became = {n["o"]: n.get("c") for n in before["nodes"]}
    assert became == {"Identity": "removed", "Transpose": "removed", "Relu": "changed", "Neg": None}
    assert {n["o"]: n.get("c") for n in after["nodes"]} == {"Relu": "changed", "Neg": None}
    identity = before["nodes"][0]
    law, where, proof = found["rewrites"][identity["w"][0] - 1]
    assert found["laws"][law] == ["identity", "remove-noops", "Identity(x) = x"]
    assert where == "a: f32[2,3] = Identity(x)"
    assert proof == "" and found["whole"] == ""  # nothing was proved


def test_new_nodes_know_the_rewrite_that_emitted_them() -> None:
    done = onnxgrad.optimize("models/mobilenet_v2.raw.onnx", report=True, verify=False)
    found = section_of(done.to_html(), "graph")
    new = [n for n in found["graphs"][1]["nodes"] if "w" in n]
    # each has the name of the value that it stands for
    assert len(new) > 50 and {n["c"] for n in new} == {"changed"}
    gone = [n for n in found["graphs"][0]["nodes"] if n["o"] == "BatchNormalization"]
    laws = {found["laws"][found["rewrites"][w - 1][0]][2] for n in gone for w in n["w"]}
    first = "BN(x) = x * scale + shift, where x is a product that can take them"
    (then,) = laws - {first}  # what became of the value that stands for it
    assert first in laws and then.startswith("Conv(x, w, c) + d = Conv(x, w, c + d)")


def test_each_rewrite_says_its_own_proof() -> None:
    done = onnxgrad.optimize(parse(MODEL), report=True, verify="each", seeds=[0])
    found = section_of(done.to_html(), "graph")
    proofs = {proof for _, _, proof in found["rewrites"]}
    assert proofs == {"equal on its own operands"}
    assert found["whole"] == "with the whole model: equal on cpu"
