"""The declarations of gradients and of products with derivatives: what can be set of each. As
little to import as `--help` needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.groups import (
    Bounds,
    Instance,
    Limits,
    Names,
    Positive,
    Running,
    Seed,
    Word,
)

if TYPE_CHECKING:
    from onnxgrad.grad.checkpointing.recomputation import Checkpoint


class _Marks(Word):
    """Checkpoints: auto, a memory budget, or marks of values, which become a table of them."""

    def join(self, marks: Sequence[str], _: str) -> Any:
        if len(marks) == 1 and (marks[0] == "auto" or marks[0][:1].isdigit()):
            return marks[0]
        found: dict[str, list[Any]] = {"start": [], "end": []}
        for mark in marks:
            kind, colon, rest = mark.partition(":")
            if not colon or kind not in found:
                kind, rest = "start", mark
            name, at, reader = rest.partition("@")
            found[kind].append((name, reader) if at else name)
        return found


Checkpoints: TypeAlias = (
    "Annotated[Annotated[Checkpoint, Instance('Checkpoint')] | Mapping[str, Sequence[Any]]"
    " | Sequence[str] | str | int, _Marks()]"
)
PRODUCTS = "products, in place of the gradient"
Targets: TypeAlias = Annotated[str | int | Sequence[str | int], Word()]
_ADJOINT = (
    "ones: scalar targets; input: any shape, the targets' adjoints become graph inputs; auto{}: "
    "whichever fits the target"
)


# ---- what is differentiated ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chosen(Limits):
    """By which values what is differentiated."""

    title: ClassVar[str] = "gradient"

    wrt: Names | None = option(
        None,
        "values to differentiate with respect to: inputs, weights, intermediate values; "
        "params: every weight that reaches the target (`inspect --weights` lists them); !GLOB "
        "takes away; several by commas; default: every floating-point input",
        metavar="NAME|GLOB",
        positional=True,
    )
    target: Targets | None = option(
        None,
        "default: the only output; several add up; parts as in 'logits[:,7]', whose "
        "elements are summed",
        metavar="NAME|INDEX",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Declaration):
    """What a gradient recomputes."""

    title: ClassVar[str] = "gradient"

    checkpoint: Checkpoints | None = option(
        None,
        "recompute instead of keep: auto, a memory budget such as 512MB, or marks "
        "[start:|end:]NAME[@READER]",
        metavar="auto|SIZE|MARK",
    )


@dataclass(frozen=True, kw_only=True)
class Request(Chosen, Checkpointing):
    """Which gradient is formed."""

    title: ClassVar[str] = "gradient"

    stop: Names | None = option(
        None,
        "treat these computed values as constants: no gradient flows on to the values before them",
        metavar="NAME|GLOB",
    )
    adjoint: Literal["auto", "ones", "input"] = option("ones", _ADJOINT.format(""))


@dataclass(frozen=True, kw_only=True)
class GradientOptions(Request):
    """Options of `gradient`."""

    job: ClassVar[str] = "gradient"
    title: ClassVar[str] = ""

    names: str = option("{}_grad", "of the adjoints (default: {}_grad)", metavar="PATTERN")
    ste: bool = option(
        False,
        "pass QuantizeLinear - DequantizeLinear pairs straight through: an estimate, not "
        "checked by differences",
    )
    simplify: bool = option(
        True, "leave the graph as the backward walk made it", flag="--no-simplify"
    )


@dataclass(frozen=True, kw_only=True)
class Jacobians(Declaration):
    """How a Jacobian is formed."""

    title: ClassVar[str] = PRODUCTS

    mode: Literal["auto", "forward", "reverse"] = option(
        "auto", "of --jacobian: by columns, by rows; auto (default): whichever are fewer"
    )
    batched: bool = option(
        False, "of --jacobian: the first axis of all counts samples: one Jacobian for each"
    )


@dataclass(frozen=True, kw_only=True)
class JacobianOptions(Chosen, Jacobians):
    """Options of `jacobian`."""

    job: ClassVar[str] = "jacobian"

    names: str = option("{}_by_{}", "the pattern for target and value")


@dataclass(frozen=True, kw_only=True)
class JvpOptions(Chosen):
    """Options of `jvp`."""

    job: ClassVar[str] = "jvp"

    names: str = option("{}_tangent", "of tangents")


@dataclass(frozen=True, kw_only=True)
class HessianProductOptions(Chosen):
    """Options of `hessian_vector_product`."""

    job: ClassVar[str] = "hessian_vector_product"

    stop: Names | None = option(None, "treat these computed values as constants")
    names: str = option("{}_hvp", "of products")
    tangents: str = option("{}_tangent", "of the new inputs")


@dataclass(frozen=True, kw_only=True)
class CasadiOptions(Chosen):
    """Options of `casadi_derivative`."""

    job: ClassVar[str] = "casadi_derivative"

    kind: Literal["adj", "fwd"] = option(REQUIRED, "reverse or forward mode", positional=True)


@dataclass(frozen=True, kw_only=True)
class MarkOptions(Chosen):
    """Options of `mark_checkpoints`."""

    job: ClassVar[str] = "mark_checkpoints"

    checkpoint: Checkpoints = option(
        "auto", "auto, a memory budget such as 512MB, or marks [start:|end:]NAME[@READER]"
    )


@dataclass(frozen=True, kw_only=True)
class FunctionGradientOptions(Limits):
    """Options of `function_gradient`."""

    job: ClassVar[str] = "function_gradient"

    name: str = option(REQUIRED, "of the function, as name or domain::name", positional=True)


# ---- how it is checked --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Checked(Running):
    """Where and how a derivative is checked."""

    title: ClassVar[str] = "proof"

    allow_empty: Names = option(
        (),
        "this value's gradient may be 0 throughout: without it, 0 = 0 for all values is exit 1",
        metavar="NAME",
    )
    seed: Seed = option(0, "of generated values and directions", metavar="N")


@dataclass(frozen=True, kw_only=True)
class Tolerated(Checked):
    """How much a derivative may be off."""

    title: ClassVar[str] = "check"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(("Limits", "Running", "Checked"), "check")

    tolerance: Positive | None = option(
        None, "relative; default: by the float types on each value's paths", metavar="T"
    )


@dataclass(frozen=True, kw_only=True)
class CheckGradientOptions(GradientOptions, Tolerated):
    """Options of `check_gradient`."""

    job: ClassVar[str] = "check_gradient"
    title: ClassVar[str] = "check"

    adjoint: Literal["auto", "ones", "input"] = option("auto", _ADJOINT.format(" (default)"))


@dataclass(frozen=True, kw_only=True)
class CheckProductOptions(Chosen, Jacobians, Tolerated):
    """Options of `check_product`."""

    job: ClassVar[str] = "check_product"

    of: Literal["jvp", "hvp", "jacobian", "adj", "fwd"] = option(REQUIRED, "what is checked")


@dataclass(frozen=True, kw_only=True)
class GradOptions(GradientOptions, Jacobians, Checked, Bounds):
    """Options of `onnxgrad grad`."""

    job: ClassVar[str] = "grad"
    title: ClassVar[str] = ""
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof", "Running": "proof"}
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": "the check's own"}

    adjoint: Literal["auto", "ones", "input"] = option("auto", _ADJOINT.format(" (default)"))
    verify: bool = option(True, "skip the numeric check (needs no onnxruntime)", flag="--no-verify")
