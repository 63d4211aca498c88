"""What can be said to `onnxgrad reduce`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.limits import add_limits
from onnxgrad.cli.usage.kinds import natural, positive

_HELP = """\
The check is a command (no shell: write sh -c '...' for one). It gets the path of a candidate as its
last argument, or wherever {} stands. An exit status other than 0 means that the candidate still
fails, so that it may take the model's place; with --interesting-exit only that status does (a
command that a signal ended counts as 128 plus its number), with --says only an output that holds
the words. A check that takes longer than --check-timeout says nothing.

Exit codes: 0 reduced (or as small as --timeout allowed), 2 when the check does not fail on MODEL
itself.

"""


EXAMPLES = (
    (
        "reduce big.onnx --fails 'optimize --preset canonical' -o small.onnx",
        "the smallest model that a command of ours still fails on",
    ),
    (
        "reduce big.onnx --check 'python crashes.py' --interesting-exit 139 -o small.onnx",
        "the smallest that still crashes a script of yours",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.epilog = _HELP
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--check", metavar="COMMAND", help="what fails on the model")
    how.add_argument(
        "--fails", metavar="'COMMAND OPTIONS'",
        help="a command of onnxgrad that fails on the model, such as 'optimize --preset X', "
        "'grad', 'check-grad': a candidate must fail with the same exit code, 1 or 3",
    )  # fmt: skip
    parser.add_argument(
        "--interesting-exit", type=natural, metavar="N", help="the status that counts, and no other"
    )
    parser.add_argument(
        "--says", metavar="TEXT", help="what the check must print, on stdout or stderr"
    )
    parser.add_argument(
        "--check-timeout", type=positive, default=60.0, metavar="SECONDS", help="of one check (60)"
    )
    add_limits(parser.add_argument_group("limits"))
