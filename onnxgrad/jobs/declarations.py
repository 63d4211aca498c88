"""The declarations of the jobs: what can be set of each, in Python, in a shell, in a recipe and in
Olive. As little to import as `--help` needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.groups import Names, Proof, Seconds, Sizes, Text
from onnxgrad.options import Range
from onnxgrad.vocabulary import Merge, Preset, Runtime

if TYPE_CHECKING:
    from onnxgrad.passes.base import Pass
    from onnxgrad.passes.user_laws import Law

Count = Annotated[int, Range(0)]
FINITE = sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(Proof):
    """Options of `optimize`."""

    job: ClassVar[str] = "optimize"
    title: ClassVar[str] = "rewriting"

    preset: Preset = option("default", "see `onnxgrad passes`")
    passes: str | Sequence[str | Pass | Law] | None = option(
        None, "these passes in this order: a,b{option=value}; a preset's name stands for its "
        "passes", metavar="LIST", once=True,
    )  # fmt: skip
    without: Names = option(
        (), "all of them but this one, or those that a glob means; may be repeated", metavar="PASS"
    )
    merge: Merge = option("auto", "parallel products into one: auto (default) where it pays")
    target_opset: Count | None = option(
        None, "bring the model to opset N first, whose operators the passes may use, such as "
        "Attention of 23 (default: the model's)", metavar="N",
    )  # fmt: skip
    for_: Runtime | None = option(
        None, "use this runtime's own operators where they are faster, such as onnxruntime's "
        "MultiHeadAttention: no other will run the result (onnxruntime)", metavar="RUNTIME",
    )  # fmt: skip
    allow_growth: bool = option(False, "let --merge always grow the file by more than 10 %")
    inline: Names = option(
        (), "first put the bodies of these functions, or of operators that have one, in their "
        "calls' place", metavar="NAME", toml=None,
    )  # fmt: skip
    recipe: str | os.PathLike[str] | None = option(
        None, "a recipe: options and requirements as TOML; default: onnxgrad.toml in this folder, "
        "or [tool.onnxgrad] of pyproject.toml", flag="--config", metavar="FILE", toml=None,
    )  # fmt: skip
    fix_dims: Sizes | None = option(
        None, "replace a symbolic dimension by a fixed size in the output model (--dim: run it "
        "there)", flag="--fix-dim", metavar="NAME=SIZE", toml=None,
    )  # fmt: skip
    max_rewrites: Count | None = option(None, "stop after N rewrites", metavar="N", toml=None)
    explain: bool = option(
        False, "list near misses with the reason they were declined", toml=None, olive=False
    )
    print_after: Names = option(
        (), "show the program as text on stderr, or in a file of DIR, each time that this pass (or "
        "those that a glob means) changed it; may be repeated",
        metavar="PASS[=DIR]", toml=None, olive=False,
    )  # fmt: skip
    tune: bool | float | str | os.PathLike[str] | Mapping[str, Any] | None = option(
        None, "measure in onnxruntime, on the provider, threads and inputs of the proof, which "
        "rewrites pay, and keep those that win beyond the noise: true, the seconds for it, or the "
        "decisions of an earlier call", flag=None, toml=None,
    )  # fmt: skip
    verify: bool | Literal["each", "only each"] = option(
        True, "prove the result against the original; each: also every rewrite on its own "
        "operands; only each: nothing else", flag=None, toml="verify.run",
    )  # fmt: skip

    @property
    def proves(self) -> bool:
        """Whether the whole model is proved."""
        return self.verify in (True, "each")

    @property
    def each(self) -> bool:
        """Whether every rewrite is proved on its own operands."""
        return self.verify in ("each", "only each")


@dataclass(frozen=True, kw_only=True)
class ConvertOpsetOptions(Proof):
    """Options of `convert_opset`."""

    job: ClassVar[str] = "convert_opset"

    to: Count = option(REQUIRED, "the opset of the default domain", metavar="N", positional=True)
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")

    def optimizing(self) -> OptimizeOptions:
        """Return the same as options of `optimize`."""
        passes = {"passes": f"convert-opset{{to={self.to}}}", "verify": self.verify}
        return OptimizeOptions.of({**self.shared(Proof), **passes})


@dataclass(frozen=True, kw_only=True)
class Gates(Declaration):
    """What a recipe requires of the result, and how `onnxgrad ci` measures for it."""

    require: Mapping[str, Any] | None = option(None, "what must hold of the result", flag=None)
    allow_unproved: bool = option(
        False, "accept in `onnxgrad ci` that nothing was proved", flag=None
    )
    tolerance: Annotated[float, Range(0, FINITE)] | None = option(
        None, "the largest difference that is accepted, on top of what the proof allows",
        flag=None, toml="verify.tolerance",
    )  # fmt: skip
    bench: bool = option(False, "measure latency", flag=None, toml="bench.run")
    bench_seconds: Seconds = option(2.0, "seconds for each model", flag=None, toml="bench.seconds")
    bench_rounds: Annotated[int, Range(1)] = option(
        20, "turns of each model", flag=None, toml="bench.rounds"
    )


@dataclass(frozen=True, kw_only=True)
class CiTable(Declaration):
    """The table `ci` of a recipe, for all models together."""

    models: list[Text] | None = option(None, "globs of models; !GLOB takes some away", flag=None)
    out: Text | None = option(
        None, "where results go: a folder, or a pattern with {name}", flag=None
    )
    lock: Text | None = option(None, "the lock that results are compared with", flag=None)
