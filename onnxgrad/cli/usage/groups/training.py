"""Options of `train-step` and `fit`: what is trained, by which loss and optimiser."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.kinds import positive, positive_count
from onnxgrad.vocabulary import LOSSES, OPTIMIZERS, SCHEDULES


def add_training(parser: argparse.ArgumentParser) -> None:
    """Options that say what a step is."""
    group = parser.add_argument_group("training step")
    group.add_argument(
        "--loss", metavar="LOSS",
        help="NAME{option=value,...}, terms with + and factors with *: "
        f"{', '.join(sorted(LOSSES))}; or a scalar of the model; default: its only output. "
        "Labels are inputs, or values of the model held fixed: mse{output=a,target=b}",
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
        "--inputs-at", action="append", metavar="NAME",
        help="values that become the inputs: what comes before them is frozen and no part of the "
        "step (fit runs it once over the data)",
    )  # fmt: skip
    group.add_argument(
        "--metric", action="append", default=[], metavar="OUTPUT",
        help="an output of the model that the step returns beside the loss",
    )  # fmt: skip
    group.add_argument(
        "--batch-norm", choices=("frozen", "train"),
        help="train: by the batch's statistics, the running ones are states (default: frozen)",
    )  # fmt: skip
    group.add_argument(
        "--dropout", metavar="off|train|RATIO",
        help="train: as the model's Dropout nodes say, by a seed for each step (default: off)",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", action="append", default=[], metavar="auto|SIZE|MARK",
        help="recompute instead of keep: auto, a memory budget such as 512MB, or marks",
    )  # fmt: skip
    _add_update(parser)


def _add_update(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("update")
    group.add_argument(
        "--group", action="append", default=[], metavar="GLOB=NAME{option=value,...}",
        help="another optimiser for these weights; the first group that fits decides",
    )  # fmt: skip
    group.add_argument(
        "--clip-norm", type=positive, metavar="X", help="limit of the norm of all gradients"
    )
    group.add_argument(
        "--clip-value", type=positive, metavar="X", help="limit of each number of the gradients"
    )
    group.add_argument(
        "--accumulate", type=positive_count, default=1, metavar="N",
        help="so many micro-batches make one step",
    )  # fmt: skip
    group.add_argument(
        "--average", type=positive, metavar="DECAY", help="keep a moving average of the weights"
    )
    group.add_argument(
        "--loss-scale", metavar="dynamic|NUMBER", help="of a float16 model; no step on overflow"
    )
    group.add_argument(
        "--schedule", metavar="NAME{option=value,...}",
        help=f"the learning rate, inside the graph: {', '.join(SCHEDULES)}",
    )  # fmt: skip
