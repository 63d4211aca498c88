"""The journal of a program: every change is recorded, and the digest follows the differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.journal import Recorder, digest_of
from onnxgrad.rewrite.trace import Trace
from tests.helpers import MODELS_DIR, parse

TEXT = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}, float[2] k = {3, 4}> {
  a = Mul(x, w) s = Concat <axis = 0> (a, k)
  b = If (c) <then_branch = t () => (float[2] p) <float[2] u = {5, 6}> { p = Add(a, u) },
              else_branch = e () => (float[2] q) { q = Neg(a) }>
  y = Add(b, k)
}"""


def binding(program: Program, op_type: str):
    return next(b for block in program.blocks() for b in block.bindings if b.op == op_type)


def emit(program: Program) -> None:
    with emitting(program.main):
        program.main.replace(binding(program, "Mul").out, op.Neg(program.main.inputs[0]))


def drop_branches(program: Program) -> None:
    b = binding(program, "If")
    program.main.replace(b.out, binding(program, "Mul").out)
    program.main.remove(b)


def change_constant(program: Program) -> None:
    program.main.initializers["k"].set_constant(
        numpy_helper.from_array(np.array([3, 5], np.float32), "k")
    )


def new_constant(program: Program) -> None:
    with emitting(program.main):
        program.main.replace(program.main.initializers["w"], constant(np.ones(2, np.float32)))
    program.main.remove_initializer(program.main.initializers["w"])


def rename_in_a_branch(program: Program) -> None:
    binding(program, "Neg").out.rename("renamed")
    program.main.initializers["k"].rename("kk")
    binding(program, "If").blocks["then_branch"].initializers["u"].rename("uu")


CHANGES: list[Callable[[Program], None]] = [
    emit,
    drop_branches,
    change_constant,
    new_constant,
    rename_in_a_branch,
    lambda p: binding(p, "Concat").set_attribute("axis", -1),
    lambda p: binding(p, "Neg").rename_operator("Abs"),
    lambda p: binding(p, "Concat").set_metadata({"from": "a test"}),
    lambda p: p.main.set_operand(binding(p, "Neg"), 0, p.main.inputs[0]),
    lambda p: p.main.set_operands(binding(p, "Concat"), [p.main.inputs[0]]),
    lambda p: p.main.add_output(binding(p, "Mul").out),
    lambda p: p.main.ask_for(p.main.initializers["k"]),
    lambda p: p.main.add_input("more", TensorType(TensorProto.FLOAT, (2,))) and None,
    lambda p: p.main.remove_unused() and None,
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_follows_each_change(change: Callable[[Program], None]) -> None:
    program = load(parse(TEXT))
    recorder = Recorder(program)
    before = recorder.digest
    assert before == digest_of(program.proto)
    change(program)
    assert not recorder.chains
    recorder.settle()
    assert recorder.chains
    assert recorder.digest == digest_of(to_proto(program)) != before


def test_a_change_behind_its_back_breaks_the_chain() -> None:
    program = load(parse(TEXT))
    recorder = Recorder(program)
    b = binding(program, "Concat")
    b.node = onnx.NodeProto.FromString(b.node.SerializeToString())
    b.node.attribute[0].i = -1
    program.main.touch()
    recorder.settle()
    assert not recorder.chains


def test_an_attempt_that_is_taken_back_leaves_no_difference() -> None:
    program = load(parse(TEXT))
    recorder = Recorder(program)
    with emitting(program.main) as at:
        op.Neg(op.Add(program.main.inputs[0], np.ones(2, np.float32)))
        at.discard()
    assert recorder.settle().is_empty and recorder.chains


def test_a_new_name_is_no_difference() -> None:
    program = load(parse(TEXT))
    recorder = Recorder(program)
    rename_in_a_branch(program)
    assert recorder.settle().is_empty


def test_stopping_ends_the_record() -> None:
    program = load(parse(TEXT))
    recorder = Recorder(program)
    recorder.stop()
    emit(program)
    assert program.journal is None and not recorder.chains


@pytest.mark.parametrize("name", ["bert", "googlenet", "t5", "lstm_script", "whisper"])
@pytest.mark.covering
def test_the_differences_of_a_run_lead_to_its_file(name: str) -> None:
    program = load(MODELS_DIR / f"{name}.onnx")
    recorder, trace = Recorder(program), Trace()
    states = [recorder.digest]

    def between() -> None:
        if not recorder.settle().is_empty:
            states.append(recorder.digest)

    trace.between = between
    Pipeline.of(merge="always").run(program, trace)
    between()
    assert states[0] == digest_of(program.proto)
    assert len(states) > 5 and recorder.digest == digest_of(to_proto(program))
