"""`onnxgrad ci` as annotations: lines that GitHub, and forges that follow it, show beside the files
of a change (its "workflow commands").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from onnxgrad.pipeline.ci.outcome import ModelOutcome
from onnxgrad.report.ci import CiReport, model_lines
from onnxgrad.wording import printable, printable_lines

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def annotation_lines(report: CiReport, root: Path) -> Iterator[str]:
    """An error for each model that fails or is gone, a warning for each that changed; files are
    named from the repository's `root`.
    """
    folder = Path(report.recipe).absolute().parent
    for model in report.worst_first:
        if model.status in ("passed", "skipped"):
            continue
        kind = "warning" if model.ok else "error"
        yield _line(kind, _from(root, folder / model.name), model.status, _words(model))
    for name in () if report.updated else report.gone:
        where = _from(root, Path(report.lock).absolute())
        words = f"{report.gone_text(name)}: run `onnxgrad ci --update`"
        yield _line("error", where, "gone", words)


def _words(model: ModelOutcome) -> str:
    lines = [str(part).strip() for part in model_lines(model, verbose=False)]
    return "\n".join(lines) or model.error or model.status


def _from(root: Path, file: Path) -> str:
    return os.path.relpath(file, root).replace(os.sep, "/")


def _line(kind: str, file: str, status: str, words: str) -> str:
    title = f"onnxgrad: {status}".translate(_PROPERTY)
    where, data = printable(file).translate(_PROPERTY), printable_lines(words).translate(_DATA)
    return f"::{kind} file={where},title={title}::{data}"
