"""Options of the commands that run or prove something."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.limits import add_limits
from onnxgrad.cli.usage.kinds import natural, providers, threads
from onnxgrad.vocabulary import LEGS, PROVIDERS


def add_running(
    parser: argparse.ArgumentParser, title: str, *, several: bool = False
) -> argparse._ArgumentGroup:
    """Options of every command that runs models, perhaps on `several` providers."""
    group = parser.add_argument_group(title)
    if several:
        group.add_argument(
            "--provider", type=providers, default="cpu", metavar="{cpu,cuda,...}",
            help="where to run; with commas on each of them: cpu,cuda (default: cpu)",
        )  # fmt: skip
    else:
        group.add_argument(
            "--provider",
            choices=tuple(PROVIDERS),
            default="cpu",
            help="where to run (default: cpu)",
        )
    group.add_argument(
        "--input", action="append", metavar="[NAME=]FILE",
        help=".npz, .npy or .pb with values to run on, or a folder of input_*.pb; default: "
             "generated values",
    )  # fmt: skip
    add_custom_ops(group)
    group.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a symbolic dimension where models are run; a written file keeps the "
        "symbol, except by `optimize --fix-dim`",
    )
    add_limits(group)
    group.add_argument(
        "--threads", type=threads, default=1, metavar="N", help="of onnxruntime (default: 1)"
    )
    return group


def add_custom_ops(group: argparse._ActionsContainer) -> None:
    """The option of every command that has onnxruntime run something."""
    group.add_argument(
        "--custom-ops", action="append", default=[], metavar="LIB.so",
        help="a library of custom operators for onnxruntime; it runs with your rights",
    )  # fmt: skip


def add_proof(parser: argparse.ArgumentParser, bounds: str = "the proof's own") -> None:
    """Options of every command that proves something by running models; `bounds` by default."""
    group = add_running(parser, "proof", several=True)
    group.add_argument(
        "--seed",
        action="append",
        type=natural,
        metavar="N",
        help="of generated values; may repeat",
    )
    group.add_argument(
        "--leg",
        action="append",
        choices=LEGS,
        help="prove this way only (default: both, each with its own tolerance)",
    )
    group.add_argument(
        "--coverage", metavar="SHARE",
        help="the least share of thresholds, branches, loop turns and defaults that runs must "
             "reach, such as '>= 95%%'; less is exit 1 (default: none)",
    )  # fmt: skip
    add_allow_empty(
        group,
        "this output may be NaN, infinite or empty throughout: without it, nothing proved is exit "
        "1",
    )
    add_bounds(parser, bounds)


def add_bounds(parser: argparse.ArgumentParser, default: str = "the proof's own") -> None:
    """Options of every proof that say how near is near enough."""
    near = parser.add_argument_group("bounds, in place of the proof's own tolerances")
    for name, what in (("atol", "|a - b| <= atol + rtol |a|"), ("rtol", "see --atol")):
        near.add_argument(
            f"--{name}", action="append", default=[], metavar="[OUTPUT=]X",
            help=f"{what}; for all outputs of floats, or for one output alone (default: {default})",
        )  # fmt: skip
    near.add_argument(
        "--metric", action="append", default=[], metavar="[OUTPUT:]METRIC=X",
        help="cosine=0.999, psnr=40 (dB) or top1=0.99 (share of rows) at least, worst=0.01 (of the "
             "largest value) at most",
    )  # fmt: skip


def add_allow_empty(group: argparse._ArgumentGroup, text: str) -> None:
    """The option of every proof that says where nothing to compare is all right."""
    group.add_argument("--allow-empty", action="append", default=[], metavar="NAME", help=text)
