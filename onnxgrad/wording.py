"""How a message names an option: as its reader wrote it, on the command line or in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_shell = False  # of the whole process: the threads of a command speak as it does


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """Inside, messages name options as the command line has them."""
    global _shell
    before, _shell = _shell, True
    try:
        yield
    finally:
        _shell = before


def option(shell: str, python: str) -> str:
    """The one that the reader knows: `--no-verify` on the command line, `verify=False` in
    Python.
    """
    return shell if _shell else python


def input_option(name: str, value: str = "FILE") -> str:
    """How the value of an input is given."""
    return option(f"--input {name}={value}", f"inputs={{{name!r}: array}}")


def dim_option(*names: str) -> str:
    """How sizes of symbolic dimensions are given."""
    shell = " ".join(f"--dim {name}=SIZE" for name in names)
    return option(shell, f"dims={{{', '.join(f'{name!r}: size' for name in names)}}}")
