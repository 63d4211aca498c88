"""No file that a command reads is one that it writes, whatever the option is called."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxgrad.cli.app import COMMANDS, parser_for
from onnxgrad.cli.targets import READ, REPORTS, check_reports
from onnxgrad.errors import InputError

_FILE = re.compile(r"\b(FILE|NPZ|OUT|DIR|FOLDER|MODEL|LIB|CONFIG|A|B)\b")
_FOLDERS = {"out_dir", "folder", "print_after"}  # what goes there has names of its own


def options_of(command: str) -> Iterator[argparse.Action]:
    """Every argument of a command that takes a file or a folder."""
    (commands,) = (a for a in parser_for([command])._actions if isinstance(a.choices, dict))
    for action in commands.choices[command]._actions:
        if action.nargs != 0 and _FILE.search(str(action.metavar or action.dest.upper())):
            yield action


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_with_a_file_is_known_as_read_or_written(command: str) -> None:
    found = {action.dest for action in options_of(command)}
    assert found <= {"output", *READ, *REPORTS, *_FOLDERS}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_read_is_never_written(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "link").symlink_to(file)
    found = {action.dest: action for action in options_of(command)}
    for read in found.keys() & set(READ):
        for written in found.keys() & {"output", *REPORTS}:
            many = isinstance(found[read].default, list) or found[read].nargs == "+"
            given = {read: [str(file)] if many else str(file), written: str(tmp_path / "link")}
            with pytest.raises(InputError, match="the input is never changed"):
                check_reports(argparse.Namespace(**given))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_write_one_file(command: str, tmp_path: Path) -> None:
    found = [a.dest for a in options_of(command) if a.dest in {"output", *REPORTS}]
    for written in found[1:]:
        given = {found[0]: str(tmp_path / "file"), written: str(tmp_path / "file")}
        with pytest.raises(InputError, match=r"is where .* writes"):
            check_reports(argparse.Namespace(**given))
