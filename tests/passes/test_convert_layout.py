"""Regions in another order of axes: which move, what that saves, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import run
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

TO_NCHW, TO_NHWC = "Transpose<perm=[0,3,1,2]>", "Transpose<perm=[0,2,3,1]>"
PASSES = "convert-layout,remove-unused"


def done_of(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), PASSES, rounds=2)
    assert_same_results(done)
    return done


CHAIN = f"""g (float[N,8,8,3] x) => (float[N,4] y) {{
  a = {TO_NCHW}(x) c = Conv<pads=[1,1,1,1]>(a, w1) d = {TO_NHWC}(c)
  e = Add(d, b) f = Relu(e)
  g = {TO_NCHW}(f) h = Conv<pads=[1,1,1,1]>(g, w2) i = {TO_NHWC}(h)
  j = Add(i, b) k = Add(j, f)
  l = {TO_NCHW}(k) m = AveragePool<kernel_shape=[2,2]>(l) n = {TO_NHWC}(m)
  y = ReduceMean<axes=[1,2], keepdims=0>(n) }}"""
W = weights(w1=(4, 3, 3, 3), w2=(4, 4, 3, 3), b=(4,))


def test_a_network_of_another_layout(golden: Callable[[str, str], None]) -> None:
    done = done_of(CHAIN, W, opset=17)
    assert done.ops == [
        "Transpose", "Conv", "Add", "Relu", "Conv", "Add", "Add", "AveragePool", "ReduceMean",
    ]  # fmt: skip
    golden("convert_layout", done.text)
    done.prove()


def test_the_interface_keeps_its_order() -> None:
    """Input and output are as they were: the two transposes of a single Conv stay."""
    text = f"""g (float[N,8,8,3] x) => (float[N,8,8,4] y) {{
      a = {TO_NCHW}(x) c = Conv<pads=[1,1,1,1]>(a, w1) d = {TO_NHWC}(c) y = Relu(d) }}"""
    done = done_of(text, W)
    assert done.count("Transpose") == 2 and not done.fired("convert_layout")


def test_a_wider_value_is_not_transposed_in_place_of_a_narrow_one() -> None:
    """After the Concat there are four times as many elements."""
    text = f"""g (float[2,3,8,8] x, float[2,8,8,9] z) => (float[2,12,8,8] y) {{
      a = {TO_NHWC}(x) b = Concat<axis=3>(a, z) y = {TO_NCHW}(b) }}"""
    done = done_of(text)
    # z instead of x and the sum: 9 channels for 3 + 12
    assert done.count("Transpose") == 1 and done.block.bindings
    narrow = f"""g (float[2,3,8,8] x, float[2,8,8,9] z) => (float[2,8,8,12] y) {{
      a = {TO_NHWC}(x) y = Concat<axis=3>(a, z) }}"""
    assert not done_of(narrow).trace.rewrites


def test_one_transpose_serves_all_readers() -> None:
    text = f"""g (float[2,8,8,3] x) => (float[2,3,8,8] p, float[2,3,8,8] q, float[2,3,8,8] r) {{
      n = Neg(x) s = Relu(n) t = Exp(n) u = Abs(n) p = {TO_NCHW}(s) q = {TO_NCHW}(t) r = {TO_NCHW}(u) }}"""
    done = done_of(text)
    assert done.ops == ["Neg", "Transpose", "Relu", "Exp", "Abs"]


def test_what_others_read_as_it_is_is_transposed_once_for_them() -> None:
    text = f"""g (float[2,3,8,8] x) => (float[2,3,8,8] y, float[2,8,8,3] e) {{
      a = {TO_NHWC}(x) b = Add(a, c) e = Relu(b) f = Neg(e) g = Add(f, c) y = {TO_NCHW}(g) }}"""
    done = done_of(text, weights(c=(3,)))
    assert done.count("Transpose") == 1
    assert done.block.outputs[1].name == "e"


def test_a_result_that_others_read_is_turned_back() -> None:
    """Two transposes before become one behind."""
    text = f"""g (float[2,3,8,8] x, float[2,3,8,8] z) => (float[2,8,8,3] y, float[2,8,8,3] e) {{
      a = {TO_NHWC}(x) b = {TO_NHWC}(z) s = Add(a, b) y = Relu(s) e = Exp(s) }}"""
    assert done_of(text).ops == ["Add", "Transpose", "Relu", "Exp"]


def test_read_in_a_branch() -> None:
    text = f"""g (bool k, float[2,3,8,8] x) => (float[2,3,8,8] y, float[2,8,8,3] z) {{
      a = {TO_NHWC}(x) b = Relu(a) c = Neg(b) y = {TO_NCHW}(c)
      z = If (k) <then_branch = t () => (float[2,8,8,3] q) {{ q = Exp(b) }},
                  else_branch = e () => (float[2,8,8,3] r) {{ r = Identity(b) }}> }}"""
    done = done_of(text)
    assert len(done.ops) and done.count("Transpose") == 1


def test_inside_a_loop() -> None:
    text = f"""g (float[2,3,4,4] x) => (float[2,3,4,4] o) <int64 n = {{2}}, bool yes = {{1}}> {{
      o = Loop (n, yes, x) <body = l (int64 i, bool c, float[2,3,4,4] h) => (bool d, float[2,3,4,4] v) {{
        d = Identity(c) a = {TO_NHWC}(h) b = Relu(a) v = {TO_NCHW}(b) }}> }}"""
    done = done_of(text)
    assert done.count("Transpose") == 0 and done.fired("convert_layout") == 1


@pytest.mark.parametrize(
    ("x", "there", "back"),
    [
        ("2,3,4", "[0,2,1]", "[0,2,1]"),  # its own inverse
        ("2,3,4", "[1,2,0]", "[2,0,1]"),
        ("2,3,4,5,6", "[0,2,3,4,1]", "[0,4,1,2,3]"),
        ("2,3,4,5", "[1,0,3,2]", "[1,0,3,2]"),
    ],
)
def test_other_orders(x: str, there: str, back: str) -> None:
    text = f"""g (float[{x}] x) => (float[{x}] y) {{
      a = Transpose<perm={there}>(x) b = Relu(a) c = Add(b, s) d = Mul(c, b) y = Transpose<perm={back}>(d) }}"""
    done = done_of(text, weights(s=()))
    assert done.ops == ["Relu", "Add", "Mul"]


def test_transposes_of_another_order_are_in_the_way() -> None:
    text = f"""g (float[2,3,4,4] x) => (float[2,3,4,4] y) {{
      a = {TO_NHWC}(x) b = Relu(a) t = Transpose<perm=[0,2,1,3]>(b) c = Neg(t) y = {TO_NCHW}(c) }}"""
    assert not done_of(text).trace.rewrites


def test_a_choice_pays_for_one_and_for_many() -> None:
    """One N-sized value for one of 100 elements: cheaper or not, by what N is."""
    text = f"""g (float[1,2,N,2] x, float[1,5,5,2] z) => (float[1,2,N,7] y, float[1,5,5,2] q) {{
      a = {TO_NCHW}(z) b = Relu(a) q = {TO_NHWC}(b) y = Concat<axis=3>(x, x, x, x2) x2 = Slice(x, o, i, t) }}"""
    constants = {"o": np.array([0]), "i": np.array([1]), "t": np.array([3])}
    done = apply(model_of(text, constants), PASSES)
    assert done.count("Transpose") == 0


def test_a_pad_along_axes_of_the_run_stays() -> None:
    text = f"""g (float[2,3,8,8] x, int64[1] axes) => (float[A,B,C,D] y) {{
      a = {TO_NHWC}(x) b = Pad(a, pads, , axes) y = {TO_NCHW}(b) }}"""
    done = apply(model_of(text, {"pads": np.array([0, 1])}), PASSES)
    assert done.count("Transpose") == 2


def test_unknown_ranks_stay() -> None:
    text = f"g (float[] x) => (float[] y) {{ a = {TO_NHWC}(x) b = Relu(a) y = {TO_NCHW}(b) }}"
    model = model_of(text)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert not apply(model, PASSES).trace.rewrites


def test_a_large_constant_with_another_reader_counts_as_a_value() -> None:
    """It is not held twice."""
    text = f"""g (float[1,64,128,64] x) => (float[1,64,128,64] y, float[1,128,64,64] z) {{
      a = {TO_NHWC}(x) b = Add(a, w) y = {TO_NCHW}(b) z = Neg(w) }}"""
    done = done_of(text, weights(w=(1, 128, 64, 64)))
    assert done.count("Transpose") == 1 and len(done.block.initializers) == 1


def test_metadata_says_where_things_come_from() -> None:
    model = model_of(CHAIN, W, opset=17)
    for node in model.graph.node:
        node.metadata_props.add(key="source", value=node.output[0])
    done = apply(model, PASSES)
    said = {n.output[0]: {e.key: e.value for e in n.metadata_props} for n in done.after.graph.node}
    assert said["relu"]["source"] == "f" and said["relu"]["onnxgrad.made_by"] == "convert_layout"


def test_the_same_bytes_each_time() -> None:
    first, second = (apply(model_of(CHAIN, W, opset=17), PASSES).after for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


class Random:
    """Graphs of permeable operators and transposes, over values of rank 4 that fit."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: list[tuple[str, tuple[int, ...]]] = [("x", (2, 3, 4, 5))]
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        some = self.rng.random() < 0.7
        self.perms = [[0, 2, 3, 1], [0, 3, 1, 2]] if some else [[0, 2, 1, 3], [1, 0, 2, 3]]

    def any(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def step(self, i: int) -> None:
        v, shape = self.any(self.values)
        axis = int(self.rng.integers(4))
        same = [w for w, other in self.values if other == shape]
        kind = self.any(["T", "T", "f", "two", "row", "Concat", "ReduceMean", "Pad", "Slice"])
        result = shape
        if kind == "T":
            perm = self.any(self.perms)
            text, result = f"Transpose<perm={perm}>({v})", tuple(shape[p] for p in perm)
        elif kind == "two":
            text = f"{self.any(['Add', 'Mul', 'Max'])}({v}, {self.any(same)})"
        elif kind == "row":
            sizes = self.any([(shape[-1],), shape, (), (shape[-2], 1), (1, shape[1], 1, 1)])
            row = self.constant(self.rng.standard_normal(sizes).astype(np.float32))
            text = f"{self.any(['Add', 'Mul'])}({row}, {v})"
        elif kind == "Concat" and shape[axis] < 12:
            text = f"Concat<axis={axis - 4}>({v}, {self.any(same)})"
            result = tuple(d * 2 if k == axis else d for k, d in enumerate(shape))
        elif kind == "ReduceMean":
            self.lines.append(f"m{i} = ReduceMean({v}, {self.constant([axis])})")
            text = f"Mul({v}, m{i})"
        elif kind == "Pad" and max(shape) < 12:
            pads = [int(n) for n in self.rng.integers(0, 2, 8)]
            text = f"Pad({v}, {self.constant(pads)})"
            result = tuple(d + pads[k] + pads[k + 4] for k, d in enumerate(shape))
        elif kind == "Slice" and shape[axis] > 1:
            bounds = (self.constant([n]) for n in (1, shape[axis], axis))
            text = f"Slice({v}, {', '.join(bounds)})"
            result = tuple(d - 1 if k == axis else d for k, d in enumerate(shape))
        else:
            text = f"{self.any(['Relu', 'Neg', 'Tanh', 'Sigmoid'])}({v})"
        self.lines.append(f"v{i} = {text}")
        self.values.append((f"v{i}", result))

    def model(self) -> Any:
        for i in range(int(self.rng.integers(5, 20))):
            self.step(i)
        ends = dict.fromkeys([self.values[-1], self.any(self.values[1:])])
        outs = ", ".join(f"float[{','.join(map(str, shape))}] {v}" for v, shape in ends)
        return model_of(
            f"g (float[2,3,4,5] x) => ({outs}) {{ {' '.join(self.lines)} }}", self.constants
        )


def elements(done: Done) -> int:
    """How many are transposed."""
    return sum(
        int(np.prod([d for d in b.out.shape or () if isinstance(d, int)]))
        for b in done.block.bindings
        if b.op == "Transpose"
    )


def test_random_networks() -> None:
    """Never more elements, and the same results."""
    fired = 0
    for seed in range(60):
        model = Random(seed).model()
        done = apply(model, f"remove-unused,{PASSES}", rounds=2)
        x = np.random.default_rng(seed).standard_normal((2, 3, 4, 5)).astype(np.float32)
        want, got = (run(m, {"x": x}, optimize=False) for m in (done.before, done.after))
        for name, value in want.items():
            most = max(1.0, float(np.abs(value).max(initial=0)))
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5 * most)
        assert elements(done) <= elements(apply(model, "remove-unused"))
        fired += done.fired("convert_layout")
    assert fired > 10


def test_what_is_handed_on_is_handed_on_further() -> None:
    """A Transpose whose operand is the result of another that goes."""
    text = f"""g (float[2,3,4,4] x) => (float[2,4,4,3] y, float[2,4,3,4] z) {{
      a = {TO_NHWC}(x) b = Relu(a) c = {TO_NCHW}(b) d = Neg(c) e = {TO_NHWC}(d) y = Abs(e)
      f = {TO_NCHW}(a) h = {TO_NHWC}(f) i = {TO_NHWC}(h) z = Neg(i) }}"""
    assert done_of(text).count("Transpose") <= 3
