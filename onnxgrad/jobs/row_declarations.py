"""The options of the jobs that give a model more rows, with the proof of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import option
from onnxgrad.jobs.groups import Limits, verified
from onnxgrad.jobs.kinds import (
    Extends,
    InputKind,
    Names,
    NamesByCommas,
    NamesOrAxes,
    Places,
    Providers,
    Seed,
    Several,
    Sizes,
    Text,
)
from onnxgrad.options import Range

if TYPE_CHECKING:
    from onnxgrad.verify.feeds.proof_cases import Inputs


@frozen(kw_only=True)
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
    verify: bool = verified()


@frozen(kw_only=True)
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
        "follows the dimension",
        metavar="NAME=INPUT.AXIS,...",
    )
    follow: Names = option(
        (),
        "with --open: treat the constants of this node as the opened dimension where that is "
        "ambiguous (*: all nodes)",
        metavar="NODE",
    )
    extend: Extends | None = option(
        None,
        "with --open: how a constant continues beyond the size in MODEL, which one size does not "
        "decide: ramp counts on, triangle and same go on, scaled follows the size, repeat begins "
        "again (*: all constants as the refusal shows them)",
        metavar="CONSTANT=READING",
    )
    reference: Names = option(
        (),
        "with --open: the same network exported at another size, to prove the result there; a "
        "larger size also decides how constants continue, up to that size",
        metavar="FILE",
        file="read",
    )
    symbol: Text = option("batch", "name of the new dimension (default: batch)", metavar="NAME")
    along: Literal["auto", "refuse", "warn"] = option(
        "auto",
        "nodes that work along the batch axis: refuse them, or compute each row by itself "
        "and warn; auto (default) warns, but refuses statistics over the batch and other axes",
    )


@frozen(kw_only=True)
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
