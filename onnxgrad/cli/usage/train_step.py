"""What can be said to `onnxgrad train-step`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_running
from onnxgrad.cli.usage.groups.training import add_training
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    (
        "train-step model.onnx -o step --loss loss",
        "train.onnx, eval.onnx, the state and the manifest",
    ),
    (
        "train-step model.onnx -o step --loss 'mse{output=logits}' --optimizer 'sgd{lr=0.1}'",
        "with a loss of its own, whose labels become an input",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER",
        help="where train.onnx, eval.onnx, state.safetensors and manifest.json go",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--training-info", action="store_true",
        help="one file instead: the model with the step as its TrainingInfoProto; -o names it",
    )  # fmt: skip
    form.add_argument(
        "--from-training-info", action="store_true",
        help="write the step that --training-info put into MODEL; options of steps are ignored",
    )  # fmt: skip
    form.add_argument(
        "--seal",
        metavar="FOLDER",
        help="accept the graphs of a step that were changed since: write their digests into its "
        "manifest, and nothing else",
    )
    add_training(parser)
    add_running(parser, "proof")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of generated values")
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the numeric check (needs no onnxruntime)"
    )
