"""Sequences and optionals, against central differences of models that end in tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_model, normal
from tests.helpers import parse


def graph(body: str, out: str = "float[K,3] y", more: str = "") -> str:
    return f"g (float[2,3] a, float[4,3] b{more}) => ({out}) {{ {body} }}"


CASES = {
    "construct_and_concat": "s = SequenceConstruct (a, b) y = ConcatFromSequence <axis = 0> (s)",
    "at": "s = SequenceConstruct (a, b) i = Constant <value_int = 1> () t = SequenceAt (s, i) y = Sin (t)",
    "at_negative": "s = SequenceConstruct (a, b) i = Constant <value_int = -2> () t = SequenceAt (s, i) y = Sin (t)",
    "insert": (
        "s = SequenceConstruct (a) i = Constant <value_int = 0> () c = Sin (b) t = SequenceInsert (s, c, i) "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
    "insert_at_the_end": (
        "s = SequenceConstruct (a) c = Sin (b) t = SequenceInsert (s, c) y = ConcatFromSequence <axis = 0> (t)"
    ),
    "erase": (
        "c = Sin (a) s = SequenceConstruct (a, b, c) i = Constant <value_int = 1> () t = SequenceErase (s, i) "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
    "erase_the_last": "s = SequenceConstruct (a, b) t = SequenceErase (s) y = ConcatFromSequence <axis = 0> (t)",
    "split": (
        "p = Constant <value_ints = [1, 3]> () s = SplitToSequence <axis = 0> (b, p) i = Constant <value_int = 1> () "
        "t = SequenceAt (s, i) y = Sin (t)"
    ),
    "split_in_rows": (
        "s = SplitToSequence <axis = 0, keepdims = 0> (b) i = Constant <value_int = 2> () t = SequenceAt (s, i) "
        "y = Mul (a, t)"
    ),
    "stack": (
        "c = Sin (a) s = SequenceConstruct (a, c) q = ConcatFromSequence <axis = 1, new_axis = 1> (s) "
        "r = Mul (q, q) k = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (r, k)"
    ),
    "two_readers": (
        "s = SequenceConstruct (a, b) i = Constant <value_int = 0> () t = SequenceAt (s, i) u = Sin (t) "
        "v = ConcatFromSequence <axis = 0> (s) y = Concat <axis = 0> (u, v)"
    ),
    "optional": "s = Optional (a) t = OptionalGetElement (s) y = Sin (t)",
    "map": (
        "s = SequenceConstruct (a, b) w = Sin (a) t = SequenceMap (s) <body = m (float[R,3] e) => (float[R,3] f) "
        "{ k = Constant <value_ints = [0]> () z = ReduceSum <keepdims = 1> (w, k) f = Mul (e, z) }> "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sequences(name: str) -> None:
    check_model(parse(graph(CASES[name])), {"a": normal(2, 3), "b": normal(4, 3)})


def test_position_known_only_at_run_time() -> None:
    model = parse(
        graph("s = SequenceConstruct (a, b) t = SequenceAt (s, i) y = Sin (t)", more=", int64 i")
    )
    for i in (0, -1):
        check_model(model, {"a": normal(2, 3), "b": normal(4, 3), "i": np.array(i)})
