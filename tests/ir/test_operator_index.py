"""onnxgrad/ir/operator_index.py: what `walk` gives, by operator, whatever became of the block since it was asked last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.operator_index import bindings_of, blocks_in
from onnxgrad.ir.ops import op
from tests.helpers import parse

TEXT = """g (bool c, float[2] x) => (float[2] y, float[2] z) {
  a = Abs(x)
  n = If (c) <
    then_branch = t () => (float[2] r) { q = Abs(a) r = If (c) <
      then_branch = u () => (float[2] s) { s = Abs(q) },
      else_branch = v () => (float[2] w) { w = Neg(q) }> },
    else_branch = e () => (float[2] o) { o = Neg(a) }>
  y = Abs(n)  z = Relu(y) }"""
OPERATORS = [("", "Abs"), ("", "Neg"), ("", "Relu"), ("", "Exp"), ("other", "Abs")]


def walked(block: BindingBlock) -> None:
    """Each set of operators gives what a walk finds of them, in its order."""
    for operators in [OPERATORS, OPERATORS[:1], OPERATORS[1:3], OPERATORS[3:], []]:
        expected = [b for b in block.walk() if (b.domain, b.op) in operators]
        assert bindings_of(block, operators) == expected
    nested = [inner for b in block.walk() for inner in b.blocks.values()]
    assert blocks_in(block) == [block, *nested]


def _emit(block: BindingBlock) -> None:
    with emitting(block):
        block.add_output(op.Exp(block.inputs[1]))


def _emit_nested(block: BindingBlock) -> None:
    inner = blocks_in(block)[-1]
    with emitting(inner):
        inner.add_output(op.Exp(block.inputs[1]))


def _remove(block: BindingBlock) -> None:
    (relu,) = bindings_of(block, [("", "Relu")])
    block.remove_output(relu.out)
    block.remove(relu)


def _rename(block: BindingBlock) -> None:
    bindings_of(block, [("", "Neg")])[0].rename_operator("Exp")


def _remove_if(block: BindingBlock) -> None:
    n = next(b for b in block.bindings if b.op == "If")
    block.replace(n.out, block.inputs[1])
    block.remove(n)


def _reorder(block: BindingBlock) -> None:
    block.bindings = dict.fromkeys(reversed(block.bindings))


def _reorder_and_schedule(block: BindingBlock) -> None:
    _reorder(block)
    walked(block)
    block.schedule()


CHANGES = [_emit, _emit_nested, _remove, _rename, _remove_if, _reorder, _reorder_and_schedule]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_there_after_a_change(change: Callable[[BindingBlock], None]) -> None:
    block = load(parse(TEXT)).main
    walked(block)
    inner = blocks_in(block)[1]
    walked(inner)
    change(block)
    walked(block)
    walked(inner)


def test_nothing_is_looked_for_twice() -> None:
    block = load(parse(TEXT)).main
    walked(block)
    index = block.index
    block.schedule()  # in order already
    walked(block)
    assert block.index is index
