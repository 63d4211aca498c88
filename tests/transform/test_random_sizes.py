"""Random graphs that are written for any size: written for one, opened, and compared with themselves
written for others. Sizes are small, so that they equal each other and other numbers by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_sizes import open_dimensions
from onnxgrad.verify import feeds_for, run

# an axis: factors, numbers or formulas of n and m
Axis = tuple[object, ...]
# what a graph does never depends on the sizes it is written for, but on these
MOST, LARGE, SMALL = 30_000, {"n": 12, "m": 12}, {"n": 2, "m": 2}  # elements; sizes
APART = {"n": 1009, "m": 1013}


@dataclass
class Graph:
    """A chain of nodes written for `sizes`; `shape` is that of the last value."""

    sizes: dict[str, int]
    shape: list[Axis]
    draw: Callable[[int], int]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "x"

    def at(self, axis: Axis, sizes: dict[str, int] | None = None) -> int:
        values = [eval(str(f), {}, dict(sizes or self.sizes)) for f in axis]
        return math.prod(values)

    def numbers(self, shape: list[Axis]) -> list[int]:
        return [self.at(axis) for axis in shape]

    def follows(self, axis: Axis) -> bool:
        return self.at(axis, APART) != self.at(axis, {"n": 2003, "m": 2011})

    def constant(self, array: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def ints(self, values: object) -> str:
        return self.constant(values, np.int64)

    def value(self, op: str, operands: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], name, **attributes))
        return name

    def add(self, op: str, operands: list[str], shape: list[Axis], **attributes: object) -> None:
        if math.prod(self.at(a, LARGE) for a in shape) <= MOST and len(shape) < 6:
            self.last, self.shape = self.value(op, operands, **attributes), shape

    def axis(self) -> int:
        return self.draw(len(self.shape))

    def along(self, i: int) -> list[int]:
        return [-1 if k == i else 1 for k in range(len(self.shape))]


def elementwise(g: Graph) -> None:
    g.add(("Tanh", "Neg", "Sigmoid")[g.draw(3)], [g.last], g.shape)


def a_constant(g: Graph) -> None:
    """Weights along fixed axes; positions, a fill or a triangle along open ones."""
    i, kind = g.axis(), g.draw(4)
    size = g.at(g.shape[i])
    if kind == 0 and i and g.shape[i - 1] == g.shape[i]:
        array = np.tri(size).reshape(size, size, *[1] * (len(g.shape) - 1 - i))
        g.add("Add", [g.last, g.constant(array)], g.shape)
        return
    made = np.arange(size) if g.follows(g.shape[i]) else np.sin(np.arange(size) * 1.7)
    made = np.full(size, 0.5) if kind == 1 else made
    g.add("Mul" if kind == 2 else "Add", [g.last, g.constant(made.reshape(g.along(i)))], g.shape)


def transpose(g: Graph) -> None:
    perm = list(range(len(g.shape)))
    a, b = g.axis(), g.axis()
    perm[a], perm[b] = perm[b], perm[a]
    g.add("Transpose", [g.last], [g.shape[p] for p in perm], perm=perm)


def reshape(g: Graph) -> None:
    """Axes joined, taken apart, in another order, or flat, with literals, 0 or -1."""
    made, kind, i = [*g.shape], g.draw(6), g.axis()
    if kind == 0 and i:
        made[i - 1 : i + 1] = [made[i - 1] + made[i]]
    elif kind in (1, 2) and len(made[i]) > 1:
        cut = 1 + g.draw(len(made[i]) - 1)
        made[i : i + 1] = [made[i][:cut], made[i][cut:]]
    elif kind == 3:  # numbers move within a shape: elements do, too
        k = g.axis()
        made[i], made[k] = made[k], made[i]
    elif kind == 4:
        made.insert(i, (1,))
    elif kind == 5 and i:
        made = [sum(made[:i], ()), sum(made[i:], ())]
    target = g.numbers(made)
    if g.draw(3) == 0:
        target[g.draw(len(target))] = -1
    g.add("Reshape", [g.last, g.ints(target)], made)


def slice_(g: Graph) -> None:
    i, kind = g.axis(), g.draw(3)
    least = g.at(g.shape[i], SMALL)
    ends: list[Axis] = [g.shape[i], (min(2, least),), (f"({text(g.shape[i])}-1)",)]
    end = [g.at(g.shape[i]), min(2, least), -1][kind]
    if kind < 2 or least > 1:
        bounds = [g.ints([v]) for v in (0, end, i)]
        g.add("Slice", [g.last, *bounds], [*g.shape[:i], ends[kind], *g.shape[i + 1 :]])


def text(axis: Axis) -> str:
    return "*".join(map(str, axis))


def concat(g: Graph) -> None:
    i = g.axis()
    g.add("Concat", [g.last, g.last], [*g.shape[:i], (2, *g.shape[i]), *g.shape[i + 1 :]], axis=i)


def with_itself(g: Graph) -> None:
    """Each row with each, as in attention."""
    if len(g.shape) > 1:
        before, rows = g.shape[:-2], g.shape[-2]
        perm = [*range(len(before)), len(before) + 1, len(before)]
        turned = g.value("Transpose", [g.last], perm=perm)
        g.add("MatMul", [g.last, turned], [*before, rows, rows])


def matmul(g: Graph) -> None:
    size = g.at(g.shape[-1])
    if not g.follows(g.shape[-1]):
        w = np.sin(np.arange(size * 4)).reshape(size, 4)
        g.add("MatMul", [g.last, g.constant(w)], [*g.shape[:-1], (4,)])


def reduce(g: Graph) -> None:
    i, keep = g.axis(), g.draw(2)
    if len(g.shape) > 1:
        kept: list[Axis] = [*g.shape[:i], *([(1,)] if keep else []), *g.shape[i + 1 :]]
        g.add("ReduceMax", [g.last, g.ints([i])], kept, keepdims=keep)


def expand(g: Graph) -> None:
    """A new axis of an open or of another size."""
    i, size = g.axis(), ((3,), ("n",), ("m",), (4,))[g.draw(4)]
    wide = g.value("Unsqueeze", [g.last, g.ints([i])])
    shape: list[Axis] = [*g.shape[:i], size, *g.shape[i:]]
    target = (
        g.numbers(shape) if g.draw(2) else [g.at(a) if k == i else 1 for k, a in enumerate(shape)]
    )
    g.add("Expand", [wide, g.ints(target)], shape)


def filled(g: Graph) -> None:
    """A number for each position, that meets the positions or not."""
    i, kind = g.axis(), g.draw(3)
    size = g.at(g.shape[i])
    if kind == 0:
        limits = [g.ints(v) for v in (0, size, 1)]
        made = g.value("Cast", [g.value("Range", limits)], to=TensorProto.FLOAT)
    else:
        made = g.value(
            "ConstantOfShape", [g.ints([size])], value=helper.make_tensor("v", 1, [1], [0.5])
        )
    if g.draw(3) == 0:
        g.add("Add", [g.last, g.value("ReduceSum", [made], keepdims=0)], g.shape)
    else:
        g.add("Add", [g.last, g.value("Reshape", [made, g.ints(g.along(i))])], g.shape)


def gather(g: Graph) -> None:
    i, kind = g.axis(), g.draw(3)
    indices = [np.arange(g.at(g.shape[i])), [0], [min(1, g.at(g.shape[i], SMALL) - 1), 0]][kind]
    sizes: list[Axis] = [g.shape[i], (1,), (2,)]
    g.add(
        "Gather", [g.last, g.ints(indices)], [*g.shape[:i], sizes[kind], *g.shape[i + 1 :]], axis=i
    )


def pad(g: Graph) -> None:
    i = g.axis()
    pads = [0] * (2 * len(g.shape))
    pads[i + len(g.shape)] = 1
    g.add(
        "Pad",
        [g.last, g.ints(pads)],
        [*g.shape[:i], (f"({text(g.shape[i])}+1)",), *g.shape[i + 1 :]],
    )


def tile(g: Graph) -> None:
    i = g.axis()
    repeats = [2 if k == i else 1 for k in range(len(g.shape))]
    g.add("Tile", [g.last, g.ints(repeats)], [*g.shape[:i], (2, *g.shape[i]), *g.shape[i + 1 :]])


def softmax(g: Graph) -> None:
    g.add("Softmax", [g.last], g.shape, axis=g.axis())


def resize(g: Graph) -> None:
    """To its own size, or to another that is fixed."""
    if len(g.shape) > 1:
        i = g.axis()
        to = [*g.shape[:i], (4,), *g.shape[i + 1 :]] if g.draw(2) else g.shape
        g.add("Resize", [g.last, "", "", g.ints(g.numbers(to))], to, mode="nearest")


def through(g: Graph, name: str, shape: list[Axis]) -> tuple[list[onnx.NodeProto], str]:
    """Nodes of a body that change a value: flat and back, and positions added to one axis."""
    end = f"{name}_{len(g.nodes)}"
    nodes = [
        helper.make_node("Reshape", [name, g.ints([math.prod(g.numbers(shape))])], [f"{end}a"]),
        helper.make_node("Reshape", [f"{end}a", g.ints(g.numbers(shape))], [f"{end}b"]),
        helper.make_node("Tanh", [f"{end}b"], [end]),
    ]
    return nodes, end


def body(
    g: Graph, nodes: list[onnx.NodeProto], inputs: list[tuple[str, int, list[int]]],
    ends: list[str], shapes: list[list[int]],
) -> onnx.GraphProto:  # fmt: skip
    made = [helper.make_tensor_value_info(*v) for v in inputs]
    results = [helper.make_tensor_value_info(n, 9 if n[0] == "o" else 1, s) for n, s in zip(ends, shapes, strict=True)]  # fmt: skip
    return helper.make_graph(nodes, "body", made, results)


def in_if(g: Graph) -> None:
    """One of two branches, by a value; one of them may return a fill."""
    top = g.value("ReduceMax", [g.last], keepdims=0)
    chosen = g.value("Less", [top, g.constant(0.5)])
    sizes, (nodes, end) = g.numbers(g.shape), through(g, g.last, g.shape)
    other = helper.make_node("Neg", [g.last], [f"{end}n"])
    if g.draw(2):
        other = helper.make_node("Identity", [g.constant(np.full(sizes, 0.25))], [f"{end}n"])
    branches = [body(g, nodes, [], [end], [sizes]), body(g, [other], [], [f"{end}n"], [sizes])]
    g.add("If", [chosen], g.shape, then_branch=branches[0], else_branch=branches[1])


def in_loop(g: Graph) -> None:
    """A state that keeps its shape, in two runs."""
    k, sizes = len(g.nodes), g.numbers(g.shape)
    nodes, end = through(g, f"s{k}", g.shape)
    nodes.append(helper.make_node("Identity", [f"on{k}"], [f"on{k}_"]))
    inputs: list[tuple[str, int, list[int]]] = [(f"i{k}", 7, []), (f"on{k}", 9, []), (f"s{k}", 1, sizes)]  # fmt: skip
    made = body(g, nodes, inputs, [f"on{k}_", end], [[], sizes])
    g.add("Loop", [g.ints(1 + g.draw(2)), g.constant(True, np.bool_), g.last], g.shape, body=made)


def in_scan(g: Graph) -> None:
    """Every entry of an axis, with positions that are scanned beside it or not."""
    if len(g.shape) < 2:
        return
    i, k = g.axis(), len(g.nodes)
    rest = [*g.shape[:i], *g.shape[i + 1 :]]
    nodes, end = through(g, f"e{k}", rest)
    inputs = [(f"e{k}", 1, g.numbers(rest))]
    operands = [g.last]
    if g.follows(g.shape[i]) and g.draw(2):
        nodes.append(helper.make_node("Add", [end, f"p{k}"], [f"{end}p"]))
        inputs.append((f"p{k}", 1, []))
        operands.append(g.constant(np.arange(g.at(g.shape[i]))))
        end += "p"
    made = body(g, nodes, inputs, [end], [g.numbers(rest)])
    axes = [i, *[0] * (len(inputs) - 1)]
    g.add("Scan", operands, g.shape, body=made, num_scan_inputs=len(inputs),
          scan_input_axes=axes, scan_output_axes=[i])  # fmt: skip


STEPS = (
    *(
        elementwise,
        a_constant,
        a_constant,
        transpose,
        transpose,
        reshape,
        reshape,
        reshape,
        reshape,
    ),
    *(
        slice_,
        concat,
        with_itself,
        matmul,
        reduce,
        expand,
        filled,
        gather,
        pad,
        tile,
        softmax,
        resize,
        in_if,
        in_loop,
        in_scan,
    ),
)


def model_of(shape: list[Axis], sizes: dict[str, int], choices: list[int]) -> onnx.ModelProto:
    left = iter(choices)

    def draw(count: int) -> int:
        return next(left) % count

    g = Graph(sizes, [*shape], draw)
    first = helper.make_tensor_value_info("x", TensorProto.FLOAT, g.numbers(g.shape))
    try:
        while len(g.nodes) < 12:
            STEPS[draw(len(STEPS))](g)
    except StopIteration:
        pass
    elementwise_last = g.value("Identity", [g.last])
    result = helper.make_tensor_value_info(elementwise_last, TensorProto.FLOAT, None)
    graph = helper.make_graph(g.nodes, "g", [first], [result], g.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def check(shape: list[Axis], sizes: dict[str, int], choices: list[int]) -> str:
    """Whether it opens ("opened") or not (why); fails if it computes something else."""
    model = model_of(shape, sizes, choices)
    wanted = {s: [f"x.{i}" for i, a in enumerate(shape) if a == (s,)] for s in "nm"}
    wanted = {s: places for s, places in wanted.items() if places}
    try:
        done = open_dimensions(load_own(model), wanted, extend={"*": ""})
    except InputError as error:
        return str(error)
    opened = to_proto(done.program)
    for more in (0, 1, 3):
        other = {
            s: sizes[s] + more * step * (2 if s == "m" else 1) for s, step in done.steps.items()
        }
        other = {**sizes, **other}
        if any(size > done.most.get(s, size) for s, size in other.items()):
            continue
        original = model_of(shape, other, choices)
        feeds = feeds_for(original, seed=0)
        (expected,) = run(original, feeds).values()
        (found,) = run(opened, feeds).values()
        about = f"{other}\n{onnx.printer.to_text(model)}"
        assert np.shape(found) == np.shape(expected), about
        np.testing.assert_allclose(
            np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-5, err_msg=about
        )
    return "opened"


SHAPES: list[list[Axis]] = [
    [(1,), ("n",), (4,)], [(1,), ("n",), (8,)], [("n",), ("m",)], [(2,), (3,), ("n",), ("m",)], [("n",), ("n",)], [("n",)],
]  # fmt: skip
CHOICES = st.lists(st.integers(0, 59), min_size=8, max_size=40)


@given(st.sampled_from(SHAPES), st.integers(2, 8), st.integers(2, 8), CHOICES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_graph_written_for_other_sizes(
    shape: list[Axis], n: int, m: int, choices: list[int]
) -> None:
    check(shape, {"n": n, "m": m}, choices)


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 2])
def test_many_graphs_open(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share that opens: refused graphs prove nothing. A size of 1 has most readings."""
    for symbol in "nm":
        monkeypatch.setitem(SMALL, symbol, least)
    rng = np.random.default_rng(1)
    found = [
        check(
            SHAPES[rng.integers(len(SHAPES))],
            {"n": int(rng.integers(least, 4 * least + 1)), "m": int(rng.integers(least, 9))},
            [int(c) for c in rng.integers(0, 60, rng.integers(8, 40))],
        )
        for _ in range(300)
    ]
    assert found.count("opened") > 40 * least
