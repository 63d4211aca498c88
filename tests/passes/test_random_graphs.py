"""Random graphs of products, transposes, concatenations, biases and activations: the same results, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.merge_equal import MergeEqual
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.rule_passes import simplify_transpose
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import run
from onnxgrad.verify.interface import interface_differences

N = 3  # every value is N by N, so that everything composes
BIASES: list[tuple[int, ...]] = [(), (1,), (N,), (1, N), (N, 1), (N, N)]


class Graph:
    """Grows a graph whose values are all double[N,N]; choices come from hypothesis."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs = ["x", "z"]
        self.values = ["x", "z"]

    def pick(self, *extra: str) -> str:
        # the same few values again and again: that is how parallel branches come about
        pool = [*extra, "x", *self.values[-4:], *self.values[:3]]
        return str(self.draw(st.sampled_from(pool)))

    def constant(self, shape: tuple[int, ...]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(self.rng.standard_normal(shape) / 2, name))
        return name

    def weight(self) -> str:
        if self.constants and self.draw(st.booleans()):
            square = [t.name for t in self.constants if list(t.dims) == [N, N]]
            if square:
                return str(self.draw(st.sampled_from(square)))
        return self.constant((N, N))

    def emit(self, op: str, *operands: str, results: int = 1, **attrs: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(
            helper.make_node(op, operands, names, name=f"n{len(self.nodes)}", **attrs)
        )
        return names

    def step(self) -> None:
        kind = self.draw(
            st.sampled_from(
                [
                    "dense",
                    "dense",
                    "dense",
                    "product",
                    "transpose",
                    "gemm",
                    "bias",
                    "f",
                    "concat",
                    "move",
                    "join",
                    "branch",
                    "parallel",
                ]
            )
        )
        if kind == "dense":
            new = self.emit("MatMul", self.pick(), self.weight())
        elif kind == "product":
            new = self.emit("MatMul", self.pick(), self.pick())
        elif kind == "transpose":
            new = self.emit(
                "Transpose", self.pick(), perm=self.draw(st.sampled_from([[1, 0], [1, 0], [0, 1]]))
            )
        elif kind == "gemm":
            flags = {"transA": self.draw(st.integers(0, 1)), "transB": self.draw(st.integers(0, 1))}
            bias = self.draw(st.sampled_from([None, *BIASES]))
            operands = [self.pick(), self.weight() if self.draw(st.booleans()) else self.pick()]
            new = self.emit(
                "Gemm",
                *operands,
                *([] if bias is None else [self.constant(bias)]),
                alpha=self.draw(st.sampled_from([0.5, 0.5, 1.0, -2.0, 0.3])),
                beta=self.draw(st.sampled_from([1.0, 1.0, 0.5, 0.3])),
                **flags,
            )
        elif kind == "bias":
            shape = self.draw(st.sampled_from(BIASES))
            operands = [
                self.pick(),
                self.constant(shape) if self.draw(st.booleans()) else self.pick(),
            ]
            new = self.emit("Add", *(operands if self.draw(st.booleans()) else operands[::-1]))
        elif kind == "f":
            new = self.emit(
                self.draw(st.sampled_from(["Tanh", "Relu", "Neg", "Identity"])), self.pick()
            )
        elif kind == "concat":
            perm, axis = self.draw(st.sampled_from([[1, 0], [0, 1]])), self.draw(st.integers(-2, 1))
            parts = [
                self.emit("Transpose", self.pick(), perm=perm)[0]
                for _ in range(self.draw(st.integers(2, 3)))
            ]
            joined = self.emit("Concat", *parts, axis=axis)[0]
            new = self.emit("Split", joined, results=len(parts), axis=axis, num_outputs=len(parts))
        elif kind == "parallel":
            left = self.pick()
            new = [self.product(left) for _ in range(self.draw(st.integers(2, 4)))]
        elif kind == "join":
            new = self.parts()
        elif kind == "branch":
            new = [self.branch()]
        else:
            flat = self.emit("Reshape", self.pick(), self.sizes([-1]))[0]
            new = self.emit("Reshape", flat, self.sizes([N, N]))
        self.values += new

    def product(self, left: str) -> str:
        """A product of one value and a constant, as MatMul or Gemm, with a bias or without."""
        bias = self.draw(st.sampled_from([None, *BIASES]))
        if self.draw(st.booleans()):
            made = self.emit("MatMul", left, self.weight())[0]
            return made if bias is None else self.emit("Add", made, self.constant(bias))[0]
        scalars = {
            name: self.draw(st.sampled_from([1.0, 0.5, -4.0, 0.3])) for name in ("alpha", "beta")
        }
        biases = [] if bias is None else [self.constant(bias)]
        flags = {"transB": self.draw(st.integers(0, 1))}
        return self.emit("Gemm", left, self.weight(), *biases, **scalars, **flags)[0]

    def parts(self) -> list[str]:
        """N rows or columns of a Concat, by Slice, Gather, or Split and perhaps Concat."""
        count, axis = self.draw(st.integers(2, 3)), self.draw(st.integers(-2, 1))
        joined = self.emit("Concat", *(self.pick() for _ in range(count)), axis=axis)[0]
        if self.draw(st.booleans()):
            cuts = self.draw(
                st.sampled_from([[N] * count, [2 * N, (count - 2) * N], [1, count * N - 1]])
            )
            pieces = self.emit("Split", joined, self.sizes(cuts), results=len(cuts), axis=axis)
            if self.draw(st.booleans()) and cuts == [N] * count:
                return pieces
            order = self.draw(st.permutations(pieces))
            joined = self.emit("Concat", *order, axis=axis)[0]
        start = self.draw(st.integers(0, N * (count - 1)))
        if self.draw(st.booleans()):
            indices = [start + self.draw(st.integers(0, N - 1)) for _ in range(N)]
            return self.emit("Gather", joined, self.sizes(indices), axis=axis)
        bounds = [start, start + N, axis, 1]
        if self.draw(st.booleans()):
            bounds = [start + N - 1, start - 1 if start else -(10**6), axis, -1]
        return self.emit("Slice", joined, *(self.sizes([n]) for n in bounds))

    def branch(self) -> str:
        """An If whose branches read constants of their own, which may be equal, and outer ones."""
        total = self.emit("ReduceSum", self.pick(), keepdims=0)[0]
        condition = self.emit("Greater", total, self.constant(()))[0]
        own = self.rng.standard_normal((2, N, N))
        branches = {}
        for name in ("then_branch", "else_branch"):
            value, weight, result = (f"{name}{len(self.nodes)}_{k}" for k in range(3))
            array = numpy_helper.from_array(own[self.draw(st.integers(0, 1))], weight)
            other = self.weight() if self.draw(st.booleans()) else weight
            nodes = [
                helper.make_node("MatMul", [self.pick(), weight], [value]),
                helper.make_node("Add", [value, other], [result]),
            ]
            typed = helper.make_tensor_value_info(result, TensorProto.DOUBLE, [N, N])
            inside = [array]
            if self.draw(st.booleans()):
                nodes.insert(0, helper.make_node("Constant", [], [weight], value=array))
                inside = []
            branches[name] = helper.make_graph(nodes, name, [], [typed], inside)
        return self.emit("If", condition, **branches)[0]

    def sizes(self, values: list[int]) -> str:
        name = f"s{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def model(self) -> ModelProto:
        made = [v for v in self.values if v not in self.inputs]
        outputs = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
        # bounded results, so that one tolerance suits all
        last = [self.emit("Tanh", made[-1])[0]]
        typed = [
            helper.make_tensor_value_info(v, TensorProto.DOUBLE, [N, N])
            for v in [*self.inputs, *outputs, *last]
        ]
        graph = helper.make_graph(self.nodes, "g", typed[:2], typed[2:], self.constants)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@st.composite
def models(draw: Any) -> ModelProto:
    graph = Graph(draw)
    for _ in range(draw(st.integers(2, 14))):
        graph.step()
    return graph.model()


def check(model: ModelProto) -> None:
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((N, N)) for name in ("x", "z")}
    want = run(model, feeds, optimize=False)
    for push in (False, True):
        program, trace = load(model), Trace(check_measures=True)
        if push:
            simplify_transpose(always=True).run(program, trace)
            MergeEqual(small=True).run(program, trace)
        Pipeline.of(merge="always").run(program, trace)
        for block in program.blocks():
            block.schedule()
            block.check()
        after = to_proto(program)
        assert not interface_differences(model, after)
        got = run(after, feeds, optimize=False)
        for name, w in want.items():
            assert isinstance(w, np.ndarray)
            scale = np.max(np.abs(w), initial=1.0)
            np.testing.assert_allclose(got[name], w, rtol=0, atol=1e-11 * scale, err_msg=name)


@given(model=models())
@settings(max_examples=40)
def test_random_graphs(model: ModelProto) -> None:
    check(model)


@pytest.mark.slow
@given(model=models())
@settings(max_examples=1500)
def test_many_random_graphs(model: ModelProto) -> None:
    check(model)
