"""A command as a question about models: what it is given, which endings count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.reducing.command import Command
from tests.helpers import parse

MODEL = parse("g (float[2] x) => (float[2] y) { y = Tanh(x) }")
OTHER = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
# ends with 7 and says so where there is a Tanh, else with 0
CODE = "import sys; found = b'Tanh' in open(sys.argv[1], 'rb').read(); print('sees it' * found); sys.exit(7 * found)"


def command(
    folder: Path, *rest: str, code: str = CODE, status: int | None = None, says: str = ""
) -> Command:
    return Command([sys.executable, "-c", code, *rest], folder, status, says, timeout=20.0)


def test_what_counts_as_a_failure(tmp_path: Path) -> None:
    for check, fails in (
        (command(tmp_path), True),
        (command(tmp_path, "{}", "another word"), True),
        (command(tmp_path, status=7), True),
        (command(tmp_path, status=1), False),
        (command(tmp_path, says="sees it"), True),
        (command(tmp_path, says="other words"), False),
    ):
        assert check.fails(MODEL) is fails and not check.fails(OTHER), check
    assert command(tmp_path).run(MODEL) == (7, "sees it\n")


def test_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    assert command(tmp_path, code="import os; os.kill(os.getpid(), 11)").run(MODEL) == (139, "")


def test_the_failure_of_the_original_is_what_is_asked_for(tmp_path: Path) -> None:
    check = command(tmp_path)
    assert check.on_original(MODEL, "m") == check
    assert check.on_original(MODEL, "m", (1, 7)).status == 7
    assert command(tmp_path, status=7).on_original(MODEL, "m", (1, 3)).status == 7
    with pytest.raises(
        InputError,
        match=r"^m: the check does not fail on it, so there is nothing to reduce: it ends with 7 and says: sees it",
    ):
        check.on_original(MODEL, "m", (1, 3))
    with pytest.raises(InputError, match="nothing to reduce: it ends with 0"):
        check.on_original(OTHER, "m")


def test_a_command_that_takes_too_long_says_nothing(tmp_path: Path) -> None:
    slow = Command([sys.executable, "-c", "import time; time.sleep(30)"], tmp_path, timeout=0.2)
    assert slow.run(MODEL) == (None, "") and not slow.fails(MODEL)
    with pytest.raises(InputError, match=r"it took longer than 0\.2 s"):
        slow.on_original(MODEL, "m")


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot run no-such-program-here"):
        Command(["no-such-program-here"], tmp_path).fails(MODEL)
