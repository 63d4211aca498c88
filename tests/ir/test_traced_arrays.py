"""A traced array computes as an array does; what is not traced becomes a fact about every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.derivations import Derivations, Step
from onnxgrad.ir.traced_arrays import Traced, plain, predicate
from onnxgrad.jobs.rebasing.functions import CALLS
from onnxgrad.jobs.rebasing.steps import Decoder, Encoder
from onnxgrad.jobs.rebasing.values import Values

W = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], np.float32)


def traced(array: Any = W) -> Traced:
    return Traced(array, Step("weight", "w"), Derivations())


def again(step: Step, array: Any) -> Any:
    """The value of a step for another weight, after it was written and read."""
    encoder = Encoder()
    number = encoder.number(step)
    steps = Decoder(encoder.entries, encoder.constants).steps
    return Values(steps, [steps[number]], lambda name: array).of(steps[number])


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * 2 + a / np.float32(3) - 1,
        lambda a: 1 - a,
        lambda a: -a.T.astype(np.float64),
        lambda a: np.concatenate([a, a[:, ::-1]], axis=1),
        lambda a: np.split(a, [1], axis=1)[1],
        lambda a: a.reshape(3, -1).reshape([6]),
        lambda a: np.reshape(a, (1, *a.shape)).transpose(2, 0, 1),
        lambda a: a[..., None, 1:],
        lambda a: a[np.array([1, 0, 1])],
        lambda a: np.where(a > 0, a, np.float32(0)),
        lambda a: np.stack([row * 2 for row in a]),
        lambda a: np.broadcast_to(a[0], (4, 3)),
        lambda a: np.repeat(a, 2, axis=0).sum(axis=1, keepdims=True),
        lambda a: a.max(axis=0) @ np.ones((3, 2), np.float32),
        lambda a: np.take(a, np.array([0, 2]), axis=1).astype("float16"),
        lambda a: np.clip(a, -1, 2),
    ],
)
def test_steps_compute_the_same_again(function: Callable[[Any], Any]) -> None:
    found = function(traced())
    assert isinstance(found, Traced) and not found.derivations.pending
    assert np.array_equal(found.array, function(W)) and found.dtype == function(W).dtype
    other = W[::-1] * np.float32(1.5)
    value = again(found.step, other)
    assert value.dtype == function(other).dtype and np.array_equal(value, function(other))


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (lambda a: bool((a > 0).all()), "not all((w > 0))"),
        (lambda a: bool(np.isfinite(a).all()), "all(isfinite(w))"),
        (lambda a: bool(np.array_equal(a, W)), "array_equal(w, ...)"),
        (lambda a: float(a[0, 0]), "w = 1.0"),
        (lambda a: a.tolist(), "w keeps its 6 elements"),
        (lambda a: np.asarray(a), "w keeps its 6 elements"),
        (lambda a: np.array([a, a]), "w keeps its 6 elements"),
        (lambda a: np.unique(a), "w keeps its 6 elements"),
        (lambda a: np.linalg.norm(a), "w keeps its 6 elements"),
        (lambda a: np.add.reduce(a), "w keeps its 6 elements"),
        (lambda a: a.tobytes(), "w keeps its 6 elements"),
        (lambda a: np.nonzero(a), "w keeps its 6 elements"),
        (lambda a: W[a > 0], "(w > 0) keeps its 6 elements"),
        (lambda a: 3.0 in a[0], "not any"),
    ],
)  # fmt: skip
def test_other_uses_are_facts(use: Callable[[Any], Any], fact: str) -> None:
    a = traced()
    expected, found = use(W), use(a)
    assert not isinstance(found, Traced)
    assert np.array_equal(found, expected)
    facts = [str(p) for p in a.derivations.pending]
    assert facts and (fact in facts[0] or fact == "not any")


def test_what_is_known_of_a_shape_is_no_fact() -> None:
    a = traced()
    assert (a.shape, a.ndim, a.size, len(a), a.dtype) == ((2, 3), 2, 6, 2, np.float32)
    assert np.size(a) == 6 and np.shape(a) == (2, 3) and a.flags.c_contiguous
    assert not a.derivations.pending


def test_adding_in_place_makes_another_value() -> None:
    a = traced()
    b = a
    b += 1
    assert isinstance(b, Traced) and b is not a and np.array_equal(a.array, W)
    assert np.array_equal(again(b.step, W * 2), W * 2 + 1)


def test_assigned_elements_are_read() -> None:
    """The array that changed is a literal, of which more may be computed."""
    a = traced()
    b = a * 2
    b[0, 0] = 7
    assert [str(p) for p in a.derivations.pending] == ["(w * 2) keeps its 6 elements"]
    assert np.array_equal(a.array, W) and (b + 1).array[0, 0] == 8
    assert again((b + 1).step, W * 3)[0, 0] == 8


def test_a_predicate_of_several_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    @predicate
    def _differ(a: Any, b: Any) -> str | None:
        return "they differ" if not np.array_equal(a, b) else None

    monkeypatch.setitem(CALLS, "_differ", _differ)
    a = traced()
    assert _differ(a, W) is None and _differ(W, W + 1) == "they differ"
    (fact,) = a.derivations.pending
    assert str(fact) == "not _differ(w, ...)" and plain(a) is a.array
    assert not again(fact.step, W) and again(fact.step, W + 1) == "they differ"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: a.reshape(-1).reshape(3, 2), "reshape(w, (3, 2))"),
        (lambda a: np.expand_dims(a.reshape(6), (0, 2)).ravel(), "reshape(w, (6,))"),
        (lambda a: np.expand_dims(a, 0).squeeze(0), "w"),
        (lambda a: np.squeeze(a.reshape(1, 6), axis=0).reshape(2, 3), "w"),
        (lambda a: np.broadcast_to(a.reshape(2, -1), (2, 3)).astype(np.float32), "w"),
        (lambda a: np.broadcast_to(a, (1, 2, 3)), "broadcast_to(w, (1, 2, 3))"),
        (lambda a: np.reshape(a, (3, 2), "F"), "reshape(w, (3, 2), 'F')"),
        (lambda a: np.ravel(a, "F"), "ravel(w, 'F')"),
        (lambda a: np.ravel(a, order="F"), "ravel(w)"),
    ],
)
def test_shapes_of_the_same_elements(change: Callable[[Any], Any], text: str) -> None:
    """Several reshapes are one, and none if the first shape is back; so equal values have one step."""

    def shown(s: Any) -> str:
        if not isinstance(s, Step):
            return repr(s)
        return s.what if s.kind == "weight" else f"{s.what}({', '.join(map(shown, s.operands))})"

    a = traced()
    again_whole, found = a.reshape(a.shape), change(a)
    assert again_whole.step is a.step and shown(found.step) == text
    assert np.array_equal(found.array, change(W)) and found.array.dtype == W.dtype
    assert np.array_equal(again(found.step, W * 2), change(W * 2))
