"""One law at one place: what it answers is put in, or everything is as it was; and whose fault a wrong answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onnxgrad.errors import InternalError, RuleFailed
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import OptionalType, SequenceType, TensorType
from onnxgrad.rewrite.attempt import (
    Attempt,
    call_arguments,
    closes_cycle,
    fits,
    replacements,
    substitute,
)
from onnxgrad.rewrite.trace import Trace, decline
from tests.helpers import parse

GRAPH = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Exp(a) y = Relu(b) }"


def attempted(
    build: Callable[[dict[str, Any]], Any], **options: Any
) -> tuple[BindingBlock, Any, Trace]:
    """The block after one attempt by `law` at b, what it touched, the record."""
    block = load(parse(GRAPH)).main
    values = {v.name: v for v in block.vars()}
    trace = Trace(explain=True)
    touched = Attempt("law", "b", block, [values["b"].definition], **options)(
        trace, lambda: build(values)
    )
    block.schedule()
    block.check()
    return block, touched, trace


def ops(block: BindingBlock) -> list[str]:
    return [b.op for b in block.bindings]


def test_an_answer_is_put_in_and_what_was_there_goes() -> None:
    block, touched, trace = attempted(lambda v: {v["b"]: op.Sin(v["x"])})
    assert ops(block) == ["Sin", "Relu"]
    assert touched is not None and [b.op for b in touched.emitted] == ["Sin"]
    assert {b.op for b in touched.neighbours} == {"Relu"}
    assert [f.rule for f in trace.rewrites] == ["law"] and trace.counts["law"].applied == 1


def test_what_was_emitted_and_not_used_is_taken_back() -> None:
    def build(v: dict[str, Any]) -> Any:
        op.Cos(op.Add(v["x"], 2.0))
        return {v["b"]: op.Sin(v["x"])}

    block, _, _ = attempted(build)
    assert ops(block) == ["Sin", "Relu"] and not block.initializers


def declined_late(v: dict[str, Any]) -> Any:
    op.Cos(op.Add(v["x"], 2.0))
    raise decline("after all")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda v: None, None),
        (lambda v: {}, None),
        (lambda v: decline("no"), "no"),
        (declined_late, "after all"),
    ],
)
def test_without_an_answer_all_is_as_it_was(build: Any, reason: str | None) -> None:
    block, touched, trace = attempted(build)
    assert touched is None and not trace.rewrites and trace.counts.get("law") is None
    assert ops(block) == ["Neg", "Exp", "Relu"] and not block.initializers
    assert list(trace.declined) == ([] if reason is None else [("law", "b", reason)])


def test_a_result_keeps_what_was_known_of_its_size() -> None:
    block, _, _ = attempted(lambda v: {v["b"]: op.Reshape(v["x"], op.Shape(v["x"]))})
    reshape = next(b for b in block.bindings if b.op == "Reshape")
    assert reshape.out.shape == (2,)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda v: {v["b"]: op.Cast(v["x"], to=7)}, "a value of another type"),
        (lambda v: {v["b"]: op.Concat(v["x"], v["x"], axis=0)}, "a value of another type"),
        (lambda v: {v["a"]: op.Sin(v["b"]), v["b"]: op.Cos(v["x"])}, "would be a cycle"),
    ],
)
def test_an_answer_that_cannot_be_is_somebodys_fault(build: Any, says: str) -> None:
    with pytest.raises(InternalError, match=says):
        attempted(build)
    with pytest.raises(RuleFailed, match=f"rule law failed at b .*{says}"):
        attempted(build, author=build)


def test_equal_emissions_are_shared_where_asked_for() -> None:
    def build(v: dict[str, Any]) -> Any:
        return {v["b"]: op.Add(op.Sin(v["x"]), op.Sin(v["x"]))}

    assert ops(attempted(build)[0]).count("Sin") == 2
    assert ops(attempted(build, share=True)[0]).count("Sin") == 1


def test_arguments_are_given_by_name() -> None:
    assert call_arguments(lambda b, root: None, {"a": 1, "b": 2, "root": 3}) == {"b": 2, "root": 3}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda v: {"b": v["a"]}, "replaces str 'b': only a value"),
        (lambda v: {v["b"]: 1.0}, "by float 1.0: return a value of the graph"),
    ],
)
def test_only_values_stand_for_values(answer: Any, says: str) -> None:
    values = {v.name: v for v in load(parse(GRAPH)).main.vars()}
    with pytest.raises(InternalError, match=says):
        replacements(answer(values), {})


def test_a_binding_stands_for_its_result_and_what_stays_is_left_out() -> None:
    v = {v.name: v for v in load(parse(GRAPH)).main.vars()}
    found = replacements({v["b"].definition: v["a"], v["a"]: v["a"]}, {})
    assert found == {v["b"]: v["a"]}


F32 = TensorType(1, (2, "N"))


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (F32, TensorType(1, (2, 5)), True),
        (F32, TensorType(0, None), True),
        (F32, TensorType(1, (3, "N")), False),
        (F32, TensorType(1, (2,)), False),
        (F32, TensorType(7, (2, "N")), False),
        (F32, SequenceType(F32), False),
        (SequenceType(F32), OptionalType(F32), False),
    ],
)
def test_types_that_one_value_may_have(a: Any, b: Any, answer: bool) -> None:
    assert fits(a, b) is answer and fits(b, a) is answer


def test_a_cycle_is_a_new_value_built_on_one_that_goes() -> None:
    block = load(parse(GRAPH)).main
    v = {v.name: v for v in block.vars()}
    assert closes_cycle({v["a"]: v["b"]})
    assert not closes_cycle({v["b"]: v["a"]})


@pytest.mark.parametrize(("readers", "looked_at"), [(40, 38), (1000, 0)])
def test_readers_of_a_number_that_all_layers_read(readers: int, looked_at: int) -> None:
    """A rewrite at one of many does not lead to all others: that would take quadratic time."""
    chain = " ".join(f"v{i + 1} = Mul (v{i}, c)" for i in range(readers))
    block = load(parse(f"g (float[2] v0, float c) => (float[2] v{readers}) {{ {chain} }}")).main
    values = {v.name: v for v in block.vars()}
    changed = [b.outputs[0] for b in substitute({values["v7"]: values["v6"]})]
    beside = {values["v6"], values["v8"]}
    assert beside <= {*changed} and len({*changed} - beside) in range(looked_at - 1, looked_at + 1)
