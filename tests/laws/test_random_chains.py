"""Random graphs of what the exact laws are about: the same numbers afterwards, signs of zeros and NaN included."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.verify import run
from tests.rewriting import apply, special

EXACT = "remove-noops,open-if,merge-consecutive,simplify-transpose"
ANY_ORDER = f"{EXACT},simplify-arithmetic{{exact=false}}"
NUMBERS = (1.0, 1.0, 0.0, -0.0, 2.0, -3.0, 0.5)


class Chains:
    """Grows a graph whose values are all float[3,3]."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.values = ["x", "z"]

    def constant(self, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def emit(self, op: str, *operands: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attrs))
        return name

    def pick(self) -> str:
        return self.rng.choice([*self.values[-1:] * 3, *self.values])

    def number(self) -> str:
        value = np.float32(self.rng.choice(NUMBERS))
        if self.rng.random() < 0.2:
            shape = self.rng.choice(((3,), (3, 1), (3, 3)))
            return self.constant(
                np.array(self.rng.choices(NUMBERS, k=int(np.prod(shape))), np.float32).reshape(
                    shape
                )
            )
        return self.constant(value if self.rng.random() < 0.7 else value.reshape(1))

    def number_op(self, v: str) -> str:
        op = self.rng.choice(("Mul", "Div", "Sub", "Add", "Pow"))
        c = self.number()
        return self.emit(op, *((v, c) if op == "Pow" or self.rng.random() < 0.7 else (c, v)))

    def clip(self, v: str) -> str:
        if self.rng.random() < 0.4:
            return self.emit("Relu", v)
        low, high = self.rng.choice(
            ((0.0, 6.0), (-1.0, 6.0), (1.0, 2.0), (None, 6.0), (-2.0, None), (-0.0, 5.0))
        )
        return self.emit(
            "Clip", v, *("" if b is None else self.constant(np.float32(b)) for b in (low, high))
        )

    def axes(self, v: str) -> str:
        k = self.rng.randrange(3)
        a, b = (self.constant(np.array([self.rng.choice((k, k - 3))])) for _ in range(2))
        return self.emit("Squeeze", self.emit("Unsqueeze", v, a), b)

    def flip(self, v: str) -> str:
        inner = self.emit("Transpose", v, perm=[1, 0])
        beside = self.emit("Transpose", self.pick(), perm=[1, 0])
        between = self.rng.choice(
            (
                self.signs,
                self.number_op,
                lambda u: self.emit(self.rng.choice(("Add", "Sub", "Mul")), beside, u),
            )
        )
        return self.emit("Transpose", between(inner), perm=[1, 0])

    def select(self, v: str) -> str:
        rows = self.emit(
            "Concat", v, self.emit("Concat", self.pick(), v, axis=0), axis=self.rng.choice((0, -2))
        )
        i = self.constant(np.array([self.rng.randrange(-9, 9) for _ in range(5)]))
        j = self.constant(np.array([self.rng.randrange(-5, 5) for _ in range(3)]))
        return self.emit("Gather", self.emit("Gather", rows, i, axis=0), j, axis=-2)

    def where(self, v: str) -> str:
        shape = self.rng.choice(((), (3,), (3, 1)))
        # onnxruntime's Where gives 0.0 for a -0.0 that it chooses
        sides = (self.emit("Abs", side) for side in (v, self.pick()))
        return self.emit("Where", self.constant(np.full(shape, self.rng.random() < 0.5)), *sides)

    def signs(self, v: str) -> str:
        return self.emit(self.rng.choice(("Neg", "Relu", "Abs")), v)

    def sum(self, v: str) -> str:
        op = self.rng.choice(("Sum", "Add", "Mul", "Sub"))
        return self.emit(op, v, self.pick())

    def branch(self, name: str, v: str) -> Any:
        inner = [helper.make_node("Neg", [v], ["t"]), helper.make_node("Mul", ["t", "w"], ["u"])]
        w = numpy_helper.from_array(np.full((3,), 2, np.float32), "w")
        return helper.make_graph(inner, name, [], [_typed("u")], [w])

    def model(self) -> ModelProto:
        outputs = list(dict.fromkeys([self.values[-1], self.rng.choice(self.values[2:])]))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [_typed("x"), _typed("z")],
            [_typed(v) for v in outputs],
            self.constants,
        )
        return helper.make_model(
            graph,
            ir_version=10,
            opset_imports=[helper.make_opsetid("", self.rng.choice((15, 18, 20)))],
        )


def _typed(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3])


def grown(seed: int) -> ModelProto:
    graph = Chains(Random(seed))
    steps = {
        "number": graph.number_op, "clip": graph.clip, "axes": graph.axes, "flip": graph.flip, "select": graph.select,
        "where": graph.where, "signs": graph.signs, "sum": graph.sum,
    }  # fmt: skip
    for _ in range(graph.rng.randrange(3, 12)):
        kind = graph.rng.choice([*steps, "number", "clip", "if"])
        v = graph.pick()
        if kind == "if":
            sides = {f"{side}_branch": graph.branch(side, v) for side in ("then", "else")}
            new = graph.emit("If", graph.constant(np.array(graph.rng.random() < 0.5)), **sides)
        else:
            new = steps[kind](v)
        graph.values.append(new)
    return graph.model()


def seeds(start: int, default: int, slow: int) -> list[Any]:
    """`default` of them from `start` on, and `slow` more under the mark of that name."""
    more = range(start + default, start + default + slow)
    return [
        *range(start, start + default),
        *(pytest.param(n, marks=pytest.mark.slow) for n in more),
    ]


@pytest.mark.parametrize("seed", seeds(0, 30, 270))
def test_exact(seed: int) -> None:
    model = grown(seed)
    done = apply(model, EXACT, rounds=2)
    feeds = {"x": special(3, 3, seed=seed), "z": special(3, 3, seed=seed + 1)}
    want, got = (run(m, feeds, optimize=False) for m in (done.before, done.after))
    for name, w in want.items():
        np.testing.assert_array_equal(got[name], w, err_msg=name)
        known = ~np.isnan(w)
        np.testing.assert_array_equal(
            np.signbit(got[name])[known], np.signbit(w)[known], err_msg=name
        )


@pytest.mark.parametrize("seed", seeds(1000, 10, 120))
def test_in_another_order(seed: int) -> None:
    done = apply(grown(seed), ANY_ORDER, rounds=2)
    rng = np.random.default_rng(seed)
    feeds = {name: (rng.random((3, 3)) + 0.5).astype(np.float32) for name in ("x", "z")}
    want, got = (run(m, feeds, optimize=False) for m in (done.before, done.after))
    for name, w in want.items():
        if np.isfinite(w).all() and np.abs(w).max() < 1e4:
            np.testing.assert_allclose(
                got[name], w, rtol=1e-3, atol=1e-4 * max(1, np.abs(w).max()), err_msg=name
            )
