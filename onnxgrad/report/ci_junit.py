"""`onnxgrad ci` as JUnit XML, the form that every forge and CI server reads: a suite per recipe, a
case per model.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from onnxgrad.pipeline.ci.outcome import ModelOutcome
from onnxgrad.report.ci import CiReport, model_lines
from onnxgrad.wording import printable


def junit(report: CiReport) -> str:
    """The report as a document of JUnit's: an `error` where a model could not be looked at, a
    `failure` where it is not what is required, and for models that only the lock knows.
    """
    root = Element("testsuites")
    suite = SubElement(root, "testsuite")
    for model in report.models:
        _add(suite, report, model)
    for name in () if report.updated else report.gone:
        case = _case(suite, report, name, 0.0)
        _set(SubElement(case, "failure"), type="gone", message=report.gone_text(name))
    counts = {kind: len(suite.findall(f"testcase/{kind}")) for kind in _KINDS}
    _set(
        suite,
        name=f"onnxgrad ci {report.recipe}",
        tests=str(len(suite)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{report.seconds:.3f}",
    )
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_KINDS = ("failure", "error", "skipped")


def _add(suite: Element, report: CiReport, model: ModelOutcome) -> None:
    case = _case(suite, report, model.name, model.seconds)
    said = "\n".join(str(part).strip() for part in model_lines(model, verbose=True))
    if model.ok:
        if said:
            SubElement(case, "system-out").text = said
        return
    kind = model.status if model.status in ("error", "skipped") else "failure"
    found = SubElement(case, kind)
    if kind == "skipped":
        _set(found, message="a model before it failed")
        return
    _set(found, type=model.status, message=model.error or model.status)
    found.text = said


def _case(suite: Element, report: CiReport, name: str, seconds: float) -> Element:
    case = SubElement(suite, "testcase")
    _set(case, classname=report.recipe, name=name, time=f"{seconds:.3f}")
    return case


def _set(element: Element, **attributes: str) -> None:
    for name, value in attributes.items():
        element.set(name, printable(value))
