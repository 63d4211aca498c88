"""How windows and decisions read."""

from __future__ import annotations

import pytest

from onnxgrad.verify.exact.window import Decision, Premise


@pytest.mark.parametrize(
    ("decision", "text", "holds"),
    [
        (Decision("exact"), "exact", True),
        (Decision("rounded", rounded=("w",)), "exact up to rounding of 1 weight", True),
        (Decision("rounded", rounded=("w", "b")), "exact up to rounding of 2 weights", True),
        (Decision("sampled", stopped_by="Loop"), "sampled: Loop", False),
        (Decision("refuted", stopped_by="y[0]"), "refuted: y[0]", False),
    ],
)
def test_a_decision_in_words(decision: Decision, text: str, holds: bool) -> None:
    assert (str(decision), bool(decision)) == (text, holds)
    assert decision.to_dict()["verdict"] == decision.verdict


def test_premises_name_their_values() -> None:
    assert str(Premise("positive", "scale")) == "scale: positive"
    assert str(Premise("equal sizes", "x", "y")) == "x and y: equal sizes"
