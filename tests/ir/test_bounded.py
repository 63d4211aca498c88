"""Models of a few hundred bytes whose types would take all memory or time to tell: reading them takes little of both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.helpers import parse

# a process per model: how much more memory than Python, numpy and onnx take, and how much time
READ = """
import os, resource, sys
from onnxgrad import InputError, load
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (300 << 20)
for path in sys.argv[1:]:
    if not os.fork():
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        try:
            load(path)
        except InputError:
            os._exit(os.path.basename(path) not in ("nested", "parts", "rank 300"))  # beyond what reading takes
        os._exit(0)
    if os.wait()[1]:
        print(os.path.basename(path))
"""


def chain(op: str, count: int, before: str, **attributes: object) -> ModelProto:
    """`count` nodes, each of which reads the one before it twice, behind `before`, which makes v0."""
    model = parse(f"g (float[3] x) => (float[n] y) {{ {before} y = Cast<to = 1>(v0) }}")
    nodes = [
        helper.make_node(op, [f"v{i}", f"v{i}"], [f"v{i + 1}"], **attributes) for i in range(count)
    ]
    last = model.graph.node[-1]
    last.input[0] = f"v{count}"
    del model.graph.node[-1]
    model.graph.node.extend([*nodes, last])
    return model


def from_length(op: str) -> ModelProto:
    """A rank of 2^40, from the length of a vector."""
    operands = {"ConstantOfShape": "s", "Resize": "x, , , s"}.get(op, "x, s")
    return parse(
        f"g (float[3] x, int64[1099511627776] s) => (float[...] y) {{ y = {op}({operands}) }}".replace(
            "[...]", ""
        )
    )


def nested_ifs(depth: int) -> ModelProto:
    """Both branches hold the next If; the deepest that protobuf reads from a file is about 30."""
    inner = "y0 = Neg(x)"
    text = f"g (float[3] x, bool c) => (float[3] y) {{ {inner} y = Identity(y0) }}"
    model = parse(text)
    body: NodeProto = model.graph.node[0]
    for i in range(1, depth):
        node = helper.make_node("If", ["c"], [f"y{i}"])
        for branch in ("then_branch", "else_branch"):
            graph = onnx.GraphProto(name=f"{branch}{i}")
            graph.node.append(
                body
                if branch == "then_branch"
                else helper.make_node("Abs", ["x"], [body.output[0]])
            )
            graph.output.add(name=body.output[0]).type.tensor_type.elem_type = TensorProto.FLOAT
            node.attribute.append(helper.make_attribute(branch, graph))
        body = node
    del model.graph.node[0]
    model.graph.node.insert(0, body)
    model.graph.node[1].input[0] = body.output[0]
    return model


def calls(depth: int) -> ModelProto:
    """Functions, each of which calls the next."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function(
            "f",
            f"F{i}",
            ["x"],
            ["y"],
            [helper.make_node(f"F{i + 1}", ["x"], ["y"], domain="f")],
            imports,
        )
        for i in range(depth)
    ]
    functions.append(
        helper.make_function(
            "f", f"F{depth}", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], imports
        )
    )
    model = parse("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    model.opset_import.append(imports[1])
    model.graph.node[0].CopyFrom(helper.make_node("F0", ["x"], ["y"], domain="f"))
    model.functions.extend(functions)
    return model


def rank(count: int) -> ModelProto:
    dims = ",".join(["1"] * count)
    return parse(
        f"g (float[{dims}] x) => (float[{dims}] y) {{ s = Shape(x) t = Neg(x) y = Reshape(t, s) }}"
    )


RANGE = "a = Constant<value_int = 0>() b = Constant<value_int = 4611686018427387904>() c = Constant<value_int = 1>()"
# onnx's inference writes the size of the second part behind the end of a list of one
PARTS = """<ir_version: 8, opset_import: ["": 18, "f": 1]>
g (float[4] x) => (float[N] y) { y = f.parts<n = 1>(x) }
<domain: "f", opset_import: ["": 18]> parts <n>(a) => (b) { b, c = Split<num_outputs: int = @n>(a) }"""
BOMBS: dict[str, Callable[[], ModelProto]] = {
    "Range": lambda: parse(
        f"g (float[N] x) => (float[N] y) {{ {RANGE} r = Range(a, b, c) y = Cast<to = 1>(r) }}"
    ),
    "ConstantOfShape": lambda: parse(
        "g (float[N] x) => (float[N] y) { s = Constant<value_ints = [1099511627776]>() v = ConstantOfShape(s) y = Add(v, v) }"
    ),
    "Expand": lambda: parse(
        """g (int64[1] x) => (int64[N] y) { s = Constant<value_ints = [1099511627776]>() v = Expand(x, s)
        y = Concat<axis = 0>(v, v) }"""
    ),
    "Tile": lambda: parse(
        "g (int64[1] x) => (int64[N] y) { s = Constant<value_ints = [1099511627776]>() v = Tile(x, s) y = Mul(v, v) }"
    ),
    "Concat": lambda: chain("Concat", 45, "v0 = Shape(x)", axis=0),
    "sums": lambda: chain("Add", 3000, "v0 = Shape(x)"),
    "powers": lambda: chain("Mul", 3000, "v0 = Constant<value_ints = [4611686018427387904]>()"),
    **{
        f"rank of {op}": (lambda op=op: from_length(op))
        for op in ("ConstantOfShape", "Reshape", "Expand", "Tile", "Resize")
    },
    "parts": lambda: parse(
        "g (float[8] x) => (float[N] y) { y = Split<num_outputs = 4294967296>(x) }"
    ),
    "parts of a function": lambda: parse(PARTS),
    "step": lambda: parse(
        """g (float[8] x) => (float[N] y) { s = Shape(x) a = Constant<value_ints = [0]>() z = Slice(s, a, a, a, a)
        y = ConstantOfShape(z) }"""
    ),
    "nested": lambda: nested_ifs(28),
    "calls": lambda: calls(2000),
    "rank 300": lambda: rank(300),
    "long": lambda: chain("Max", 5000, "v0 = Neg(x)"),
}


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="measures memory as Linux tells it"
)
def test_reading_is_bounded(tmp_path: Path) -> None:
    for name, make in BOMBS.items():
        onnx.save(make(), tmp_path / name)
    paths = sorted(map(str, tmp_path.iterdir()))
    found = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("", "")
