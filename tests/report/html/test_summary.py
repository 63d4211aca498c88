"""The verdict and the figures at the top of the page."""

from __future__ import annotations

from onnxgrad import verify
from onnxgrad.report.html.summary import changed_card, proof_verdict
from tests.helpers import parse


def test_what_changed_has_its_share() -> None:
    assert changed_card("nodes", 200, 50, str)["share"] == -75.0
    assert changed_card("nodes", 50, 200, str)["tone"] == "more"
    assert "share" not in changed_card("nodes", 5, 5, str)


def test_the_outputs_that_differ_stand_first() -> None:
    names = "abcde"
    outputs = ", ".join(f"float[2] {name}" for name in names)

    def model(op: str) -> str:
        nodes = " ".join(f"{n} = {'Neg' if n == 'a' else op} (x)" for n in names)
        return f"g (float[2] x) => ({outputs}) {{ {nodes} }}"

    report = verify(parse(model("Exp")), parse(model("Tanh")), seeds=[0], legs=["float64"])
    found = proof_verdict(report)
    assert found["tone"] == "bad" and found["word"] == "different"
    said = found["text"].partition(" on cpu")[0]
    assert report.worst is not None and said.startswith(f"in {report.worst.output}, ")
    assert said.endswith(", 1 more,") and "a" not in said.split(", ")
    same = verify(parse(model("Exp")), parse(model("Exp")), seeds=[0], legs=["float64"])
    assert proof_verdict(same)["text"].startswith("on cpu")
