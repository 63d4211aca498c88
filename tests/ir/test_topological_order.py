"""One stable topological order; a cycle is named; no recursion over depth."""

from __future__ import annotations

import time

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from tests.helpers import parse

DIAMOND = """g (float[2] x, bool q) => (float[2] y) {
  a = Neg(x) b = Abs(a) c = Exp(a)
  d = If (q) <then_branch = t () => (float[2] p) { p = Neg(c) }, else_branch = e () => (float[2] p) { p = Abs(b) }>
  y = Add(d, x)
}"""


def chain(length: int) -> bytes:
    """Neg and Relu in turn, `length` of them."""
    operators = ("Neg", "Relu")
    nodes = [
        helper.make_node(operators[i % 2], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}")
        for i in range(length)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])
        for name in ("v0", f"v{length}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return bytes(model.SerializeToString())


def names(block: BindingBlock) -> str:
    return "".join(b.out.name for b in block.bindings)


def find(block: BindingBlock, name: str) -> Binding:
    return next(b for b in block.bindings if b.out.name == name)


def test_an_order_that_is_legal_is_kept() -> None:
    block = load(parse(DIAMOND)).main
    for order in ("abcdy", "acbdy"):
        block.bindings = {find(block, n): None for n in order}
        block.schedule()
        assert names(block) == order


@given(st.permutations("abcdy"))
def test_any_order_becomes_legal_and_stays(order: list[str]) -> None:
    block = load(parse(DIAMOND)).main
    block.bindings = {find(block, n): None for n in order}
    block.schedule()
    found = names(block)
    assert all(
        found.index(first) < found.index(then) for first, then in ("ab", "ac", "bd", "cd", "dy")
    )
    block.schedule()
    assert names(block) == found


def test_a_binding_ahead_of_its_operand_pulls_only_what_it_needs() -> None:
    text = "g (float x) => (float c, float e) { a = Neg(x) b = Neg(a) c = Neg(b) d = Exp(x) e = Exp(d) }"
    block = load(parse(text)).main
    with emitting(block):
        late = op.Abs(find(block, "d").out)
    block.set_operand(find(block, "b"), 0, late)
    block.schedule()
    assert [b.out.name for b in block.bindings] == ["a", "d", "abs", "b", "c", "e"]


def test_a_cycle_is_named() -> None:
    block = load(parse(DIAMOND)).main
    block.set_operand(find(block, "a"), 0, find(block, "d").out)  # d captures b and c, which read a
    with pytest.raises(
        InternalError, match=r"cycle: a -> d -> c -> a; first: a: f32\[2\] = Neg\(d\)"
    ):
        block.schedule()


def test_depends_on() -> None:
    block = load(parse(DIAMOND)).main
    a, b, c, d, y = block.bindings
    assert y.depends_on({a}) and d.depends_on({b}) and d.depends_on({c})
    assert not b.depends_on({c}) and not a.depends_on({a, y}) and not a.depends_on(set())


def test_depth_is_no_recursion() -> None:
    model = onnx.ModelProto.FromString(chain(3000))
    block = load(model).main
    block.bindings = dict.fromkeys(reversed(block.bindings))
    block.check()
    block.changed = True
    assert to_proto(block.program) == model


@pytest.mark.slow
def test_loading_and_saving_is_linear() -> None:
    def seconds(data: bytes) -> float:
        start = time.process_time()
        program = load(data)
        program.main.changed = True
        to_proto(program).SerializeToString()
        return time.process_time() - start

    small, large = chain(10_000), chain(100_000)
    most = min(seconds(large) for _ in range(3))  # what else the machine does only adds to it
    assert most < 15 * min(seconds(small) for _ in range(3))
