"""Records of measurements: scripts/results/NAME.md, with the date, the hardware, the versions and
the commit that was measured.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def write_record(name: str, lines: Sequence[str], hardware: str | None = None) -> Path:
    """Writes one record and returns its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    head = [f"# {name}", "", conditions(hardware), ""]
    path.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return path


def need_byte_code() -> None:
    """Ends the program if Python keeps no byte code: a package in a checkout is then compiled by
    each process, which a benchmark of commands would measure.
    """
    if sys.dont_write_bytecode:
        raise SystemExit(
            "byte code is off: unset PYTHONDONTWRITEBYTECODE, or no time is a command's"
        )


def processor() -> str:
    """Returns the name of the processor where the system tells it, else the kind."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    name = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine().replace("_", "-")


def conditions(hardware: str | None = None) -> str:
    """Returns the sentence with which a record begins: date, hardware, versions, commit."""
    hardware = hardware or f"{os.cpu_count()} cores ({processor()})"
    versions = [f"{p} {_version(p)}" for p in ("onnx", "onnxruntime", "numpy") if _version(p)]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{datetime.date.today()}", hardware, python, *versions, commit()]) + "."


def commit() -> str:
    """Returns the commit of this checkout, such as `commit 6f41b21f` or `commit 6f41b21f and
    changes`.
    """
    describe = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty= and changes"]
    try:
        done = subprocess.run(describe, cwd=RESULTS.parent, capture_output=True, text=True)
    except FileNotFoundError:  # without git
        return "commit unknown"
    return f"commit {done.stdout.strip() or 'unknown'}"


def column(record: str, name: str, table: int = 0) -> dict[str, float]:
    """Returns a column of a record, by the names of its rows.

    The column is that of the first table that has it, or of a later one. The value of a cell is the
    number at its start. If a name repeats, the first row counts.
    """
    found: list[dict[str, float]] = []
    head: list[str] = []
    for line in (RESULTS / record).read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line[:1] == "|" else []
        if not cells or set(line) <= set("|-: "):
            head = head if cells else []
        elif not head:
            head = cells
            found += [{}] if name in head else []
        elif name in head and (
            number := re.match(r"-?[\d,]*\.?\d+(?:e-?\d+)?", cells[head.index(name)])
        ):
            found[-1].setdefault(cells[0], float(number[0].replace(",", "")))
    return found[table]


def rows(record: str, first: str) -> list[list[str]]:
    """Returns the rows of the table of a record whose head begins with these cells, as cells; none
    without the record or the table.
    """
    path, found, inside = RESULTS / record, list[list[str]](), False
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        inside = line.startswith((first, "|")) and (inside or line.startswith(first))
        if inside and not line.startswith(first) and not set(line) <= set("|- "):
            found.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
