"""What can be said to `onnxgrad optimize`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.running import add_custom_ops
from onnxgrad.cli.usage.groups.tuning import add_tuning
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import add_flags, group_of

EXAMPLES = (
    (
        "optimize model.onnx -o out.onnx",
        "rewrite, prove, write",
    ),
    (
        "optimize '*.onnx' --out-dir small --merge always",
        "several models, all parallel products merged",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "model", nargs="+", metavar="MODEL", help="an ONNX file, a glob, or - for stdin"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="OUT", help="the file to write; - is stdout")
    where.add_argument(
        "--out-dir", metavar="DIR", help="the folder to write to, under the inputs' names"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="rewrite and prove, but write no model"
    )
    add_flags(parser, OptimizeOptions)
    add_html(parser)
    add_tuning(parser)
    add_custom_ops(group_of(parser, "proof"))
    parser.add_argument(
        "--verify", choices=("model", "each"), default="model", help="model (default): prove the "
        "whole model; each: also cut out every rewrite and run both of its forms on its own "
        "operands, so that a wrong law is named at once (with --no-verify only this)",
    )  # fmt: skip
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="skip the proof of the whole model (needs no onnxruntime)",
    )
