"""What can be said to `onnxgrad optimize`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.running import add_proof
from onnxgrad.cli.usage.groups.tuning import add_tuning
from onnxgrad.cli.usage.kinds import natural
from onnxgrad.vocabulary import MERGE, PRESETS, RUNTIMES

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
    how = parser.add_argument_group("rewriting")
    how.add_argument(
        "--preset", choices=tuple(PRESETS), default="default", help="see `onnxgrad passes`"
    )
    how.add_argument(
        "--passes",
        metavar="LIST",
        help="these passes in this order: a,b{option=value}; a preset's name stands for its passes",
    )
    how.add_argument(
        "--without", action="append", default=[], metavar="PASS",
        help="all of them but this one, or those that a glob means; may be repeated",
    )  # fmt: skip
    how.add_argument(
        "--merge",
        choices=MERGE,
        default="auto",
        help="parallel products into one: auto (default) where it pays",
    )
    how.add_argument(
        "--target-opset", type=natural, metavar="N", help="bring the model to opset N first, whose "
        "operators the passes may use, such as Attention of 23 (default: the model's)",
    )  # fmt: skip
    how.add_argument(
        "--for", choices=tuple(RUNTIMES), dest="for_", metavar="RUNTIME",
        help="use this runtime's own operators where they are faster, such as onnxruntime's "
        "MultiHeadAttention: no other will run the result (onnxruntime)",
    )  # fmt: skip
    how.add_argument(
        "--allow-growth",
        action="store_true",
        help="let --merge always grow the file by more than 10 %%",
    )
    how.add_argument(
        "--inline", action="append", default=[], metavar="NAME",
        help="first put the bodies of these functions, or of operators that have one, in their "
             "calls' place",
    )  # fmt: skip
    how.add_argument(
        "--config", metavar="FILE", help="a recipe: options and requirements as TOML; default: "
        "onnxgrad.toml in this folder, or [tool.onnxgrad] of pyproject.toml",
    )  # fmt: skip
    how.add_argument(
        "--fix-dim", action="append", default=[], metavar="NAME=SIZE",
        help="write the model for this size of a symbolic dimension alone (--dim: run it there)",
    )  # fmt: skip
    how.add_argument("--max-rewrites", type=natural, metavar="N", help="stop after N rewrites")
    how.add_argument(
        "--explain", action="store_true", help="list near misses with the reason they were declined"
    )
    how.add_argument(
        "--print-after", action="append", default=[], metavar="PASS[=DIR]", help="show the program "
        "as text on stderr, or in a file of DIR, each time that this pass (or those that a glob "
        "means) changed it; may be repeated",
    )  # fmt: skip
    add_html(parser)
    add_tuning(parser)
    add_proof(parser)
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
