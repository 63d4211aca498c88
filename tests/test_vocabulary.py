"""The words that options choose from, and the tables of options in the help pages, are those that
there are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxgrad import surface, vocabulary
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.help import source
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import options_of
from onnxgrad.passes.presets import PRESETS
from scripts import make_tables


def test_presets() -> None:
    assert surface.__all__ and tuple(PRESETS) == vocabulary.PRESETS  # the surface registers all


@pytest.mark.parametrize("path", make_tables.files(), ids=lambda path: path.name)
def test_generated_files(path: Path) -> None:
    """If one differs: python scripts/make_tables.py"""
    assert path.read_text(encoding="utf-8") == make_tables.files()[path]


def test_the_page_of_commands_lists_every_option_of_optimize() -> None:
    text = source("commands").partition("## Options of `optimize`")[2]
    rows = [row.names[-1] for row in COMMANDS["optimize"].rows if row.names[0].startswith("--")]
    rows += [o.flag for o in options_of(OptimizeOptions) if o.flag is not None]
    assert [flag for flag in rows if flag != "--out-dir" and f"`{flag}" not in text] == []
