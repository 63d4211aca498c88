"""The options of the jobs that change the parts, the interface or the header of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from onnxgrad.jobs.declared import Declaration, option
from onnxgrad.jobs.gradient_declarations import LossLike
from onnxgrad.jobs.groups import Limits, Proof
from onnxgrad.jobs.kinds import (
    Constants,
    Entries,
    InputKind,
    Names,
    NamesByCommas,
    NamesOrAxes,
    Pairs,
    Places,
    Providers,
    Renames,
    Seed,
    Several,
    Sizes,
    Text,
)
from onnxgrad.options import Range

if TYPE_CHECKING:
    from onnxgrad.verify.feeds.proof_cases import Inputs


@dataclass(frozen=True, kw_only=True)
class EditOptions(Proof):
    job: ClassVar[str] = "edit"
    title: ClassVar[str] = "changes"

    bind: Constants | None = option(
        None,
        "replace an input by a constant: a number (for all elements of a fixed shape), a "
        "list such as [1,2], true or false, an .npy, .npz or .pb file, or in Python an array; may "
        "repeat",
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
        "rename an input, an output or another value of the main graph",
        metavar="OLD=NEW",
    )
    drop_output: Names = option(
        (),
        "remove an output, and the nodes and weights that only it needs",
        metavar="NAME",
    )
    loss: LossLike | None = option(
        None,
        "add this loss as an output, as `train-step` does: NAME{option=value,...}, such as "
        "cross_entropy; its labels become inputs",
        metavar="LOSS",
    )
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
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
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
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
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(Limits):
    job: ClassVar[str] = "extract"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof"}

    inputs: NamesByCommas | None = option(
        None,
        "values of the main graph that become inputs (default: the model's inputs)",
        metavar="NAME,...",
        positional=True,
    )
    outputs: NamesByCommas | None = option(
        None,
        "values of the main graph that become outputs (default: the model's outputs)",
        metavar="NAME,...",
        positional=True,
    )
    provider: Providers = option("cpu", "where to run (default: cpu)", flag=None)
    dims: Sizes | None = option(None, "sizes of symbolic dimensions in the proof", flag=None)
    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class RowsProof(Limits):
    """How every row of a result is proved."""

    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof"}

    provider: Providers = option(
        "cpu",
        "where to run the proof; cpu,cuda runs on both (default: cpu)",
        metavar="{cpu,cuda,...}",
    )
    feeds: Annotated[Inputs | None, InputKind()] = option(
        None,
        "rows for the proof: an .npz, .npy or .pb file with two or more rows for each input "
        "that has rows (default: generated rows)",
        flag="--input",
        metavar="[NAME=]FILE",
        file="read",
    )
    dims: Sizes | None = option(
        None, "the size of a symbolic dimension in the proof", flag="--dim", metavar="NAME=SIZE"
    )
    seed: Seed = option(0, "seed of generated rows (default: 0)", metavar="N")
    allow_same: Names = option(
        (), "accept an output that is the same in every generated row", metavar="NAME"
    )
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class OpenBatchOptions(RowsProof):
    job: ClassVar[str] = "open_batch"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof"}

    inputs: NamesByCommas | None = option(
        None,
        "inputs whose first axis is the batch, or NAME.AXIS for another axis; all rows share "
        "the other inputs (default: every input of rank 2 or more whose first axis has the size of "
        "the batch)",
        metavar="NAME,...",
        positional=True,
    )
    batch: Several | None = option(
        None, "batch size of MODEL (default: 1, or the size of the axes in --inputs)", metavar="N"
    )
    open: Places | None = option(
        None,
        "open another dimension (length, height, width), and the batch only with --batch or "
        "--inputs: its axes in the inputs; refused if it is uncertain whether a number in MODEL "
        "follows it",
        metavar="NAME=INPUT.AXIS,...",
    )
    follow: Names = option(
        (),
        "with --open: treat the constants of this node as the opened dimension where that is "
        "ambiguous (*: all nodes)",
        metavar="NODE",
    )
    reference: Names = option(
        (),
        "with --open: the same network exported at another size, to prove the result there",
        metavar="FILE",
        file="read",
    )
    symbol: Text = option("batch", "name of the new dimension (default: batch)", metavar="NAME")
    along: Literal["auto", "refuse", "warn"] = option(
        "auto",
        "nodes that work along the batch axis: refuse them, or compute each row by itself "
        "and warn; auto (default) warns, but refuses statistics over the batch and other axes",
    )


@dataclass(frozen=True, kw_only=True)
class VmapOptions(RowsProof):
    job: ClassVar[str] = "vmap"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof"}

    inputs: NamesOrAxes | None = option(
        None,
        "inputs and weights that get the new axis, NAME=N at place N; all rows share the "
        "others (default: every input)",
        flag="--map",
        metavar="NAME[=N],...",
        positional=True,
    )
    axis: Annotated[int, Range(0, 63)] = option(
        0, "place of the new axis in these inputs and in every output (default: 0)", metavar="N"
    )
    symbol: Text = option("rows", "name of the new dimension (default: rows)", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class Header(Declaration):
    """The fields of a ModelProto beside its metadata."""

    title: ClassVar[str] = "other fields of the header ('' removes them)"

    producer_name: str | None = option(None, "")
    producer_version: str | None = option(None, "")
    domain: str | None = option(None, "")
    model_version: Annotated[int, Range(-(2**63), 2**63 - 1)] | None = option(None, "")
    doc_string: str | None = option(None, "")


@dataclass(frozen=True, kw_only=True)
class MetadataOptions(Limits, Header):
    job: ClassVar[str] = "set_metadata"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    values: Entries | None = option(
        None, "set an entry", flag="--set", metavar="KEY=VALUE", positional=True
    )
    unset: Names = option((), "remove an entry", metavar="KEY")

    def header(self) -> dict[str, str | int]:
        """Returns the fields of the header that are set."""
        return {k: v for k, v in self.shared(Header).items() if v is not None}
