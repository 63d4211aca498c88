"""Groups of options that several jobs share. Imports only what `--help` needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import Declaration, option, options_of
from onnxgrad.jobs.kinds import (
    Checks,
    InputKind,
    Masks,
    Memory,
    Names,
    PerOutput,
    Provider,
    Providers,
    Seconds,
    Seeds,
    Sizes,
    Threads,
)
from onnxgrad.limits import SECONDS
from onnxgrad.vocabulary import CHECKS
from onnxgrad.wording import did_you_mean

if TYPE_CHECKING:
    from onnxgrad.verify.feeds.proof_cases import Inputs

# titles of groups of flags
PRODUCTS = "products, in place of the gradient"
SPLIT = "two models, in place of the gradient"


def verified(check: str = "proof") -> Any:
    """Declares the option `verify` of a job, which skips its check."""
    return option(True, f"skip the {check} (needs no onnxruntime)", flag="--no-verify")


@frozen(kw_only=True)
class Limits(Declaration):
    """Bounds on the time and the memory of all work on one model."""

    title: ClassVar[str] = "limits"

    timeout: Seconds | None = option(
        None,
        f"seconds for all work on one model (default: {SECONDS:g})",
        metavar="SECONDS",
        toml="verify.timeout",
    )
    max_memory: Memory | None = option(
        None,
        "memory of each process that works on the model, such as 4GB (default: half of the "
        "memory of the machine or its cgroup)",
        metavar="SIZE",
        toml="verify.max_memory",
    )


@frozen(kw_only=True)
class Running(Limits):
    """Where models run, and on which values."""

    provider: Provider = option(
        "cpu", "where to run (default: cpu)", toml="verify.provider", olive=False
    )
    inputs: Annotated[Inputs | None, InputKind()] = option(
        None,
        "values to run on: an .npz, .npy or .pb file, or a folder of input_*.pb (default: "
        "generated values)",
        flag="--input",
        metavar="[NAME=]FILE",
        toml="verify.inputs",
        file="read",
    )
    dims: Sizes | None = option(
        None,
        "the size of a symbolic dimension when models run; written files keep the symbol "
        "(`optimize --fix-dim` replaces it)",
        flag="--dim",
        metavar="NAME=SIZE",
        toml="verify.dims",
    )
    threads: Threads = option(1, "threads of onnxruntime (default: 1)", toml="verify.threads")

    def running(self) -> dict[str, Any]:
        """Returns these options as keywords of `verify` and `bench`."""
        given = {"inputs": self.inputs, "dims": self.dims}
        some = {name: value for name, value in given.items() if value is not None}
        return {"provider": self.provider, "threads": self.threads, **some}


@frozen(kw_only=True)
class Bounds(Declaration):
    """Bounds that replace the tolerances of the proof."""

    title: ClassVar[str] = "bounds that replace the tolerances of the proof"
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": "calibrated"}

    atol: PerOutput | None = option(
        None,
        "accept |a - b| <= atol + rtol |a|, for all float outputs or for one output "
        "(default: <BOUNDS>)",
        metavar="[OUTPUT=]X",
        toml="verify.atol",
    )
    rtol: PerOutput | None = option(
        None,
        "see --atol; for all float outputs or for one output (default: <BOUNDS>)",
        metavar="[OUTPUT=]X",
        toml="verify.rtol",
    )
    metric: Names | None = option(
        None,
        "accept at least cosine=X, psnr=X (in dB) or top1=X (share of rows with the same largest "
        "element), or at most worst=X (difference over the largest value), such as cosine=0.999",
        metavar="[OUTPUT:]METRIC=X",
        toml="verify.metric",
    )


@frozen(kw_only=True)
class Proof(Running, Bounds):
    """How a result is proved equal to its original."""

    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof", "Running": "proof"}

    provider: Providers = option(  # type: ignore[assignment]  # several, with commas
        "cpu",
        "where to run; cpu,cuda runs on both (default: cpu)",
        metavar="{cpu,cuda,...}",
        toml="verify.provider",
        olive=False,
    )
    seeds: Seeds = option(
        (0, 1),
        "seed of generated values (default: 0 and 1)",
        flag="--seed",
        metavar="N",
        toml="verify.seeds",
    )
    checks: Checks = option(
        CHECKS,
        "run this check only (default: both, each with its own tolerance)",
        flag="--check",
        toml="verify.checks",
    )
    coverage: str | float | None = option(
        None,
        "share of thresholds, branches, loop turns and defaults that the runs must reach, such "
        "as '>= 95%'; otherwise exit code 1 (default: none)",
        metavar="SHARE",
        toml="verify.coverage",
    )
    allow_empty: Names = option(
        (),
        "accept an output with no finite values; otherwise verification fails",
        metavar="NAME",
        toml="verify.allow_empty",
    )
    excuse: Masks | None = option(
        None,
        "ignore the rows of OUTPUT for which INPUT, such as an attention mask, is 0; the shape "
        "of INPUT must be a prefix of the shape of OUTPUT",
        metavar="OUTPUT=INPUT",
        toml="verify.excuse",
    )

    def proof(self) -> dict[str, Any]:
        """Returns the arguments of `verify` that differ from its defaults."""
        given = {o.name: (getattr(self, o.name), o.default) for o in options_of(Proof)}
        limits = {o.name for o in options_of(Limits)}
        return {k: a for k, (a, b) in given.items() if k not in limits and a is not b}


# options of a proof in a job without the group `Proof`
_OF_A_PROOF = frozenset({"provider", "dims", "feeds", "seed"})


class PartOf:
    """A table of another job's options, without those of its proof. `place` is the declaration of
    the job in onnxgrad.jobs, which is imported for the first such table. `files` are keys that name
    a file, which the job receives as an argument; `also` are options of its proof that the table
    may have; `parts` are tables of further jobs inside it, which hold the options that both have.
    `or_true`: true stands for an empty table.
    """

    json: Any = dict[str, Any]
    what = "a table"

    def __init__(
        self,
        place: str,
        *files: str,
        also: tuple[str, ...] = (),
        or_true: bool = False,
        **parts: PartOf,
    ) -> None:
        self.place, self.files, self.also, self.parts = place, files, also, parts
        if or_true:
            self.json, self.what = bool | dict[str, Any], "true or false or a table"

    @cached_property
    def job(self) -> type[Declaration]:
        module, _, name = self.place.rpartition(".")
        return cast("type[Declaration]", getattr(import_module(f"onnxgrad.jobs.{module}"), name))

    @cached_property
    def known(self) -> list[str]:
        """The keys of the table."""
        job = self.job
        proof = {o.name for o in options_of(Proof)} if issubclass(job, Proof) else _OF_A_PROOF
        others = proof | {o.name for o in options_of(Limits)} | {"verify"}
        others |= {o.name for part in self.parts.values() for o in options_of(part.job)}
        own = (o.name for o in options_of(job) if o.name not in others)
        return [*self.files, *own, *self.also, *self.parts]

    def check(self, value: Any, where: str) -> Any:
        if isinstance(value, bool):
            return value
        for name in value or ():
            if name not in self.known:
                hint = did_you_mean(name, self.known, f"there are {', '.join(self.known)}")
                raise InputError(f"{where}: unknown key '{name}'; {hint}")
        for name in self.files:
            if value is not None and not isinstance(value.get(name), (str, os.PathLike)):
                raise InputError(f"{where}: '{name}' must name a file")
        for name, part in self.parts.items():
            table = (value or {}).get(name, {})
            if not isinstance(table, Mapping):
                raise InputError(f"{where}: '{name}' must be a table, not {table!r}")
            part.check(table, f"{where}: {name}")
        try:
            self.options(value or {})
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return value

    def options(self, value: Mapping[str, Any], **more: Any) -> Any:
        """Returns the options of the job from a table and `more`. Raises InputError."""
        others = {*self.files, *self.parts}
        own = {name: v for name, v in value.items() if name not in others}
        return self.job.from_settings({**more, **own})
