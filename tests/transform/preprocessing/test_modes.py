"""The names of modes."""

from __future__ import annotations

import re

import pytest

from onnxgrad import help
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.modes import MODES, REFUSED, mode_of
from scripts.records import rows


@pytest.mark.parametrize("name", REFUSED)
def test_a_mode_that_no_graph_reproduces_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        InputError, match=f"resize: {name} .*{REFUSED[name][1]} is the nearest mode"
    ):
        mode_of(name)
    assert REFUSED[name][1] in MODES


def test_a_name_that_is_none() -> None:
    with pytest.raises(
        InputError, match=r"unknown mode 'pil-bilinaer' \(did you mean 'pil-bilinear'"
    ):
        mode_of("pil-bilinaer")


def test_the_table_of_the_help_is_the_record() -> None:
    measured = rows("resize.md", "| mode |")
    assert [row[0] for row in measured] == [f"`{name}`" for name in MODES]
    page = help.page("preprocessing")
    for row in measured:
        assert re.search(r"\| *" + r" *\| *".join(map(re.escape, row)) + r" *\|", page), row[0]
    assert all(f"`{name}`" in page for name in REFUSED)
