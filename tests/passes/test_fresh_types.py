"""onnxgrad/passes/pipeline.py: whether a fresh reading of the result says more about its types."""

from __future__ import annotations

import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.types import Shape, TensorType
from onnxgrad.passes import pipeline
from onnxgrad.passes.pipeline import types_of_a_fresh_reading
from tests.helpers import parse

# the size of a NonZero has no name, so the result is read
TEXT = """g (float[N,3] x, float[A,B] u) => (float[P,Q] y) {
    r = Neg(x) s = MatMul(r, u) y = Neg(s) z = NonZero(x)
}"""


@pytest.mark.parametrize(
    ("known", "more"),
    [
        (None, True),  # a rank
        ((None, 3), True),  # a size got a name
        (("N", None), True),
        (("N", "M"), True),  # a name became a size
        (("M", 3), False),  # another name
        (("N", 3), False),
    ],
)
def test_what_counts_as_more(known: Shape | None, more: bool) -> None:
    program = load(parse(TEXT))
    negated = next(iter(program.main.bindings)).out
    fresh = negated.type
    assert isinstance(fresh, TensorType) and fresh.shape == ("N", 3)
    negated.type = TensorType(fresh.dtype, known)
    assert types_of_a_fresh_reading(program) is more
    assert negated.type == fresh
    assert not types_of_a_fresh_reading(program)


def test_nothing_is_read_where_no_operand_tells_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "load", lambda proto: pytest.fail("it is read"))
    program = load(parse(TEXT))
    (shape,) = [b.out.shape for b in program.main.bindings if b.op == "NonZero"]
    assert shape is not None and shape[1] not in ("N", 3)  # open
    assert not types_of_a_fresh_reading(program)


def test_a_dtype_is_more() -> None:
    program = load(parse(TEXT))
    negated = next(iter(program.main.bindings)).out
    negated.type = None
    assert types_of_a_fresh_reading(program)


@pytest.mark.parametrize(
    ("dim", "is_read"), [("N", False), ("Min(128, N)", False), ("M", True), ("Min(M, N)", True)]
)
def test_nothing_is_read_where_inputs_name_all_sizes(
    dim: str, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(pipeline, "load", lambda proto: read.append(1) or load(proto))
    program = load(parse("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }"))
    next(iter(program.main.bindings)).out.type = TensorType(1, (dim, 3))
    assert not types_of_a_fresh_reading(program)
    assert bool(read) is is_read
