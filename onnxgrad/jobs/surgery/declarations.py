"""The options of the jobs that change the parts or the interface of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import Declaration, option
from onnxgrad.jobs.groups import Limits, Proof, verified
from onnxgrad.jobs.kinds import (
    Constants,
    Entries,
    LossLike,
    Names,
    NamesByCommas,
    NewNodes,
    NewSymbols,
    Pairs,
    Providers,
    Ranges,
    Renames,
    Seed,
    Sizes,
    StepTexts,
    Values,
)
from onnxgrad.options import Count, Finite, Range


@frozen(kw_only=True)
class Steps(Declaration):
    """Steps before the inputs and after the outputs of a model."""

    title: ClassVar[str] = "steps"

    before: StepTexts | None = option(
        None,
        "steps between a new input and the model's, such as imagenet or "
        "'image,center-crop{size=224},to-float', once for each input",
        metavar="[INPUT=]STEPS",
        positional=True,
    )
    config: str | os.PathLike[str] | None = option(
        None,
        "the preprocessor_config.json of an image processor of Transformers, whose steps follow "
        "those of --before for the input of images",
        metavar="FILE",
        file="read",
    )
    after: StepTexts | None = option(
        None,
        "steps after an output, which they replace, such as 'softmax,top-k{k=5}', once for "
        "each output",
        metavar="[OUTPUT=]STEPS",
        positional=True,
    )
    keep_output: Names = option(
        (), "keep this output, which steps replace, as an output of OUT", metavar="NAME"
    )


@frozen(kw_only=True)
class EditOptions(Steps, Proof):
    job: ClassVar[str] = "edit"
    title: ClassVar[str] = "changes"

    bind: Constants | None = option(
        None,
        "replace an input by a constant: a number (for all elements of a fixed shape), ones or "
        "zeros (of any shape: open sizes are those of the other inputs), a list such as [1,2], "
        "true or false, an .npy, .npz or .pb file, or in Python an array",
        metavar="NAME=VALUE|FILE",
        file="read",
    )
    set: Values | None = option(
        None,
        "replace the value of an initializer (a weight) by another of its shape and type, in a "
        "form that --bind reads",
        metavar="NAME=VALUE|FILE",
        file="read",
    )
    free: Names = option(
        (),
        "replace an initializer by an input of its name, shape and type (--bind with a value "
        "undoes this)",
        metavar="NAME|GLOB",
    )
    rename: Renames | None = option(
        None,
        "rename an input, an output or another value of the main graph; in a pattern, each * of "
        "NEW stands for the text that a * of OLD matches, as in 'enc.*=encoder.*'",
        metavar="OLD=NEW",
    )
    rename_node: NewNodes | None = option(
        None, "rename a node, or the nodes that a pattern matches", metavar="OLD=NEW"
    )
    rename_dim: NewSymbols | None = option(
        None,
        "rename a symbolic dimension (a dynamic axis) in every shape; patterns as in --rename",
        metavar="OLD=NEW",
    )
    add_output: Names = option(
        (),
        "mark a value of the main graph as an output too, such as an intermediate result; "
        "all: every computed value of known type, to debug",
        metavar="NAME|GLOB",
    )
    drop_output: Names = option(
        (),
        "remove an output, with the nodes and weights that no other output needs",
        metavar="NAME|GLOB",
    )
    mode: Literal["inference"] | None = option(
        None,
        "inference: switch BatchNormalization and Dropout that the file puts into training mode; "
        "outputs that are running statistics are removed",
    )
    loss: LossLike | None = option(
        None,
        "add this loss as an output, as `train-step` does: NAME{option=value,...}, such as "
        "cross_entropy; its labels become inputs",
        metavar="LOSS",
    )
    verify: bool = verified()


@frozen(kw_only=True)
class JoinOptions(Proof):
    job: ClassVar[str] = "join"
    title: ClassVar[str] = "connections"

    map: Pairs | None = option(
        None,
        "A's output or input NAME feeds B's input OTHER (also A.NAME=B.OTHER) "
        "(default: equal names, or A's only output to B's only input)",
        metavar="NAME=OTHER",
    )
    prefix: str = option(
        "",
        "put this text before the names of B's other inputs, its outputs and its values",
        metavar="TEXT",
    )
    keep_output: Names = option(
        (), "keep this output of A, which B reads, as an output of OUT", metavar="NAME"
    )
    verify: bool = verified()


@frozen(kw_only=True)
class LiftOptions(Proof):
    job: ClassVar[str] = "lift"
    title: ClassVar[str] = "preparation"

    weights: Names = option(
        (),
        "inputs or initializers (names or globs) that the prepared model receives as inputs "
        "at load (default: none; it depends on constants alone)",
        metavar="NAME",
        positional=True,
    )
    verify: bool = verified()


@frozen(kw_only=True)
class LoraOptions(Proof):
    job: ClassVar[str] = "lora"
    title: ClassVar[str] = "adapters"

    targets: Names = option(
        (),
        "add adapters beside these weights: names and globs of weights, of the nodes that read "
        "them, or of modules, such as '*attn*'; '!GLOB' excludes names",
        metavar="NAME|GLOB",
    )
    rank: Count = option(8, "columns of A and rows of B (default: 8)", metavar="N")
    alpha: Finite = option(
        16.0, "alpha / rank times A B is added to a weight (default: 16)", metavar="X"
    )
    initial_seed: Seed = option(0, "seed of the first values of A (default: 0)", metavar="N")
    merge: bool = option(False, "add the adapters that MODEL has to its weights")
    rename: Pairs | None = option(
        None,
        "with --peft: a part of MODEL's module names, and what PEFT's model has there, such as "
        ".attn.=.self_attn.",
        metavar="PART=OTHER",
    )
    verify: bool = verified()


@frozen(kw_only=True)
class PreprocessOptions(Steps, Proof):
    job: ClassVar[str] = "preprocess"
    title: ClassVar[str] = "steps"

    verify: bool = verified()


@frozen(kw_only=True)
class RebaseOptions(Proof):
    job: ClassVar[str] = "rebase"
    title: ClassVar[str] = "weights"

    map: Pairs | None = option(
        None,
        "the initializer OLD of the original is called NEW in the weights; NEW.T: transposed "
        "(default: equal names, or for a model the same place)",
        metavar="OLD=NEW",
    )
    record: str | os.PathLike[str] | Any | None = option(
        None,
        "the record of MODEL (default: MODEL.rebase beside it)",
        metavar="FILE",
        file="read",
    )
    verify: bool = verified()


@frozen(kw_only=True)
class ExtractOptions(Limits):
    job: ClassVar[str] = "extract"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof"}

    inputs: NamesByCommas | None = option(
        None,
        "values (names or globs) of the main graph that become inputs (default: the model's "
        "inputs)",
        metavar="NAME,...",
        positional=True,
    )
    outputs: NamesByCommas | None = option(
        None,
        "values (names or globs) of the main graph that become outputs (default: the model's "
        "outputs)",
        metavar="NAME,...",
        positional=True,
    )
    provider: Providers = option("cpu", "where to run (default: cpu)", flag=None)
    dims: Sizes | None = option(None, "sizes of symbolic dimensions in the proof", flag=None)
    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    verify: bool = verified()


@frozen(kw_only=True)
class Header(Declaration):
    """The fields of a ModelProto beside its metadata."""

    title: ClassVar[str] = "other fields of the header ('' removes them)"

    producer_name: str | None = option(None, "")
    producer_version: str | None = option(None, "")
    domain: str | None = option(None, "")
    model_version: Annotated[int, Range(-(2**63), 2**63 - 1)] | None = option(None, "")
    doc_string: str | None = option(None, "")


@frozen(kw_only=True)
class MetadataOptions(Limits, Header):
    job: ClassVar[str] = "set_metadata"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    values: Entries | None = option(
        None, "set an entry", flag="--set", metavar="KEY=VALUE", positional=True
    )
    unset: Names = option((), "remove an entry", metavar="KEY")
    ranges: Ranges | None = option(
        None,
        "declare that an input lies between two numbers: proofs then use no other values; none "
        "removes this",
        flag="--range",
        metavar="INPUT=LOW..HIGH",
    )
    strip: str | None = option(
        None,
        "remove the metadata and doc strings of nodes, graphs and values, such as stack traces: a "
        "glob of keys, 'doc_string' among them (default of the flag: all but the marks of "
        "onnxgrad; place it after the model)",
        metavar="PATTERN",
        implied="*",
    )

    def header(self) -> dict[str, str | int]:
        """Returns the fields of the header that are set."""
        return {k: v for k, v in self.shared(Header).items() if v is not None}
