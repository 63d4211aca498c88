"""Registers the forms of results for Python users: text, notebook, Markdown, page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.inspection.contents import Summary, Weights
from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.jobs.outcome import OptimizedModel
from onnxgrad.jobs.training.fit import Fitted
from onnxgrad.report.ci import ci_parts, junit
from onnxgrad.report.diff import diff_parts
from onnxgrad.report.html.ci import ci_page
from onnxgrad.report.html.models import diff_page, summary_page
from onnxgrad.report.html.optimized import optimized_page
from onnxgrad.report.inspection import summary_parts, weights_parts
from onnxgrad.report.optimized import optimized_parts
from onnxgrad.report.parts import Part
from onnxgrad.report.rendering import markdown, markup, plain
from onnxgrad.report.training import fitted_parts
from onnxgrad.results import Rendered

_PARTS: dict[type, Callable[[Any, bool], Iterator[Part]]] = {
    Summary: summary_parts,
    Weights: weights_parts,
    Diff: diff_parts,
    CiReport: ci_parts,
    Fitted: fitted_parts,
    OptimizedModel: lambda result, verbose: optimized_parts(result.outcome, verbose),
}
_PAGES: dict[type, Callable[[Any], str]] = {
    Summary: summary_page,
    Diff: diff_page,
    CiReport: ci_page,
    OptimizedModel: lambda result: optimized_page([result.outcome]),
}


def parts_of(result: Rendered, verbose: bool = False) -> Iterator[Part]:
    """Returns the lines and tables of a result's text; with `verbose` all of them."""
    return _PARTS[type(result)](result, verbose)


# fills `onnxgrad.results.FORMS`
SHOWN_AS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda result: plain(parts_of(result)),
    "notebook": lambda result: markup(parts_of(result)),
    "markdown": lambda result: markdown(parts_of(result, verbose=True)),
    "junit": junit,
    "page": lambda result: _PAGES[type(result)](result),
}
