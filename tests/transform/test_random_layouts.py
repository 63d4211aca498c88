"""Random graphs that move a batch about: whatever opens computes each row as the model does, at other sizes too."""

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

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_batch import open_rows
from onnxgrad.transform.vmap import map_inputs
from onnxgrad.verify import run
from tests.helpers import onnxruntime_version

LENGTH = 3  # the size that is symbolic in some graphs


@dataclass
class Graph:
    """A chain of nodes; `shape` is that of the last value, `first` that of the input."""

    shape: list[int]
    first: list[int]
    draw: Callable[[int], int]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "x"

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, operands: list[str], shape: list[int], **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attributes))
        self.last, self.shape = name, shape

    def floats(self, *shape: int) -> str:
        size = math.prod(shape)
        numbers = np.sin(np.arange(size) * 1.7 + len(self.weights)).reshape(shape)
        return self.constant(numbers.astype(np.float32))

    def axis(self) -> int:
        return self.draw(len(self.shape))


def elementwise(g: Graph) -> None:
    g.add(("Tanh", "Neg", "Sigmoid")[g.draw(3)], [g.last], g.shape)


def with_a_constant(g: Graph) -> None:
    kept = g.shape[g.draw(len(g.shape) + 1) :]
    sizes = [1 if g.draw(3) == 0 else d for d in kept]
    g.add("Add", [g.last, g.floats(*sizes)], g.shape)


def with_itself(g: Graph) -> None:
    g.add("Mul", [g.last, "x"], g.shape) if g.shape == g.first else elementwise(g)


def transpose(g: Graph) -> None:
    perm = list(range(len(g.shape)))
    a, b = g.axis(), g.axis()
    perm[a], perm[b] = perm[b], perm[a]
    g.add("Transpose", [g.last], [g.shape[p] for p in perm], perm=perm)


