"""Records of measurements: scripts/results/NAME.md, with the date, the hardware and the
versions.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def write_record(name: str, lines: Sequence[str], hardware: str | None = None) -> Path:
    """Write one record and answer its path."""
    hardware = hardware or f"{os.cpu_count()} {platform.machine().replace('_', '-')} cores"
    versions = ", ".join(
        f"{p} {_version(p)}" for p in ("onnx", "onnxruntime", "numpy") if _version(p)
    )
    head = [
        f"# {name}",
        "",
        f"{datetime.date.today()}, {hardware}, Python {platform.python_version()}, {versions}.",
        "",
    ]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return path


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
