"""JUnit XML of `onnxgrad ci`: a case per model, counted by kind, whatever a model is called."""

from __future__ import annotations

from xml.etree import ElementTree

from onnxgrad.pipeline.ci.outcome import ModelOutcome
from onnxgrad.report.ci import CiReport
from onnxgrad.report.ci_junit import junit

HOSTILE = 'a"<b>&\x00\x1b[31m]]>\ud800'


def outcome(name: str, status: str, error: str = "") -> ModelOutcome:
    found = ModelOutcome(name, seconds=1.5)
    if status not in ("passed", "changed", "skipped"):
        found.fail(status, 1, error)  # type: ignore[arg-type]
    else:
        found.status = status  # type: ignore[assignment]
    return found


def test_a_case_per_model() -> None:
    models = (
        outcome("a.onnx", "passed"),
        outcome("b.onnx", "failed", "onnxgrad.toml requires otherwise: 9 nodes, not <= 3"),
        outcome("c.onnx", "error", "not an ONNX model"),
        outcome("d.onnx", "skipped"),
        outcome("e.onnx", "different", "y differs"),
    )
    report = CiReport("onnxgrad.toml", models, "onnxgrad.lock.json", gone=("f.onnx",), seconds=3.0)
    suite = ElementTree.fromstring(junit(report))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "tests": "6", "failures": "3", "errors": "1", "skipped": "1", "time": "3.000",
    }  # fmt: skip
    found = {case.get("name"): [(e.tag, e.get("type")) for e in case] for case in suite}
    assert found == {
        "a.onnx": [],
        "b.onnx": [("failure", "failed")],
        "c.onnx": [("error", "error")],
        "d.onnx": [("skipped", None)],
        "e.onnx": [("failure", "different")],
        "f.onnx": [("failure", "gone")],
    }
    message = suite.find("testcase[@name='b.onnx']/failure")
    assert message is not None and "9 nodes, not <= 3" in (message.get("message") or "")
    assert {case.get("classname") for case in suite} == {"onnxgrad.toml"}


def test_what_xml_cannot_hold_is_spelt_out() -> None:
    text = junit(CiReport("r.toml", (outcome(HOSTILE, "failed", HOSTILE),), "l.json"))
    case = ElementTree.fromstring(text.encode("utf-8", "strict"))[0][0]
    assert case.get("name") == 'a"<b>&\\x00\\x1b[31m]]>\\ud800'
    assert (case[0].get("message") or "").startswith('a"<b>&')


def test_a_lock_that_was_written_has_nothing_gone() -> None:
    report = CiReport("r.toml", (), "l.json", gone=("f.onnx",), updated=True)
    assert len(ElementTree.fromstring(junit(report))[0]) == 0
