"""What can be said to `onnxgrad fit`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_custom_ops
from onnxgrad.cli.usage.groups.training import add_training
from onnxgrad.cli.usage.kinds import memory, natural, positive, positive_count
from onnxgrad.limits import SECONDS
from onnxgrad.vocabulary import PROVIDERS, SCHEDULES

EXAMPLES = (
    (
        "fit classifier.onnx --loss cross_entropy --data labelled.npz -o out.onnx",
        "train on arrays called as the model's input and labels, write it with its new weights",
    ),
    (
        "fit step --data train.npz --folder run --log log.jsonl",
        "go on with a training step's folder, saving as it goes",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "model", metavar="MODEL", help="an ONNX file, or the folder of a training step"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="where the trained model goes")
    parser.add_argument(
        "--original", metavar="FILE", help="with a folder and -o: the model that the step is of"
    )
    add_training(parser)
    _add_run(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    add_custom_ops(group)
    group.add_argument(
        "--timeout",
        type=positive,
        metavar="SECONDS",
        help=f"for everything, the training included; default: {SECONDS:g} for reading and opening "
        "alone",
    )
    group.add_argument(
        "--max-memory",
        type=memory,
        metavar="SIZE",
        help="likewise, such as 4GB; default: half of what the machine or its cgroup has, for "
        "reading and opening alone",
    )
    group.add_argument(
        "--data",
        required=True,
        metavar="NPZ",
        help="arrays by the names of the model's inputs, "
        "and of what the loss compares with (labels or target)",
    )
    group.add_argument("--validation", metavar="NPZ", help="held-out data, for each epoch's end")
    group.add_argument("--epochs", type=positive_count, default=1, metavar="N", help="default: 1")
    group.add_argument("--steps", type=positive_count, metavar="N", help="so many, not epochs")
    group.add_argument(
        "--batch-size",
        type=positive_count,
        metavar="N",
        help="default: 32, or what the model takes where that is fixed",
    )
    group.add_argument(
        "--rate", default="", metavar="NUMBER|SCHEDULE",
        help="the learning rate (default: the optimiser's), or a schedule such as "
        f"cosine{{lr=1e-3,T_max=1000}}: {', '.join(SCHEDULES)}",
    )  # fmt: skip
    group.add_argument(
        "--accuracy", action="append", default=[], metavar="OUTPUT=LABELS",
        help="evaluate the share of labels that the highest score of an output names",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="of the order of the data (default: 0)"
    )
    group.add_argument("--no-shuffle", action="store_true", help="in the order of the data")
    group.add_argument(
        "--patience", type=positive_count, metavar="N",
        help="stop when the held-out loss was not smaller for so many epochs",
    )  # fmt: skip
    group.add_argument(
        "--folder", metavar="DIR", help="save here after each epoch; go on from what is there"
    )
    group.add_argument("--every", type=positive_count, metavar="N", help="save each N steps too")
    group.add_argument("--log", metavar="FILE",
        help="a line of JSON for each step, with the norm of the gradients where --clip-norm or "
        "--metric gradient_norm asks for it",
    )  # fmt: skip
    group.add_argument("--plot", metavar="FILE", help="the loss as a picture, a .png")
    group.add_argument(
        "--data-parallel", action="store_true",
        help="the processes that mpiexec started share out every batch",
    )  # fmt: skip
    group.add_argument("--provider", choices=tuple(PROVIDERS), default="cpu", help="default: cpu")
    group.add_argument("--threads", type=positive_count, metavar="N", help="of onnxruntime")
    group.add_argument(
        "--engine", choices=("auto", "graph", "blocks"), default="auto",
        help="graph: the step as it is; blocks: the update beside its gradient (default: auto)",
    )  # fmt: skip
