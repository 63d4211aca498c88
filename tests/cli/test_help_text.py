"""How the texts of `--help` are wrapped."""

from __future__ import annotations

import shlex

import pytest

from onnxgrad.cli.help_text import command_lines, examples_text


@pytest.mark.parametrize("width", [20, 30, 60, 200])
def test_a_wrapped_command_is_the_same_command(width: int) -> None:
    command = (
        "onnxgrad reduce big.onnx --check 'python a b.py' --says 'x y' -o - | onnxgrad inspect -"
    )
    lines = command_lines(command, width)
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == shlex.split(command)
    assert (len(lines) == 1) == (width == 200)


def test_an_option_stays_with_its_value() -> None:
    assert command_lines("onnxgrad grad a.onnx --wrt params -o b.onnx", 27) == [
        "onnxgrad grad a.onnx \\",
        "  --wrt params -o b.onnx",
    ]


def test_examples() -> None:
    assert examples_text([("a b", "c")]) == "examples:\n  onnxgrad a b\n      c"
