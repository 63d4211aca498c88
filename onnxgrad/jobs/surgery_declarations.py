"""The declarations of the jobs that change a model's interface or divide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.jobs.declared import option
from onnxgrad.jobs.groups import Constants, Names, Pairs, Proof, Renames


@dataclass(frozen=True, kw_only=True)
class EditOptions(Proof):
    """Options of `edit`."""

    job: ClassVar[str] = "edit"
    title: ClassVar[str] = "changes"

    bind: Constants | None = option(
        None, "make an input a constant: a number (which fills a fixed shape), a list such as "
        "[1,2], true or false, or an .npy, .npz or .pb file; in Python an array; may repeat",
        metavar="NAME=VALUE|FILE",
    )  # fmt: skip
    rename: Renames | None = option(
        None, "rename an input, an output or another value of the main graph; may repeat",
        metavar="OLD=NEW",
    )  # fmt: skip
    drop_output: Names = option(
        (), "remove an output, and the nodes and weights that serve it alone; may repeat",
        metavar="NAME",
    )  # fmt: skip
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class JoinOptions(Proof):
    """Options of `join`."""

    job: ClassVar[str] = "join"
    title: ClassVar[str] = "connections"

    map: Pairs | None = option(
        None, "A's output (or input) NAME feeds B's input OTHER; may repeat (default: equal names, "
        "or A's only output to B's only input)", metavar="NAME=OTHER",
    )  # fmt: skip
    prefix: str = option(
        "", "begin the names of B's other inputs, of its outputs and its values with this text",
        metavar="TEXT",
    )  # fmt: skip
    keep_output: Names = option(
        (), "keep an output of A that B reads as an output; may repeat", metavar="NAME"
    )
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class LiftOptions(Proof):
    """Options of `lift`."""

    job: ClassVar[str] = "lift"
    title: ClassVar[str] = "preparation"

    weights: Names = option(
        (), "an input that is set at load, or an initializer, which becomes such an input; or a "
        "glob of them; may repeat (default: constants alone)", metavar="NAME", positional=True,
    )  # fmt: skip
    verify: bool = option(True, "skip the proof (needs no onnxruntime)", flag="--no-verify")
