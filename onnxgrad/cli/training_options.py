"""What the options of `train-step` and `fit` say: what is trained, by which loss and optimiser."""

from __future__ import annotations

import argparse
from typing import Any

from onnxgrad.cli.gradient_options import checkpoint_of
from onnxgrad.errors import InputError
from onnxgrad.named_options import read
from onnxgrad.train.optimizers import OPTIMIZERS, Optimizer
from onnxgrad.train.schedules import SCHEDULES


def training_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `training_step` that the options say. Raises InputError."""
    return {
        "loss": args.loss,
        "optimizer": read(args.optimizer, OPTIMIZERS, "optimiser"),
        "wrt": args.wrt,
        "stop": args.stop,
        "inputs_at": args.inputs_at,
        "metrics": args.metric,
        "checkpoint": checkpoint_of(args.checkpoint),
        "batch_norm": args.batch_norm,
        "dropout": args.dropout,
        "groups": [_group(text) for text in args.group] or None,
        "clip_norm": args.clip_norm,
        "clip_value": args.clip_value,
        "accumulate": args.accumulate,
        "average": args.average,
        "loss_scale": args.loss_scale,
        "schedule": None if args.schedule is None else read(args.schedule, SCHEDULES, "schedule"),
    }


def _group(text: str) -> tuple[str, Optimizer]:
    glob, equals, written = text.partition("=")
    if not equals or not glob or not written:
        raise InputError(f"--group {text[:80]}: write GLOB=NAME or GLOB=NAME{{option=value}}")
    return glob, read(written, OPTIMIZERS, "optimiser")