def reshape(g: Graph) -> None:
    sizes, kind = [*g.shape], g.draw(4)
    i = g.axis()
    if kind == 0 and len(sizes) > 1 and i:  # two axes become one
        sizes[i - 1 : i + 1] = [sizes[i - 1] * sizes[i]]
    elif kind == 1 and len(sizes) < 5:  # one axis becomes two
        for factor in (2, 3):
            if sizes[i] % factor == 0:
                sizes[i : i + 1] = [factor, sizes[i] // factor]
                break
    elif kind == 2 and len(sizes) < 5:
        sizes.insert(i, 1)
    elif 1 in sizes and len(sizes) > 1:
        sizes.remove(1)
    written = [*sizes]
    if g.draw(2):
        written[g.draw(len(written))] = -1
    g.add("Reshape", [g.last, g.constant(np.array(written, np.int64))], sizes)


def matmul(g: Graph) -> None:
    if len(g.shape) > 1:
        g.add("MatMul", [g.last, g.floats(g.shape[-1], 2)], [*g.shape[:-1], 2])


def attention(g: Graph) -> None:
    if len(g.shape) > 2:
        perm = [*range(len(g.shape) - 2), len(g.shape) - 1, len(g.shape) - 2]
        before, shape = g.last, g.shape
        g.add("Transpose", [before], [shape[p] for p in perm], perm=perm)
        g.add("MatMul", [before, g.last], [*shape[:-1], shape[-2]])


def softmax(g: Graph) -> None:
    g.add("Softmax", [g.last], g.shape, axis=g.axis())


def reduce_sum(g: Graph) -> None:
    if len(g.shape) > 1:
        axis, keep = g.axis(), g.draw(2)
        sizes = [1 if i == axis else d for i, d in enumerate(g.shape) if keep or i != axis]
        axes = g.constant(np.array([axis], np.int64))
        g.add("ReduceSum", [g.last, axes], sizes, keepdims=keep)


def concat(g: Graph) -> None:
    axis = g.axis()
    sizes = [*g.shape]
    sizes[axis] = 1
    row = g.floats(*sizes)
    g.add("Concat", [g.last, row], [d + (i == axis) for i, d in enumerate(g.shape)], axis=axis)


def gather(g: Graph) -> None:
    axis = g.axis()
    indices = g.constant(np.array([g.draw(g.shape[axis]), 0], np.int64))
    sizes = [2 if i == axis else d for i, d in enumerate(g.shape)]
    g.add("Gather", [g.last, indices], sizes, axis=axis)


def cut(g: Graph) -> None:
    axis = g.axis()
    end = g.draw(g.shape[axis]) + 1
    numbers = [g.constant(np.array([n], np.int64)) for n in (0, end, axis)]
    g.add("Slice", [g.last, *numbers], [end if i == axis else d for i, d in enumerate(g.shape)])


def tile(g: Graph) -> None:
    axis = g.axis()
    repeats = [2 if i == axis else 1 for i in range(len(g.shape))]
    if math.prod(g.shape) < 200:
        sizes = [d * r for d, r in zip(g.shape, repeats, strict=True)]
        g.add("Tile", [g.last, g.constant(np.array(repeats, np.int64))], sizes)


STEPS = (
    elementwise, with_a_constant, with_itself, transpose, reshape, reshape, matmul, attention,
    softmax, reduce_sum, concat, gather, cut, tile,
)  # fmt: skip


def model_of(sizes: list[int], choices: list[int], *, length: bool) -> onnx.ModelProto:
    """A model whose input has these sizes; with `length` the last of them is a symbol, and sizes
    are written as 0 or -1 where they follow.
    """
    numbers = iter(choices)
    g = Graph([*sizes], sizes, lambda n: next(numbers, 0) % n)
    for _ in range(1 + g.draw(6)):
        STEPS[g.draw(len(STEPS))](g)
    shape: list[int | str] = [*sizes[:-1], "L"] if length else [*sizes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(g.last, TensorProto.FLOAT, None)
    graph = helper.make_graph(g.nodes, "g", [x], [y] if g.nodes else [x], g.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def holds(model: onnx.ModelProto, count: int, length: int, *, along: str) -> bool | None:
    """Whether the opened model, at one row, one more than the file has and more, has the rows of
    the model; None: it is refused, or the model does not run.
    """
    shape = [d.dim_value or length for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    groups = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    try:
        expected = [run(model, {"x": x}) for x in groups]
    except Exception:  # noqa: BLE001  # no valid model
        return None
    try:
        done = open_rows(load_own(model), ["x"], batch=count, along=along)
    except InputError:
        return None
    opened, rows = to_proto(done.program), done.rows
    dims = {"L": length}
    for size in (1, count + 1, 2 * count + 1):
        feeds = rows.some(rows.feeds([{"x": x} for x in groups]), range(size))
        got, wanted = run(opened, feeds), rows.results(expected, size, dims)
        for name, value in wanted.items():
            if np.shape(got[name]) != np.shape(value):
                return False
            if not np.allclose(got[name], value, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
    return True


CHOICES = st.lists(st.integers(0, 59), min_size=8, max_size=30)
SIZES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3)


@given(
    st.sampled_from([1, 1, 2, 3]), SIZES, CHOICES, st.booleans(), st.sampled_from(["warn", "auto"])
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_opens_is_right(
    count: int, sizes: list[int], choices: list[int], length: bool, along: str
) -> None:
    check(count, sizes, choices, length, along)


def check(
    count: int, sizes: list[int], choices: list[int], length: bool, along: str
) -> bool | None:
    model = model_of([count, *sizes[:-1], LENGTH if length else sizes[-1]], choices, length=length)
    found = None
    for size in (LENGTH, 5) if length else (LENGTH,):
        found = holds(model, count, size, along=along)
        assert found is not False, onnx.printer.to_text(model)
    return found


@given(SIZES, CHOICES, st.booleans(), st.integers(0, 4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_mapped_is_right(
    sizes: list[int], choices: list[int], length: bool, axis: int
) -> None:
    check_mapped([*sizes[:-1], LENGTH if length else sizes[-1]], choices, length, axis)


def check_mapped(sizes: list[int], choices: list[int], length: bool, axis: int) -> bool:
    """The graph over a new axis, at every size of its symbol that the graph itself runs at."""
    model = model_of(sizes, choices, length=length)
    axis = min(axis, len(sizes)) if model.graph.node else 0
    done = map_inputs(load_own(model), {"x": axis})
    rng, ran = np.random.default_rng(0), False
    # Concat accepts empty values whose other sizes do not fit, and reads beyond their end; before
    # 1.32, an optimised product of empty values is whatever lies in its memory
    faulty = {"Concat"} if onnxruntime_version() >= (1, 32) else {"Concat", "MatMul"}
    joins = any(node.op_type in faulty for node in model.graph.node)
    for size in (LENGTH, 5, 0)[: 3 - joins if length else 1]:
        shape = [
            d.dim_value if d.HasField("dim_value") else size
            for d in model.graph.input[0].type.tensor_type.shape.dim
        ]
        rows = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
        try:
            expected = [run(model, {"x": x}) for x in rows]
        except OnnxgradError:  # no valid graph at this size
            break
        ran, got = True, run(to_proto(done.program), {"x": np.stack(rows, axis)})
        for name, value in got.items():
            np.testing.assert_allclose(
                value, np.stack([each[name] for each in expected]), rtol=1e-4, atol=1e-5,
                err_msg=onnx.printer.to_text(model),
            )  # fmt: skip
    return ran


@pytest.mark.slow
def test_many_graphs_open() -> None:
    """The share that opens: refused graphs prove nothing."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        sizes = [int(d) for d in rng.integers(1, 5, rng.integers(1, 4))]
        choices = [int(c) for c in rng.integers(0, 60, 30)]
        found.append(
            check(int(rng.choice([1, 1, 2, 3])), sizes, choices, bool(rng.integers(2)), "warn")
        )
    assert found.count(True) > 180
