"""Decisions about two models and about windows, in the child process that `client` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto, helper

from onnxgrad.verify.exact.decide import decide
from onnxgrad.verify.exact.field import Undecided
from onnxgrad.verify.exact.window import Decision, Window


def decide_in_child(
    a: ModelProto, b: ModelProto, names: Mapping[str, str], seconds: float
) -> tuple[Any, ...]:
    """Returns the fields of a decision about two models."""
    outputs = {o.name for o in b.graph.output}
    claims = [(o.name, names.get(o.name, o.name)) for o in a.graph.output]
    if missing := [theirs for _, theirs in claims if theirs not in outputs]:
        return ("sampled", (), f"the second model has no output {missing[0]}")
    try:
        found = decide(Window(a, _renamed(a, b, names), tuple(claims)), seconds=seconds)
    except Undecided as error:
        return ("sampled", (), str(error))
    return _fields(found)


def decide_window_in_child(
    old: ModelProto, new: ModelProto, claims: Sequence[tuple[str, str]],
    witnesses: Mapping[str, ModelProto], made: Sequence[str], seconds: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns the fields of a decision about the window of a rewrite."""
    pairs = tuple((a, b) for a, b in claims)
    found = decide(Window(old, new, pairs, (), witnesses, tuple(made)), seconds=seconds)
    return _fields(found)


def _fields(found: Decision) -> tuple[Any, ...]:
    return (found.verdict, found.rounded, found.stopped_by, found.bound, found.sizes, found.partial)


def _renamed(a: ModelProto, b: ModelProto, names: Mapping[str, str]) -> ModelProto:
    """Returns `b` with the inputs of `a`."""
    inputs = {i.name for i in a.graph.input} & names.keys()
    renamed = {names[name]: name for name in inputs if names[name] != name}
    if not renamed:
        return b
    found = ModelProto()
    found.CopyFrom(b)
    inside = {o for n in b.graph.node for o in n.output} | {t.name for t in b.graph.initializer}
    if clash := inside & set(renamed.values()):
        raise Undecided(f"{min(clash)} is an input of one model and inside the other")
    nodes = list(found.graph.node)
    del found.graph.node[:]
    for i in found.graph.input:
        if i.name in renamed:
            theirs, i.name = i.name, renamed[i.name]
            found.graph.node.append(helper.make_node("Identity", [i.name], [theirs]))
    found.graph.node.extend(nodes)
    return found
