"""Whatever is added to a block after a savepoint can be taken back to the byte."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.function_bodies import import_opset
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.rewrite.attempt import Savepoint
from tests.helpers import parse

TEXT = """g (bool c, float[2] x) => (float[2] y) {
  a = Add(x, x)
  y = If (c) <then_branch = t () => (float[2] u) { u = Neg(a) }, else_branch = e () => (float[2] v) { v = Abs(a) }> }"""


def add(program: Program, nested: bool) -> None:
    """Bindings, constants, names, an import, a copy with a nested block, in one block."""
    choice = next(b for b in program.main.bindings if b.op == "If")
    block = choice.blocks["then_branch"] if nested else program.main
    start = Savepoint(block)
    with emitting(block, made_by="test"):
        op.Relu(op.Cast(choice.inputs[0], to=1) * 2.0)
    import_opset(block, "com.microsoft", 1)
    if not nested:
        clone_bindings([choice], block, {})
    block.add_initializer(TensorProto(name=program.names.fresh("a"), data_type=1, dims=[0]))
    start.restore()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_every_byte_and_every_name_comes_back(nested: bool, changed: bool) -> None:
    program = load(parse(TEXT))
    if changed:
        program.main.touch()
    before, names, flags = (
        to_proto(program).SerializeToString(),
        set(program.names),
        [(b, b.changed) for b in program.blocks()],
    )
    add(program, nested)
    assert [(b, b.changed) for b in program.blocks()] == flags
    assert set(program.names) == names and program.names.fresh("a") == "a_2"
    assert to_proto(program).SerializeToString() == before
    for block in program.blocks():
        block.check()


def test_what_something_older_reads_cannot_be_taken_back() -> None:
    program = load(parse(TEXT))
    start = Savepoint(program.main)
    with emitting(program.main):
        new = op.Neg(program.main.inputs[1])
    program.main.set_operand(next(iter(program.main.bindings)), 0, new)
    with pytest.raises(InternalError, match="still read"):
        start.restore()
