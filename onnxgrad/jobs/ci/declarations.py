"""The declarations of `ci`: what a recipe requires, and the options of the command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from onnxgrad.frozen import frozen
from onnxgrad.jobs.declarations import FINITE
from onnxgrad.jobs.declared import Declaration, option
from onnxgrad.jobs.kinds import Names, Seconds, Several, Text
from onnxgrad.options import Range


@frozen(kw_only=True)
class Gates(Declaration):
    """Requirements of a recipe, and how `onnxgrad ci` measures them."""

    require: Mapping[str, Any] | None = option(
        None, "requirements that the result must meet, such as `{ nodes = '<= input' }`", flag=None
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
    expect: Text | None = option(
        None,
        "samples for `onnxgrad ci`: an .npz with inputs and the outputs that results must have; "
        "{name} and {folder} are the model's, as in `out`",
        flag=None,
        toml="verify.expect",
    )
    expect_within: Annotated[float, Range(0, FINITE)] = option(
        1e-3,
        "how far an output may move from the samples, as a share of its largest value",
        flag=None,
        toml="verify.expect_within",
    )
    bench: bool = option(
        False, "measure latency even if no requirement needs it", flag=None, toml="bench.run"
    )
    bench_seconds: Seconds = option(2.0, "seconds for each model", flag=None, toml="bench.seconds")
    bench_rounds: Annotated[int, Range(1)] = option(
        20, "rounds over all models", flag=None, toml="bench.rounds"
    )


@frozen(kw_only=True)
class CiOptions(Declaration):
    """Options with a key are the keys of the table `ci` in a recipe."""

    job: ClassVar[str] = "ci"

    recipe: str | os.PathLike[str] | None = option(
        None,
        "the recipe (default: onnxgrad.toml, or [tool.onnxgrad] of pyproject.toml, in this folder)",
        flag=None,
        toml=None,
        positional=True,
        file="read",
    )
    update: bool = option(
        False, "accept the results of the models that pass: write them into the lock", toml=None
    )
    only: Names = option(
        (), "process only these models or variants (names or globs)", metavar="GLOB", toml=None
    )
    all: bool = option(False, "run also the models whose accepted result still holds", toml=None)
    prune: bool = option(
        False,
        "remove results of models that the recipe no longer lists, if the files are as in the lock",
        toml=None,
    )
    record: bool = option(
        False,
        "with --update: write the samples that verify.expect names, from the accepted results",
        toml=None,
    )
    jobs: Several = option(
        1, "number of models to process at once (default: 1)", metavar="N", toml=None
    )
    dask: Text | None = option(
        None,
        "send the models to the workers of a Dask cluster, by the address of its scheduler "
        "(tcp://HOST:8786); the workers must see the same files under the same names",
        metavar="ADDRESS",
        toml=None,
    )
    keep_going: bool = option(False, "continue after a model that fails", toml=None)
    models: list[Text] | None = option(None, "globs of models; !GLOB excludes models", flag=None)
    out: Text | None = option(
        None, "where results are written: a folder, or a pattern with {name}", flag=None
    )
    lock: Text | None = option(None, "the lock file to compare results with", flag=None)
    plugins: Names = option(
        (),
        "Python files with rules, families, passes or gradient rules, which each process runs",
        flag=None,
        toml=None,
        file="read",
    )
    custom_ops: Names = option(
        (), "libraries of custom operators for onnxruntime", flag=None, toml=None, file="read"
    )
