"""What can be said to `onnxgrad completion`."""

from __future__ import annotations

import argparse
from typing import Any

from onnxgrad.cli.completion import SHELLS

EXAMPLES = (
    ("completion bash", 'eval "$(onnxgrad completion bash)" in ~/.bashrc'),
    ("completion fish", "what goes to ~/.config/fish/completions/onnxgrad.fish"),
)


class _Print(argparse.Action):
    """Prints and leaves, as --help does: a shell that starts does not wait for the rest."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        print(SHELLS[shell](), end="")
        parser.exit()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "shell", choices=tuple(SHELLS), action=_Print, metavar="SHELL",
        help="bash, zsh or fish; the script goes where that looks for completions, in zsh into a "
             "folder of $fpath under the name _onnxgrad",
    )  # fmt: skip
