"""What can be said to `onnxgrad grad`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.gradient import ALLOW_EMPTY, add_gradient
from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.running import add_allow_empty, add_bounds, add_running
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    (
        "grad model.onnx -o grad.onnx --wrt params --target loss",
        "the gradient of the output loss by every weight",
    ),
    (
        "grad model.onnx -o grad.onnx --target logits --adjoint input",
        "of an output of any shape, whose adjoint becomes an input",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="the file to write; - is stdout"
    )
    add_gradient(parser)
    parser.add_argument("--names", metavar="PATTERN", help="of the adjoints (default: {}_grad)")
    parser.add_argument(
        "--ste", action="store_true",
        help="pass QuantizeLinear - DequantizeLinear pairs straight through: an estimate, not "
             "checked by differences",
    )  # fmt: skip
    parser.add_argument(
        "--mark", action="store_true",
        help="write the model itself with the marks of --checkpoint in it; a grad without "
             "--checkpoint reads them",
    )  # fmt: skip
    parser.add_argument(
        "--function", metavar="NAME",
        help="the gradient of this local function, by all its operands, as one more function of "
             "the model",
    )  # fmt: skip
    add_products(parser)
    add_html(parser)
    parser.add_argument(
        "--no-simplify", action="store_true", help="leave the graph as the backward walk made it"
    )
    add_allow_empty(add_running(parser, "proof"), ALLOW_EMPTY)
    add_bounds(parser, "the check's own")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of generated values")
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the numeric check (needs no onnxruntime)"
    )


def add_products(parser: argparse.ArgumentParser) -> None:
    """The options that ask for something else than the gradient."""
    group = parser.add_argument_group("products, in place of the gradient")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--jvp", dest="of", action="store_const", const="jvp",
        help="forward mode: J v, with v as new inputs {}_tangent and outputs {}_tangent",
    )  # fmt: skip
    which.add_argument(
        "--hvp", dest="of", action="store_const", const="hvp",
        help="the gradient, and H v of a scalar target's Hessian, as {}_hvp",
    )  # fmt: skip
    which.add_argument(
        "--jacobian", dest="of", action="store_const", const="jacobian",
        help="the Jacobian of one target by each value, as TARGET_by_VALUE",
    )  # fmt: skip
    which.add_argument(
        "--casadi", dest="of", choices=("adj", "fwd"),
        help="what CasADi looks for beside f.onnx, in its names and layout: reverse mode for "
             "adj_f.onnx, forward for fwd_f.onnx; of adj_f.onnx forward for fwd_adj_f.onnx",
    )  # fmt: skip
    group.add_argument(
        "--mode", choices=("auto", "forward", "reverse"), default="auto",
        help="of --jacobian: by columns, by rows; auto (default): whichever are fewer",
    )  # fmt: skip
    group.add_argument(
        "--batched", action="store_true",
        help="of --jacobian: the first axis of all counts samples: one Jacobian for each",
    )  # fmt: skip
