"""Every constant has an origin while a record is kept, and facts count only for rewrites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import P, capture, decline, op, rewrite
from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import LITERAL, Step
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.origins import note_equal, reading, record, results, use_behind
from onnxgrad.ir.program import Program
from onnxgrad.ir.traced_arrays import Traced
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules
from tests.helpers import parse

TEXT = """g (float[N,2] x) => (float[N,2] y)
<float[2] a = {1, 2}, float[2] b = {1, 2}, int64[2] sizes = {-1, 2}, float[4] scales = {1, 1, 1, 1}> {
  p = Mul (x, a)  q = Add (p, b)  y = Reshape (q, sizes) }"""


def recorded(text: str = TEXT) -> Program:
    program = load(parse(text))
    record(program)
    return program


def test_weights_are_traced_and_sizes_are_not() -> None:
    program = recorded()
    found = program.main.initializers
    assert isinstance(found["a"].const, Traced)
    assert isinstance(found["sizes"].const, np.ndarray)
    assert [str(found[n].source) for n in ("a", "sizes")] == ["a", "sizes()"]
    text = """g (float[1,1,2,2] x) => (float[1,1,N,M] y) <float[2] s = {1, 1}, float[2] t = {2, 2}> {
      k = Concat <axis = 0> (s, t)  y = Resize (x, , k) }"""
    assert isinstance(recorded(text).main.initializers["t"].const, np.ndarray)
    text = "g (float[1,1,2,2] x) => (float[1,1,N,M] y) <float[4] s = {1, 1, 2, 2}> { y = Resize (x, , s) }"
    assert isinstance(recorded(text).main.initializers["s"].const, np.ndarray)
    assert isinstance(load(parse(TEXT)).main.initializers["a"].const, np.ndarray)


def test_results() -> None:
    """Emitted constants have the steps of their arrays; plain arrays are literals."""
    program = recorded()
    a, block = program.main.initializers["a"], program.main
    array: Any = a.const
    with emitting(block):
        made = constant(array * np.float32(2), name="double")
        plain = constant(np.ones(2, np.float32), name="ones")
        shared = op.Add(made, plain)
    assert shared.definition is not None and plain.source is LITERAL
    found = results(program)
    assert {n: str(s) for n, s in found.items()} == {
        "a": "a", "b": "b", "double": "(a * 2.0)", "scales": "scales",
    }  # fmt: skip
    assert program.derivations is None and isinstance(a.const, np.ndarray)


def test_an_initializer_of_unknown_origin() -> None:
    program = recorded()
    tensor = parse(TEXT).graph.initializer[0]
    tensor.name = "hidden"
    program.main.add_initializer(tensor)
    with pytest.raises(
        NotProved, match="not rebasable: 'hidden' was made by a rewrite that records no"
    ):
        results(program)


def test_shared_constants_are_equal_ones() -> None:
    """Hash-consing of two weights is a fact about both."""
    program = recorded()
    kept, found = program.derivations, program.main.initializers
    assert kept is not None
    with emitting(program.main, share=True):
        one, two = (constant(found[n].const) for n in ("a", "b"))
    assert one is two and [str(p) for p in kept.pending] == ["a = b in every element"]
    kept.forget()
    note_equal(found["a"], found["a"])
    note_equal(found["sizes"], found["sizes"])
    assert not kept.pending


x, c = capture("x c")


def test_facts_of_declined_attempts_do_not_count() -> None:
    program, trace = recorded(), Trace()
    trace.derivations = program.derivations
    kept = program.derivations
    assert kept is not None

    @rewrite(P.Mul(x, c.const))
    def refused(x: Any, c: Any) -> Any:
        return decline("no") if (c.const > 0).all() else None

    @rewrite(P.Add(x, c.const))
    def taken(x: Any, c: Any) -> Any:
        if (c.const < 0).any():
            return None
        return op.Sub(x, constant(-c.const))

    assert apply_rules(program.main, [refused, taken], trace) == 1
    (held,) = kept.held
    assert (held.rule, str(held.predicate)) == ("taken", "not any((b < 0.0))") or str(
        held.predicate
    ) == "not any((b < 0))"


def test_values_that_rewrites_read() -> None:
    """Names of weights whose values were read count if the rule then rewrites."""
    program, trace = load(parse(TEXT)), Trace()

    @rewrite(P.Mul(x, c.const))
    def refused(x: Any, c: Any) -> Any:
        return decline("no") if (c.const > 0).all() else None

    @rewrite(P.Add(x, c.const))
    def taken(x: Any, c: Any) -> Any:
        return None if (c.const < 0).any() else op.Sub(x, constant(-c.const))

    with reading(program) as read:
        trace.derivations = read
        assert apply_rules(program.main, [refused, taken], trace) == 1
        assert [*read.held] == ["b"] and not read.pending
        assert isinstance(program.main.initializers["a"].const, np.ndarray)
    assert all(v.reads is None for v in program.main.vars())


def test_the_weights_behind_a_folded_value() -> None:
    program = load(parse(TEXT.replace("Mul (x, a)", "Mul (a, b)").replace("Add (p, b)", "Exp (p)")))
    with reading(program) as read:
        use_behind([*program.main.bindings][2])
        assert [*read.pending] == ["a", "b"]


def test_formulas_are_cut() -> None:
    step = Step("weight", "w")
    for _ in range(9):
        step = Step("numpy", "add", [step, np.float32(1)])
    assert str(step) == "((((... + 1.0) + 1.0) + 1.0) + 1.0)"
