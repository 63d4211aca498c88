"""The declarations of gradients: what can be set of each. As little to import as `--help` needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad.jobs.declared import Declaration, option
from onnxgrad.jobs.groups import Bounds, Instance, Names, Positive, Running, Seed, Word

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


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Declaration):
    """What a gradient recomputes."""

    checkpoint: Checkpoints | None = option(
        None, "recompute instead of keep: auto, a memory budget such as 512MB, or marks "
        "[start:|end:]NAME[@READER]", metavar="auto|SIZE|MARK",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Checked(Running):
    """Where and how a gradient is checked."""

    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {
        "Limits": "proof", "Running": "proof", "Checkpointing": "gradient",
    }  # fmt: skip

    allow_empty: Names = option(
        (), "this value's gradient may be 0 throughout: without it, 0 = 0 for all values is exit 1",
        metavar="NAME",
    )  # fmt: skip
    seed: Seed = option(0, "of generated values and directions", metavar="N")


@dataclass(frozen=True, kw_only=True)
class GradientOptions(Checked, Checkpointing):
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
    titles: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("Limits", "Running", "Checked"), "check"), "Checkpointing": "gradient",
    }  # fmt: skip

    tolerance: Positive | None = option(
        None, "relative; default: by the float types on each value's paths", metavar="T"
    )
