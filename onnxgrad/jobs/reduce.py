"""The driver of `reduce`: finds the smallest model that still fails a check, a command or a
function.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.declarations import ReduceOptions
from onnxgrad.limits import SECONDS, limited
from onnxgrad.results import Plain
from onnxgrad.verify.reducing.reduce import Command, Interesting, Reduction, Server, reduce

Check: TypeAlias = Callable[[ModelProto], bool] | str | Sequence[str]


@frozen
class ReducedModel(Plain):
    """The result of `reduce(report=True)`: the smallest `model`, in the type you passed in; the
    numbers of candidates `checked` and `invalid`; `finished`: whether the time sufficed; `steps`:
    the number of successes of each kind of step.
    """

    json_keys = "finished checked invalid steps"

    model: Any
    checked: int
    invalid: int
    finished: bool
    steps: dict[str, int] = field(default_factory=dict)


def smallest(
    model: ModelLike,
    check: Check,
    options: ReduceOptions,
    *,
    name: str = "the model",
    statuses: Collection[int] | None = None,
    on_step: Callable[[str, ModelProto, int], None] | None = None,
    server: Sequence[str] | None = None,
) -> Reduction:
    """Reduces a model, called `name`, as long as the check fails. At the deadline, returns the
    smallest model so far; a running check may finish.

    `statuses`: the exit codes of a command that count as failures, if the options name none.
    `server`: the command line of a `Server`, if the check is a command of this program. Raises
    InputError if the check does not fail on the model itself, or its command cannot be run.
    """
    seconds = SECONDS if options.timeout is None else options.timeout
    with (
        limited(seconds + options.check_timeout, options.max_memory),
        tempfile.TemporaryDirectory(prefix="onnxgrad-") as scratch,
    ):
        given = model if isinstance(model, ModelProto) else to_proto(load_own(model), weights=True)
        served = None if server is None else Server(server, Path(scratch))
        try:
            fails = _fails(check, options, Path(scratch), (given, name, statuses), served)
            return reduce(given, fails, seconds=seconds, on_step=on_step)
        finally:
            if served is not None:
                served.close()


def _fails(
    check: Check,
    options: ReduceOptions,
    scratch: Path,
    original: tuple[ModelProto, str, Collection[int] | None],
    server: Server | None = None,
) -> Interesting:
    """Returns a function that returns whether a candidate still fails."""
    if callable(check):
        asked = check
        if not asked(deepcopy(original[0])):
            raise InputError(f"{original[1]}: the check must fail on it: it returns false")
        return lambda candidate: bool(asked(deepcopy(candidate)))
    words = words_of(check) if isinstance(check, str) else list(check)
    command = Command(
        words, scratch, options.interesting_exit, options.says, options.check_timeout, server
    )
    return command.on_original(*original).fails


def words_of(text: str) -> list[str]:
    """Returns the words of a command. Raises InputError if it cannot be read."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"cannot read the command: {error}") from error
    if not words:
        raise InputError("the command is empty")
    return words
