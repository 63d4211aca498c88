"""The table of kernels says what a session says."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.convert_opset import convert
from onnxgrad.passes.served_opsets import types_of
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.kernel_versions import has_kernel, is_built_from_others
from onnxgrad.verify.running.session import kernels, open_session
from tests.backend_suite import clamp_ir, usable

KNOWN = {"A": [(7, 12, {"T": ["tensor(float)"]}), (13, (1 << 31) - 1, {})]}


@pytest.mark.parametrize(
    ("opset", "types", "has"),
    [
        (7, ["tensor(float)"], True),
        (7, ["", "tensor(float)"], True),
        (7, ["tensor(double)"], False),
        (7, ["tensor(float16)"], True),  # in float, between Casts that onnxruntime inserts
        (13, ["tensor(double)"], True),
        (14, [], False),
        (6, [], False),
    ],
)
def test_versions_and_types(opset: int, types: list[str], has: bool) -> None:
    """Add has forms of opset 6, 7, 13 and 14."""
    assert has_kernel({"Add": KNOWN["A"]}, "Add", opset, "", types) is has


def test_what_onnx_does_not_know_or_dropped_has_none() -> None:
    assert not has_kernel({"Upsample": [(7, 30, {})]}, "Upsample", 10)
    assert not has_kernel({"Nothing": [(1, 30, {})]}, "Nothing", 10)
    assert is_built_from_others("HardSwish", 14) and not is_built_from_others("Add", 14)
    assert not is_built_from_others("Nothing", 14)


def agreement(step: int) -> Counter[tuple[bool, bool]]:
    """How often the table and a session say whether the operator of a one-node model runs."""
    known, found = kernels(), Counter[tuple[bool, bool]]()
    wrong = []
    for c in [c for c in usable() if len(c.model.graph.node) == 1][::step]:
        model = clamp_ir(c.model)
        for to in sorted({load(model).opset, 18, 21, 22, 24, 25}):
            program = load(model)
            if program.opset < 7 or model.graph.node[0].domain:
                continue
            try:
                convert(program, to)
            except InputError:
                continue
            bindings = program.main.bindings
            b = next(iter(bindings), None)
            if b is None or len(bindings) != 1 or b.blocks or b.op == "Constant":
                continue
            said = has_kernel(known, b.op, to, "", types_of(b.inputs), types_of(b.outputs))
            if not said and is_built_from_others(b.op, to):
                continue  # it runs if each operator of its body has a kernel
            try:
                open_session(to_proto(program), optimize=False)
                loads = True
            except RunFailed as failed:
                if "under development" in str(failed):
                    continue  # no opset of this onnxruntime, whatever the operator
                loads = not re.search("find an implementation|find kernel", str(failed))
            found[said, loads] += 1
            if said != loads:
                wrong.append(f"{c.name} at {to}: {said}, {loads}")
    assert not wrong, "\n".join(wrong)
    return found


def test_a_sample_of_operators() -> None:
    found = agreement(60)
    assert found[True, True] > 30


@pytest.mark.slow
def test_each_operator_at_several_opsets() -> None:
    found = agreement(1)
    assert found[True, True] > 2000 and found[False, False] > 20
