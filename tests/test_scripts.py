"""scripts/README.md lists every script and every record once, and records state their commit."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from scripts.records import RESULTS, commit, conditions, need_byte_code, processor
from tests.helpers import ROOT

SCRIPTS = ROOT / "scripts"
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
ROWS = ROW.findall((SCRIPTS / "README.md").read_text(encoding="utf-8"))
RECORDS = {r: script for script, _, records, _ in ROWS for r in re.findall(r"\[(.+?)\]", records)}
WRITTEN = sorted(p.name for p in RESULTS.iterdir() if p.suffix != ".svg")  # drawings have no date


def test_the_index_lists_every_script_once():
    there = [p.name for p in SCRIPTS.iterdir() if p.suffix in (".py", ".sh")]
    assert Counter(script for script, *_ in ROWS) == Counter(there)


def test_the_index_names_every_record():
    assert set(RECORDS) == {p.name for p in RESULTS.iterdir()}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_record_states_its_commit(name):
    text = (RESULTS / name).read_text(encoding="utf-8")
    assert re.search(r"commit (\w+ )*[0-9a-f]{8}\b|\"commit\": \"(recorded in )?[0-9a-f]{8}", text)


@pytest.mark.parametrize("name", sorted({RECORDS[name] for name in WRITTEN}))
def test_a_script_with_a_record_states_the_commit(name):
    text = (SCRIPTS / name).read_text(encoding="utf-8")
    assert re.search(r"\b(write_record|conditions|commit)\(", text)


def test_conditions_state_the_commit_of_the_checkout():
    assert re.fullmatch(r"commit ([0-9a-f]{8,}( and changes)?|unknown)", commit())
    assert conditions("a machine").endswith(f", {commit()}.")
    assert ", a machine, Python " in conditions("a machine")


def test_a_benchmark_of_commands_refuses_to_measure_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    need_byte_code()
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    with pytest.raises(SystemExit, match="PYTHONDONTWRITEBYTECODE"):
        need_byte_code()


def test_records_name_the_processor() -> None:
    assert processor() and f"({processor()})" in conditions()
