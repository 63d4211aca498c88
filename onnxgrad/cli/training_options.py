"""Options of `train-step` and `fit`: what is trained, by which loss and optimiser."""

from __future__ import annotations

import argparse
from typing import Any

from onnxgrad.cli.gradient_options import checkpoint_of
from onnxgrad.train.losses import LOSSES
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.written import made


def add_training(parser: argparse.ArgumentParser) -> None:
    """Options that say what a step is."""
    group = parser.add_argument_group("training step")
    group.add_argument(
        "--loss", metavar="LOSS",
        help="NAME{option=value,...}, terms with + and factors with *: "
        f"{', '.join(sorted(LOSSES))}; or a scalar of the model; default: its only output",
    )  # fmt: skip
    group.add_argument(
        "--optimizer", default="adamw", metavar="NAME{option=value,...}",
        help=f"{', '.join(OPTIMIZERS)} (default: adamw)",
    )  # fmt: skip
    group.add_argument(
        "--wrt", action="append", metavar="NAME|GLOB",
        help="the weights to train; params (default): all of them; !GLOB takes away",
    )  # fmt: skip
    group.add_argument(
        "--stop", action="append", metavar="NAME|GLOB",
        help="values at which gradients stop: the weights before them are frozen",
    )  # fmt: skip
    group.add_argument(
        "--metric", action="append", default=[], metavar="OUTPUT",
        help="an output of the model that the step returns beside the loss",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", action="append", default=[], metavar="auto|SIZE|MARK",
        help="recompute instead of keep: auto, a memory budget such as 512MB, or marks",
    )  # fmt: skip


def training_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `training_step` that the options say. Raises InputError."""
    return {
        "loss": args.loss,
        "optimizer": made(args.optimizer, OPTIMIZERS, "optimiser"),
        "wrt": args.wrt or "params",
        "stop": args.stop,
        "metrics": args.metric,
        "checkpoint": checkpoint_of(args.checkpoint),
    }


def positive_count(text: str) -> int:
    """For argparse: 1, 2, 3, ..."""
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is wanted, not {text[:40]!r}")
    return int(text)
