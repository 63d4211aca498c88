"""The options of each job, as Python, the shell, recipes and Olive accept them. Imports only what
`--help` needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import REQUIRED, option
from onnxgrad.jobs.groups import Limits, PartOf, Proof, Running, verified
from onnxgrad.jobs.kinds import (
    Count,
    Lints,
    Names,
    Pairs,
    Positive,
    Seconds,
    Seed,
    Several,
    Sizes,
)
from onnxgrad.options import Range
from onnxgrad.vocabulary import FLOAT16_BOUND, Merge, Preset, Runtime

if TYPE_CHECKING:
    from onnxgrad.passes.base import Pass
    from onnxgrad.passes.user_laws import Law

FINITE = sys.float_info.max


# parts of recipes that are jobs of their own
@frozen(kw_only=True)
class Float16Options(Proof):
    job: ClassVar[str] = "float16"
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": FLOAT16_BOUND}

    keep: Names = option(
        (),
        "keep this node, value or operator (a name or glob) in float32, in addition to values "
        "beyond 65504 or that need more digits; auto: search for the nodes that must stay so that "
        "the proof passes, and keep the scores of TopK and NonMaxSuppression",
        metavar="NAME",
    )
    convert: Names = option(
        (),
        "convert this node, value or operator even if its kind usually stays in float32 (sums, "
        "powers, positions); --keep has precedence",
        metavar="NAME",
    )
    io: bool = option(False, "convert inputs and outputs to float16 too")
    verify: bool = verified()


OPEN = PartOf("row_declarations.OpenBatchOptions")
JOIN = PartOf("surgery.declarations.JoinOptions", "model")
PREPROCESS = PartOf("surgery.declarations.PreprocessOptions", also=("allow_empty",))
EDIT = PartOf("surgery.declarations.EditOptions", open_batch=OPEN, preprocess=PREPROCESS)
Edits: TypeAlias = Annotated[Mapping[str, Any], EDIT]
Other: TypeAlias = Annotated[Mapping[str, Any], JOIN]
HALF = PartOf("declarations.Float16Options", also=("atol", "rtol", "metric"), or_true=True)
Half: TypeAlias = Annotated[bool | Mapping[str, Any], HALF]


@frozen(kw_only=True)
class OptimizeOptions(Proof):
    job: ClassVar[str] = "optimize"
    title: ClassVar[str] = "rewriting"

    preset: Preset = option("default", "the passes to run; see `onnxgrad passes`")
    passes: str | Sequence[str | Pass | Law] | None = option(
        None,
        "run these passes in this order: a,b{option=value}; a preset's name stands for its passes",
        metavar="LIST",
        once=True,
    )
    without: Names = option((), "leave out this pass (a name or glob)", metavar="PASS")
    merge: Merge = option(
        "auto", "merge parallel products: where it is faster (auto, the default), always or never"
    )
    target_opset: Several | None = option(
        None,
        "convert the model to opset N first, so that passes may use its operators, such as "
        "Attention of opset 23; at most the newest for which onnxruntime has the kernels (default: "
        "the model's opset)",
        metavar="N",
    )
    for_: Runtime | None = option(
        None,
        "use this runtime's own operators if they are faster, such as onnxruntime's "
        "MultiHeadAttention; no other runtime runs the result",
        metavar="RUNTIME",
    )
    allow_growth: bool = option(False, "allow `--merge always` to grow the file by more than 10 %")
    inline: Names = option(
        (),
        "first inline calls of this local function, or of an operator with a body: in its schema, "
        "of com.microsoft, or registered",
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
        file="read",
    )
    fix_dims: Sizes | None = option(
        None,
        "replace a symbolic dimension of inputs by a fixed size in the output model (--dim: in the "
        "proof only)",
        flag="--fix-dim",
        metavar="NAME=SIZE",
        toml="fix_dim",
    )
    bind_defaults: bool = option(
        False,
        "make constants of the inputs that have an initializer, so that they are folded (default: "
        "below IR 4 only, where no caller can override them)",
    )
    infer_shapes: bool = option(
        False,
        "declare the shape of every value in the output model, with open sizes as expressions of "
        "the inputs' sizes, such as batch*seq",
    )
    strip_metadata: str | None = option(
        None,
        "remove the metadata and doc strings of nodes, graphs and values from the output model, "
        "such as stack traces: a glob of keys, 'doc_string' among them (default of the flag: all "
        "but the marks of onnxgrad; place it after the model)",
        metavar="PATTERN",
        implied="*",
    )
    join: Other | None = option(
        None,
        "first chain the model with another, as `join` does: model = FILE, map, prefix, "
        "keep_output",
        flag=None,
        file="read",
    )
    before: Edits | None = option(
        None,
        "edits before the passes, as `edit` does: bind, set, rename, add_output, ...; then "
        "open_batch: a table with options of `open-batch`, and preprocess: one of `preprocess`",
        flag=None,
        file="read",
    )
    after: Edits | None = option(
        None,
        "edits of the interface of the result, after the passes and their proof",
        flag=None,
        file="read",
    )
    float16: Half = option(
        False,
        "convert the result of the passes as `float16` does: true, or a table of keep, convert, "
        "io, and the bounds of its proof: atol, rtol, metric",
        flag=None,
    )
    metadata: Mapping[str, str] | None = option(
        None, "entries to set in the metadata of the result", flag=None
    )
    lift: bool | Names = option(
        False,
        "split the result as `lift` does: names or globs of weights, or true to move only "
        "values computed from constants",
        flag=None,
        olive=False,
    )
    rebasable: bool = option(
        False,
        "also write OUT.rebase, a record with which `rebase` puts other weights into OUT",
        olive=False,
    )
    lint: Lints | None = option(
        None,
        "the level of a lint: error (refuse the model), warn or off; see `onnxgrad help lint`",
        metavar="NAME=LEVEL",
    )
    max_rewrites: Count | None = option(None, "stop after N rewrites", metavar="N", toml=None)
    explain: bool = option(
        False,
        "list declined rewrites with the reason (only of rules that matched)",
        toml=None,
        olive=False,
    )
    print_after: Names = option(
        (),
        "print the program as text on stderr, or write it to a file in DIR, each time this "
        "pass (a name or glob) changed it",
        metavar="PASS[=DIR]",
        toml=None,
        olive=False,
        file="into",
        names=("*.[0-9][0-9][0-9].*.txt",),
    )
    tune: bool | float | str | os.PathLike[str] | Mapping[str, Any] | None = option(
        None,
        "measure in onnxruntime, with the provider, threads and inputs of the proof, which "
        "rewrites make the model faster, and keep only these: true, the seconds to measure, or the "
        "decisions of an earlier call",
        flag=None,
        toml=None,
        file="read",
    )
    verify: bool | Literal["each", "only each"] = option(
        True,
        "prove the result against the original; each: also prove every rewrite on its own "
        "operands; only each: prove only the rewrites",
        flag=None,
        toml="verify.run",
    )

    exact: bool = option(
        False,
        "also evaluate both forms of every rewrite exactly, and report how many are the same "
        "algebra; a rewrite that is not is refused",
        toml="verify.exact",
    )
    against: Names = option(
        (),
        "also compare the result with itself in this other runtime, as `verify --against` does",
        metavar="RUNTIME",
        toml="runtimes",
        olive=False,
    )

    @property
    def proves(self) -> bool:
        """Whether the whole model is proved."""
        return self.verify in (True, "each")

    @property
    def each(self) -> bool:
        """Whether every rewrite is proved on its own operands."""
        return self.verify in ("each", "only each")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fix_dims and self.dims:  # the proof runs the model whose sizes are fixed
            left = {name: n for name, n in self.dims.items() if name not in self.fix_dims}
            object.__setattr__(self, "dims", left)


@frozen(kw_only=True)
class ConvertOpsetOptions(Proof):
    job: ClassVar[str] = "convert_opset"

    to: Several = option(REQUIRED, "the opset of the default domain", metavar="N", positional=True)
    verify: bool = verified()

    def optimizing(self) -> OptimizeOptions:
        """Returns the equivalent options of `optimize`."""
        passes = {"passes": f"convert-opset{{to={self.to}}}", "verify": self.verify}
        return OptimizeOptions.from_settings({**self.shared(Proof), **passes})


@frozen(kw_only=True)
class VerifyOptions(Proof):
    job: ClassVar[str] = "verify"

    weights: Literal["auto", "same", "rounded"] = option(
        "auto",
        "same: A and B have equal weights, so float64 results may differ by 1e-9 of the largest "
        "value; rounded: B's weights were computed and rounded again, so results may differ by the "
        "rounding of their type (1e-6 in float32) or 3 times A's own error; auto (default): "
        "compare the weights",
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
        file="read",
    )
    against: Names = option(
        (),
        "compare A with itself in another runtime: the path of a Python with another onnxruntime, "
        "a provider such as 'XnnpackExecutionProvider{intra_op_num_threads=2}', or "
        "PYTHON:PROVIDER",
        metavar="RUNTIME",
    )
    layers: bool = option(
        False,
        "also compare the values inside both models, and report the first and the largest "
        "difference; with --expect, compare A with the values in FILE",
    )
    exact: bool = option(
        False,
        "also evaluate both models exactly, and report whether they are the same algebra; the "
        "verdict stays that of the runs",
    )
    save: str | os.PathLike[str] | None = option(
        None,
        "write the inputs and outputs of A's first run to this .npz for --expect; with --layers, "
        "every paired value",
        metavar="OUT.npz",
        file="write",
    )


@frozen(kw_only=True)
class RunOptions(Running):
    job: ClassVar[str] = "run"
    title: ClassVar[str] = "running"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "running", "Running": "running"}

    evaluator: Literal["onnxruntime", "float64"] = option(
        "onnxruntime",
        "what runs the model: onnxruntime (default), or onnxgrad's evaluator, which computes every "
        "float in float64",
    )
    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    save: str | os.PathLike[str] | None = option(
        None, "write the outputs to this file by their names", metavar="OUT.npz", file="write"
    )


@frozen(kw_only=True)
class InspectOptions(Limits):
    job: ClassVar[str] = "inspect"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    dims: Sizes | None = option(
        None,
        "the size of a symbolic dimension, to count FLOPs and memory (FLOPs depend on it)",
        flag="--dim",
        metavar="NAME=SIZE",
    )


@frozen(kw_only=True)
class DiffOptions(Limits):
    job: ClassVar[str] = "diff"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}


@frozen(kw_only=True)
class ReduceOptions(Limits):
    job: ClassVar[str] = "reduce"

    interesting_exit: Count | None = option(
        None, "count only this exit status as a failure", metavar="N"
    )
    says: str = option(
        "", "count only failures whose stdout or stderr contains this text", metavar="TEXT"
    )
    check_timeout: Seconds = option(60.0, "seconds for one check (default: 60)", metavar="SECONDS")


@frozen(kw_only=True)
class BenchOptions(Running):
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
        "exit with 1 if a model takes longer than RATIO times the first model",
        metavar="RATIO",
    )
