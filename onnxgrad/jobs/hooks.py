"""How a caller takes part in a job: functions that the job calls, files that it may write, and the
model that it makes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onnxgrad.errors import NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, check_room
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.protection import Writes, protecting, refuse
from onnxgrad.jobs.declared import Declaration, files_read, names_of, options_of
from onnxgrad.limits import limited

if TYPE_CHECKING:
    from onnxgrad.jobs.outcome import Outcome
    from onnxgrad.passes.base import Pass
    from onnxgrad.verify import Report

P = TypeVar("P", bound="Proved")


def to_stderr(text: str) -> None:
    """Prints text to stderr."""
    print(text, file=sys.stderr)


@frozen
class Hooks:
    """Functions by which the caller takes part in `optimize`; by default none.

    `on_stage` is called at the beginning of a stage (read, each pass by name, prove, bisect),
    `on_choice` with each choice that tuning measures and the share done, `on_read` with the program
    before any rewrite, `accept` with the outcome of the proof. `on_read` and `accept` may raise to
    refuse. `write` writes the result and returns whether it did. `show` prints the text of
    `print_after`. `limits` bounds the work by seconds and memory, to which `seconds` are added.
    `plugins` are passes that run last. `ahead` allows threads that begin the proof early.
    """

    on_stage: Callable[[str], None] = lambda stage: None
    on_choice: Callable[[str, float], None] = lambda choice, share: None
    on_read: Callable[[Program], None] = lambda program: None
    accept: Callable[[Outcome], None] = lambda outcome: None
    write: Callable[[Program], bool] | None = None
    show: Callable[[str], None] = to_stderr
    limits: Callable[[float | None, int | str | None], AbstractContextManager[Any]] = limited
    seconds: float = 0.0
    plugins: Sequence[Pass] = ()
    ahead: bool = False


@frozen
class Proved:
    """The model that a job made, the report of its proof (None if it was not proved), and notes."""

    program: Program
    report: Report | None
    notes: Sequence[str] = field(default=(), kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether the proof found no difference."""
        return self.report is None or self.report.ok

    def proved(self, what: str) -> Program:
        """Returns the program. Raises NotProved, with `what` in the message, if its proof
        failed.
        """
        if self.report is not None and not self.ok:
            raise NotProved(f"{what}: {self.report.summary}; nothing was written")
        return self.program


def write_if_proved(found: P, hooks: Hooks) -> P:
    """Returns the model, after the hooks have written it unless its proof failed."""
    if found.ok and hooks.write is not None:
        hooks.write(found.program)
    return found


@contextmanager
def writing(options: Declaration, *models: Any) -> Iterator[None]:
    """Protects the files that a job with these options and models reads. Raises InputError, before
    the work, if an option writes one of them or a file of another option.
    """
    paths = [os.fspath(model) for model in models if isinstance(model, (str, os.PathLike))]
    used = [(o, getattr(options, o.name)) for o in options_of(type(options)) if o.file]
    owned = [name for o, _ in used for name in o.names]
    with protecting([*paths, *files_read(options)], owned):
        writes = Writes()
        for o, value in used:
            if o.file == "read" or not value:
                continue
            for path in map(Path, names_of(value)):
                if o.file == "into":
                    writes.add_folder(f"{o.name} writes", path, o.names)
                else:
                    refuse(path)
                    writes.add(f"{o.name} writes", path)
        yield


def with_room(model: ModelLike) -> Hooks:
    """Returns the hooks of a job whose result has the type of `model`, so that its weights
    must fit.
    """
    return Hooks(on_read=lambda program: check_room(program, model))
