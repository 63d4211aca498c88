"""The page for those who come from other tools: what it says that these call their options is what they are called."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx.compose
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from onnxgrad.help import source

SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", source("coming-from"), re.M | re.S))


def theirs(tool: str) -> str:
    """The first column of the tool's table."""
    return "\n".join(re.findall(r"^\| (.*?) \| ", SECTIONS[tool], re.M))


def test_every_tool_has_a_table() -> None:
    tools = ["onnxsim", "onnxslim", "TVM", "onnxruntime-training", "onnx-ad", "onnx-graphsurgeon"]
    tools += ["Polygraphy", "onnxruntime's tools", "onnxconverter-common"]
    assert list(SECTIONS) == tools
    assert all(theirs(tool).count("\n") > 5 for tool in SECTIONS)


def test_what_stands_there_of_tvm_stands_in_its_table_of_origins() -> None:
    root = Path(__file__).resolve().parents[1]
    origins = (root / "ORIGINS.md").read_text(encoding="utf-8")
    names = [n.rpartition(".")[2] for n in re.findall(r"`([\w.]+)[`(]", theirs("TVM"))]
    assert len(names) > 25 and [n for n in names if n not in origins] == []


def test_methods_of_graphsurgeon_are_called_so() -> None:
    named = dict.fromkeys(
        re.findall(r"`(gs|graph|tensor|onnx\.compose)\.(\w+)\(", theirs("onnx-graphsurgeon"))
    )
    owners = {"gs": gs, "graph": gs.Graph, "tensor": gs.Variable, "onnx.compose": onnx.compose}
    assert len(named) > 6 and [n for n in named if not hasattr(owners[n[0]], n[1])] == []


@pytest.mark.peers
@pytest.mark.parametrize("tool", ["onnxsim", "onnxslim"])
def test_their_options_are_called_so(tool: str) -> None:
    program = shutil.which(tool, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"{tool} is not installed")
    known = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=120).stdout
    named = re.findall(r"`(--[\w-]+)", theirs(tool))
    assert len(named) > 8 and [o for o in named if not re.search(rf"{o}\b(?!-)", known)] == []


def test_every_command_on_the_right_is_run_by_the_page() -> None:
    """Each option of a command in the newest tables stands in a line that test_pages runs."""
    new = ("Polygraphy", "onnxruntime's tools", "onnxconverter-common")
    (block,) = re.findall(r"```sh\n(.*?)```", SECTIONS[new[-1]], re.S)
    ran = [line.split() for line in block.splitlines() if line.startswith("$ ")]
    rows = [row for tool in new for row in re.findall(r"^\| .*? \| (.*) \|$", SECTIONS[tool], re.M)]
    ours = [c for row in rows for c in re.findall(r"`onnxgrad (\w[^`]*)`", row)]
    assert len(ours) > 15
    for text in ours:
        words = text.split()
        asked = [words[0], *(w for w in words if w.startswith("--"))]
        elsewhere = words[0] == "reduce" or "--target-opset" in words
        assert elsewhere or any(set(asked) <= set(line) for line in ran), text


def test_the_tools_of_onnxruntime_are_there() -> None:
    names = re.findall(
        r"`onnxruntime\.((?:tools|transformers)\.\w+)", theirs("onnxruntime's tools")
    )
    folder = Path(str(onnxruntime.__file__)).parent
    missing = [n for n in names if not (folder / f"{n.replace('.', '/')}.py").exists()]
    assert len(names) > 5 and missing == []


def test_the_table_of_tools_is_the_record_s() -> None:
    root = Path(__file__).resolve().parents[1]
    record = (root / "scripts/results/compared.md").read_text(encoding="utf-8")
    table = re.findall(r"(?m)^\|.*\|$", record)
    page = source("compared")
    assert len(table) > 12 and page.count(table[0]) == 1
    assert all(line in page.splitlines() for line in table)
    gone = [
        t
        for t, cell in zip(
            table[0].split("|"), next(r for r in table if "metadata" in r).split("|")
        )
        if cell.strip() == "no"
    ]
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert all(tool.strip() in readme.partition("drop node metadata")[0][-80:] for tool in gone)
