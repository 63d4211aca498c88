"""The declarations of the jobs: the options of each, in Python, in a shell, in a recipe and in
Olive. Imports no more than `--help` needs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.groups import (
    Count,
    Limits,
    Names,
    Pairs,
    PartOf,
    Positive,
    Proof,
    Running,
    Seconds,
    Seed,
    Sizes,
    Text,
    Word,
)
from onnxgrad.jobs.surgery_declarations import EditOptions, JoinOptions
from onnxgrad.options import Named, Range
from onnxgrad.vocabulary import FLOAT16_BOUND, Merge, Preset, Runtime

if TYPE_CHECKING:
    from onnxgrad.passes.base import Pass
    from onnxgrad.passes.user_laws import Law

FINITE = sys.float_info.max
# parts of recipes that are jobs of their own
EDIT, JOIN = PartOf(EditOptions), PartOf(JoinOptions, "model")
Edits: TypeAlias = Annotated[Mapping[str, Any], EDIT]
Other: TypeAlias = Annotated[Mapping[str, Any], JOIN]


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(Proof):
    """Options of `optimize`."""

    job: ClassVar[str] = "optimize"
    title: ClassVar[str] = "rewriting"

    preset: Preset = option("default", "the passes to run; see `onnxgrad passes`")
    passes: str | Sequence[str | Pass | Law] | None = option(
        None,
        "run these passes in this order: a,b{option=value}; a preset's name stands for its passes",
        metavar="LIST",
        once=True,
    )
    without: Names = option(
        (), "leave out this pass, or those that a glob matches; may repeat", metavar="PASS"
    )
    merge: Merge = option(
        "auto", "merge parallel products: where it pays (auto, the default), everywhere, or nowhere"
    )
    target_opset: Count | None = option(
        None,
        "convert the model to opset N first; passes may then use its operators, such as "
        "Attention of 23 (default: the model's)",
        metavar="N",
    )
    for_: Runtime | None = option(
        None,
        "use this runtime's own operators if they are faster, such as onnxruntime's "
        "MultiHeadAttention; no other runtime runs the result",
        metavar="RUNTIME",
    )
    allow_growth: bool = option(False, "let --merge always grow the file by more than 10 %")
    inline: Names = option(
        (),
        "first replace calls of this function, or of an operator that has a function body, by "
        "the body",
        metavar="NAME",
        toml=None,
    )
    recipe: str | os.PathLike[str] | None = option(
        None,
        "a recipe: options and requirements as TOML (default: onnxgrad.toml in this folder, "
        "or [tool.onnxgrad] of pyproject.toml)",
        flag="--config",
        metavar="FILE",
        toml=None,
    )
    fix_dims: Sizes | None = option(
        None,
        "replace a symbolic dimension by a fixed size in the output model (--dim: in the "
        "proof only)",
        flag="--fix-dim",
        metavar="NAME=SIZE",
        toml=None,
    )
    infer_shapes: bool = option(
        False,
        "declare the shape of every value in the output model, with open sizes as expressions of "
        "the inputs' sizes, such as batch*seq",
    )
    join: Other | None = option(
        None,
        "first chain the model with another, as `join`: model = FILE, map, prefix, keep_output",
        flag=None,
    )
    before: Edits | None = option(
        None,
        "changes of the interface before the passes, as `edit`: bind, rename, drop_output",
        flag=None,
    )
    after: Edits | None = option(
        None,
        "such changes of the result, after the passes and their proof",
        flag=None,
    )
    lift: bool | Names = option(
        False,
        "split the result, as `lift`, into a preparation that runs once at load and the rest: "
        "names or globs of weights, or true for what depends on constants alone",
        flag=None,
        olive=False,
    )
    max_rewrites: Count | None = option(None, "stop after N rewrites", metavar="N", toml=None)
    explain: bool = option(False, "list declined rewrites with the reason", toml=None, olive=False)
    print_after: Names = option(
        (),
        "print the program as text on stderr, or write it to a file in DIR, each time this "
        "pass, or one that a glob matches, changed it; may repeat",
        metavar="PASS[=DIR]",
        toml=None,
        olive=False,
    )
    tune: bool | float | str | os.PathLike[str] | Mapping[str, Any] | None = option(
        None,
        "measure which rewrites pay, in onnxruntime on the provider, threads and inputs of "
        "the proof, and keep those that win beyond the noise: true, the seconds to measure, or the "
        "decisions of an earlier call",
        flag=None,
        toml=None,
    )
    verify: bool | Literal["each", "only each"] = option(
        True,
        "prove the result against the original; each: also every rewrite on its own "
        "operands; only each: the rewrites alone",
        flag=None,
        toml="verify.run",
    )

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
        return OptimizeOptions.from_settings({**self.shared(Proof), **passes})


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Proof):
    """Options of `verify`."""

    job: ClassVar[str] = "verify"

    weights: Literal["auto", "same", "rounded"] = option(
        "auto",
        "same: B's weights are A's, so float64 results may differ by 1e-9 of the largest "
        "value; rounded: they were computed anew, so results may differ by the rounding of their "
        "type (1e-6 in float32) or 3 times A's own error; auto (default): compare the weights",
    )
    float64_budget: Positive = option(20.0, "seconds for the float64 check", flag=None)
    map: Pairs | None = option(
        None, "A's input or output NAME is called OTHER in B", metavar="NAME=OTHER"
    )
    expect: str | os.PathLike[str] | Mapping[str, Any] | None = option(
        None,
        "compare A on --input with stored results (an .npz with the outputs' names) instead "
        "of B; with --map, NAME is the name in FILE, OTHER the name in A",
        metavar="FILE",
        once=True,
    )
    layers: bool = option(
        False,
        "compare the values inside both models as well, and report the first and the largest "
        "difference; with --expect those that FILE has",
    )
    save: str | os.PathLike[str] | None = option(
        None,
        "write the inputs and outputs of A's first run to this .npz, which --expect accepts; with "
        "--layers every paired value; without B, A is compared with itself",
        metavar="OUT.npz",
    )


@dataclass(frozen=True, kw_only=True)
class Float16Options(Proof):
    """Options of `float16`."""

    job: ClassVar[str] = "float16"
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": FLOAT16_BOUND}

    keep: Names = option(
        (),
        "leave a node, value or operator, or those that a glob matches, in float32, beside "
        "values that pass 65504 or need their digits; auto searches by proofs for nodes that "
        "must stay, and keeps the scores of TopK and NonMaxSuppression; may repeat",
        metavar="NAME",
    )
    convert: Names = option(
        (),
        "convert such a name to float16 even if its kind usually stays (sums, powers, "
        "positions); --keep wins; may repeat",
        metavar="NAME",
    )
    io: bool = option(False, "convert inputs and outputs to float16 too")
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Limits):
    """Options of `inspect`."""

    job: ClassVar[str] = "inspect"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    dims: Sizes | None = option(
        None,
        "the size of a symbolic dimension, for FLOPs and memory",
        flag="--dim",
        metavar="NAME=SIZE",
    )


@dataclass(frozen=True, kw_only=True)
class DiffOptions(Limits):
    """Options of `diff`."""

    job: ClassVar[str] = "diff"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}


@dataclass(frozen=True, kw_only=True)
class ReduceOptions(Limits):
    """Options of `reduce`."""

    job: ClassVar[str] = "reduce"

    interesting_exit: Count | None = option(
        None, "count only this exit status as a failure", metavar="N"
    )
    says: str = option("", "text that the check must print, on stdout or stderr", metavar="TEXT")
    check_timeout: Seconds = option(60.0, "seconds for one check (default: 60)", metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Running):
    """Options of `bench`."""

    job: ClassVar[str] = "bench"
    title: ClassVar[str] = "measuring"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "measuring", "Running": "measuring"}

    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    rounds: Annotated[int, Range(1)] = option(
        20, "rounds over all models (default: 20)", metavar="N"
    )
    seconds: Seconds = option(2.0, "seconds for each model (default: 2)", metavar="S")
    optimize: bool = option(
        True, "switch off onnxruntime's own optimisations", flag="--no-optimize"
    )
    require: Positive | None = option(
        None,
        "exit with 1 if a model takes longer than RATIO x the first (of two or more)",
        metavar="RATIO",
    )


DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def device_patterns(text: str) -> tuple[str, list[str]]:
    """Return device and patterns of `DEVICE=PATTERN,PATTERN`. Raises InputError."""
    device, equals, patterns = text.partition("=")
    found = [p.strip() for p in patterns.split(",") if p.strip()]
    if not equals or not found or DEVICE.fullmatch(device) is None:
        raise InputError(
            f"cannot read '{text}': write DEVICE=PATTERN, such as cuda='Conv*' or "
            "gpu:0=op:Gemm,name:head*"
        )
    return device, found


class _Devices(Word):
    """Rules for devices."""

    def check(self, value: Sequence[str], where: str) -> Sequence[str]:
        for text in value:
            device_patterns(text)
        return value


Devices: TypeAlias = Annotated[str | Sequence[str], Named(), _Devices()]


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(Limits):
    """Options of `place`."""

    job: ClassVar[str] = "place"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    device: Devices = option(
        (),
        "run nodes whose name or operator matches there: cuda='Conv*,op:Gemm,name:head*'; may "
        "repeat, the first match decides; without a match, marks in the model stay",
        metavar="DEVICE=PATTERN",
        positional=True,
    )
    default: str = option("cpu", "device of all other nodes (default: cpu)", metavar="DEVICE")
    propagate: bool = option(
        False, "place unmarked nodes on the device of their operands, or else of their readers"
    )
    ir: bool = option(False, "write the IR's device_configurations too (IR version 11)")


# ---- recipes ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gates(Declaration):
    """Requirements of a recipe, and how `onnxgrad ci` measures for them."""

    require: Mapping[str, Any] | None = option(
        None, "requirements of the result; see below", flag=None
    )
    allow_unproved: bool = option(
        False, "let `onnxgrad ci` accept a result that was not proved", flag=None
    )
    tolerance: Annotated[float, Range(0, FINITE)] | None = option(
        None,
        "the largest difference that is accepted, in addition to the proof's tolerance",
        flag=None,
        toml="verify.tolerance",
    )
    bench: bool = option(
        False, "measure latency even if no requirement needs it", flag=None, toml="bench.run"
    )
    bench_seconds: Seconds = option(2.0, "seconds for each model", flag=None, toml="bench.seconds")
    bench_rounds: Annotated[int, Range(1)] = option(
        20, "rounds over all models", flag=None, toml="bench.rounds"
    )


@dataclass(frozen=True, kw_only=True)
class CiTable(Declaration):
    """The table `ci` of a recipe, for all models together."""

    models: list[Text] | None = option(None, "globs of models; !GLOB excludes models", flag=None)
    out: Text | None = option(
        None, "where results go: a folder, or a pattern with {name}", flag=None
    )
    lock: Text | None = option(None, "the lock that results are compared with", flag=None)
