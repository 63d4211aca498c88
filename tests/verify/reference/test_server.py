"""The compiled models of the float64 child: those whose runs are counted stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify.reference import client
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.server import References
from tests.helpers import parse

MODEL = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }").SerializeToString()


def _run(references: References, key: str, count: object) -> Any:
    options = {
        "seconds": None,
        "jitter": 0.0,
        "seed": 0,
        "everywhere": False,
        "deployed": False,
        "count": count,
    }
    options |= {"steps": True, "rounded": None, "moved": None}
    return references.run(key, {"x": np.ones(2, np.float32)}, None, options)


def test_other_models_do_not_replace_those_whose_runs_are_counted() -> None:
    references = References()
    for key in ("original", "candidate"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, "proof") is not None
    for key in ("lookup", "table", "other"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, None) is not None
    assert references.covered("original", "proof", "") and references.covered(
        "candidate", "proof", ""
    )
    assert _run(references, "lookup", None) is None


def test_inputs_that_do_not_move_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child remembers them by mark; a child that does not is sent all of them."""
    sent: list[int] = []
    ask = client._ask

    def counting(child: Any, timeout: float, verb: str, *arguments: Any) -> Any:
        if verb == "exact.run":
            sent.append(len(arguments[1]))
        return ask(child, timeout, verb, *arguments)

    monkeypatch.setattr(client, "_ask", counting)
    model = Float64(
        parse(
            "g (float[2] x, float[2] a, float[2] b) => (float[2] y) { s = Mul (a, x) y = Add (s, b) }"
        )
    )
    feeds = {"x": np.float32([2, 3]), "a": np.zeros(2), "b": np.zeros(2)}
    model.run(feeds, outputs=["y"], moved=("one", ""))
    assert model.run({**feeds, "a": np.ones(2)}, moved=("one", "a"))["y"].tolist() == [2, 3]
    assert model.run({**feeds, "b": np.ones(2)}, moved=("one", "b"))["y"].tolist() == [1, 1]
    assert sent[-2:] == [1, 1]
    other = {**feeds, "x": np.float32([5, 7])}
    assert model.run({**other, "a": np.ones(2)}, moved=("two", "a"))["y"].tolist() == [5, 7]
    assert sent[-2:] == [1, 3]
