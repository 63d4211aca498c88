"""What can be said to `onnxgrad ci`."""

from __future__ import annotations

import argparse
import os

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.running import add_custom_ops
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    ("ci", "every model of onnxgrad.toml, held to what it requires"),
    ("ci --update --jobs 2", "and write the lock that it is compared with"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    # the recipe's `out` may be where a report goes too: places are looked at when it is there
    parser.set_defaults(makes_folders=True)
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="the recipe (default: onnxgrad.toml, or "
        "[tool.onnxgrad] of pyproject.toml, in this folder)",
    )  # fmt: skip
    parser.add_argument(
        "--update", action="store_true", help="write the lock anew, where every model passes"
    )
    parser.add_argument(
        "--jobs", type=natural, default=1, metavar="N", help="models at once (default: 1)"
    )
    parser.add_argument(
        "--dask", metavar="ADDRESS",
        help="hand the models to the workers of the Dask cluster whose scheduler is there "
             "(tcp://HOST:8786); they read and write the same files under the same names",
    )  # fmt: skip
    parser.add_argument(
        "--keep-going", action="store_true", help="look at all models, also after one that fails"
    )
    add_custom_ops(parser)
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of what --json writes"
    )
    _add_outputs(parser)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """The options that say which of them are wanted."""
    group = parser.add_argument_group("for machines and pages")
    group.add_argument("--junit", metavar="FILE", help="write the result as JUnit XML")
    group.add_argument(
        "--markdown", metavar="FILE", help="write the result as Markdown, such as for a job summary"
    )
    add_html(group)
    group.add_argument(
        "--annotations", action=argparse.BooleanOptionalAction,
        default=os.environ.get("GITHUB_ACTIONS") == "true",
        help="print the models that fail or changed as lines on stderr that GitHub shows beside "
             "the files (default: where GITHUB_ACTIONS is true)",
    )  # fmt: skip
