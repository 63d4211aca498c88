"""The declarations of gradients: what can be set of each. As little to import as `--help` needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from onnxgrad.jobs.declared import option
from onnxgrad.jobs.groups import Bounds, Names, Positive, Running, Seed


@dataclass(frozen=True, kw_only=True)
class Checked(Running):
    """Where and how a gradient is checked."""

    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof", "Running": "proof"}

    allow_empty: Names = option(
        (), "this value's gradient may be 0 throughout: without it, 0 = 0 for all values is exit 1",
        metavar="NAME",
    )  # fmt: skip
    seed: Seed = option(0, "of generated values and directions", metavar="N")


@dataclass(frozen=True, kw_only=True)
class GradientOptions(Checked):
    """Which gradient is formed."""

    title: ClassVar[str] = "gradient"

    wrt: Names | None = option(
        None, "values to differentiate with respect to: inputs, weights, intermediate values; "
        "params: every weight that reaches the target (`inspect --weights` lists them); !GLOB "
        "takes away; several by commas; default: every floating-point input", metavar="NAME|GLOB",
    )  # fmt: skip
    target: Names | None = option(
        None, "default: the only output; several add up; parts as in 'logits[:,7]', whose "
        "elements are summed", metavar="NAME|INDEX",
    )  # fmt: skip
    stop: Names | None = option(
        None, "treat these computed values as constants: no gradient flows on to the values before "
        "them", metavar="NAME|GLOB",
    )  # fmt: skip
    adjoint: Literal["auto", "ones", "input"] = option(
        "auto", "ones: scalar targets; input: any shape, the targets' adjoints become graph "
        "inputs; auto (default): whichever fits the target",
    )  # fmt: skip
    checkpoint: Names = option(
        (), "recompute instead of keep: auto, a memory budget such as 512MB, or marks "
        "[start:|end:]NAME[@READER]", metavar="auto|SIZE|MARK",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GradOptions(GradientOptions, Bounds):
    """Options of `onnxgrad grad`."""

    job: ClassVar[str] = "grad"
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": "the check's own"}
    title: ClassVar[str] = ""

    names: str | None = option(None, "of the adjoints (default: {}_grad)", metavar="PATTERN")
    ste: bool = option(
        False, "pass QuantizeLinear - DequantizeLinear pairs straight through: an estimate, not "
        "checked by differences",
    )  # fmt: skip
    simplify: bool = option(
        True, "leave the graph as the backward walk made it", flag="--no-simplify"
    )
    verify: bool = option(True, "skip the numeric check (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class CheckGradOptions(GradientOptions):
    """Options of `check-grad`."""

    job: ClassVar[str] = "check-grad"
    title: ClassVar[str] = "check"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(("Limits", "Running", "Checked"), "check")

    tolerance: Positive | None = option(
        None, "relative; default: by the float types on each value's paths", metavar="T"
    )
