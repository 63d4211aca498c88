"""What grows with a model's size grows like it: a Concat of many operands, long names, many metadata entries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from onnx import ModelProto, helper

import onnxgrad
from tests.helpers import parse


def wide(count: int) -> ModelProto:
    """One Concat of `count` equal values, each computed by itself."""
    model = parse("g (float[3] x) => (float[n] y) { y = Neg(x) }")
    names = [f"a{i}" for i in range(count)]
    del model.graph.node[:]
    model.graph.node.extend(helper.make_node("Neg", ["x"], [name]) for name in names)
    model.graph.node.append(helper.make_node("Concat", names, ["y"], axis=0))
    return model


def repeated(count: int) -> ModelProto:
    """One Concat that reads one value `count` times."""
    model = parse("g (float[3] x) => (float[n] y) { a = Neg(x) y = Concat<axis = 0>(a, a) }")
    model.graph.node[1].input[:] = ["a"] * count
    return model


def noted(count: int) -> ModelProto:
    """A model and two nodes with `count` entries of metadata each."""
    model = parse("g (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) y = Exp(b) }")
    for holder in (model, *model.graph.node[:2]):
        for i in range(count):
            holder.metadata_props.add(key=f"k{i}", value="v")
    return model


def optimised(model: ModelProto) -> Any:
    return onnxgrad.optimize(model, verify=False)


def differentiated(model: ModelProto) -> Any:
    return onnxgrad.gradient(model, "x", "y", adjoint="input")


def steps(work: Callable[[ModelProto], Any], model: ModelProto) -> int:
    """How many instructions of Python are run."""
    count = 0

    def instruction(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return instruction

    before = sys.gettrace()
    sys.settrace(instruction)
    try:
        work(model)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("work", [optimised, differentiated])
@pytest.mark.parametrize("make", [wide, repeated, noted])
def test_twice_the_size_takes_twice_the_steps(
    work: Callable[[ModelProto], Any], make: Callable[[int], ModelProto]
) -> None:
    work(make(2))  # what is asked once is known now
    once, twice = steps(work, make(200)), steps(work, make(400))
    assert twice < 2.5 * once


def test_an_operand_of_many_is_found_where_it_is() -> None:
    """Whatever was replaced before, several times, by values that are read there already."""
    block = onnxgrad.load(wide(100)).main
    concat = next(b for b in block.bindings if b.op == "Concat")
    values = [v for v in concat.inputs if v is not None]
    for old, new in ((0, 1), (1, 2), (50, 2), (2, 99), (99, 3)):
        block.replace(values[old], values[new])
        block.check()
    moved = [i for i, v in enumerate(concat.inputs) if v is values[3]]
    assert moved == [0, 1, 2, 3, 50, 99] == concat.places(values[3])
