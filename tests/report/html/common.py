"""What the page's tests have in common: its data back out of it, and a model that means harm."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import onnx
from onnx import TensorProto, helper

# names that would end a script, open an element, run something, or turn the text around
HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "\"'`${window.harmed = 1}\u2028\u202e<!--",
    "a\x00\x1b[31m\x7f&lt;&amp;\\u003c",
)


def data_of(page: str) -> dict[str, Any]:
    """What the page was made from."""
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(found)


def section_of(page: str, kind: str, report: int = 0) -> dict[str, Any]:
    return next(s for s in data_of(page)["reports"][report]["sections"] if s["kind"] == kind)


def hostile_model() -> onnx.ModelProto:
    """Relu(Identity(x)) three times over, everything called by a hostile name."""
    names = ["in", *HOSTILE, "out"]
    nodes = []
    for i, (a, b) in enumerate(pairwise(names)):
        nodes.append(
            helper.make_node("Identity", [a], [f"{b}{i}"], name=f"{HOSTILE[0]}/{HOSTILE[1]}/{b}")
        )
        nodes.append(helper.make_node("Relu", [f"{b}{i}"], [b], name=f"{HOSTILE[0]}/{b}"))
    nodes[1].metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value=f"['', {HOSTILE[0]!r}, 'x']"
    )
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, HOSTILE[0]]) for n in ("in", "out")
    ]
    graph = helper.make_graph(nodes, HOSTILE[0], values[:1], values[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def chain(nodes: int, *, named: bool) -> onnx.ModelProto:
    """A residual network of so many nodes, 25 to a block; `named` after modules."""
    made, value = [], "x"
    for i in range(nodes):
        op, inputs = ("Add", [value, f"v{max(0, i - 20)}"]) if i % 25 == 24 else ("Relu", [value])
        name = f"/stage{i // 500}/block{i // 25}/part{i % 25 // 9}/{op}_{i}" if named else f"n{i}"
        made.append(helper.make_node(op, inputs, [f"v{i}"], name=name))
        value = f"v{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", value)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
