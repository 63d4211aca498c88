"""Modules become groups: by torch's metadata, by names, by place; none of one node, none too large."""

from __future__ import annotations

from onnxgrad.report.html.scopes import Group, grouped


def shape(group: Group) -> object:
    return [m if isinstance(m, int) else (m.title, shape(m)) for m in group.members]


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
    assert list(found.nodes()) == list(range(5000))
    first = found.members[0]
    assert isinstance(first, Group) and first.title == "node 1 … 900"
    inner = first.members[0]
    assert isinstance(inner, Group) and inner.title == "node 1 … 30"


def test_many_modules_are_divided_too() -> None:
    found = grouped([(f"layer{i // 2}",) for i in range(140)])
    assert [m.title for m in found.members if isinstance(m, Group)] == [
        "layer0 … layer29", "layer30 … layer59", "layer60 … layer69",
    ]  # fmt: skip
