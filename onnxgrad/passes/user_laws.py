"""The user's own rules and families, as a pass or from a Python file."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.extensions import plugged
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import PASSES, Pass, all_passes, register, roots
from onnxgrad.rewrite.combine import Family, apply_family
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule, apply_rules
from onnxgrad.wording import option


class ProgramLaw(ABC):
    """A law that rewrites a whole program, as a plug-in defines it."""

    name: str

    @classmethod
    @abstractmethod
    def apply(cls, laws: Sequence[Any], program: Program, trace: Trace) -> None:
        """Applies laws of this class together."""

    def proved(self, program: Program) -> None:  # noqa: B027  # most laws need nothing here
        """Removes parts that only the proof needed."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The law on one line."""


Law = Rule | Family | ProgramLaw


def laws_of(given: Any, name: str = "") -> tuple[Law, ...]:
    """Returns the laws in `given`: a rule, a family or a law over programs, or the rules of another
    package, such as onnxscript, that its plug-in reads. `name` is used for rules without a name.
    Returns nothing for any other object. Raises InputError if such a rule cannot be applied.
    """
    if isinstance(given, Law):
        return (given,)
    packages = dict.fromkeys(cls.__module__.partition(".")[0] for cls in type(given).__mro__)
    readers = (plugged("laws", package) for package in packages)
    return next((reader(given, name) for reader in readers if reader is not None), ())


@dataclass(frozen=True)
class UserLaws(Pass):
    """Applies rules until none matches, then families, then laws over programs."""

    name: ClassVar[str] = "own-laws"
    laws: tuple[Law, ...] = ()

    def run(self, program: Program, trace: Trace) -> None:
        """Applies the rules in every block, combines every group of each family, then applies the
        laws over programs, those of one class together.
        """
        rules = [law for law in self.laws if isinstance(law, Rule)]
        for block in roots(program):
            apply_rules(block, rules, trace)
            for law in self.laws:
                if isinstance(law, Family):
                    apply_family(block, law, trace)
        others = [law for law in self.laws if isinstance(law, ProgramLaw)]
        for kind in dict.fromkeys(type(law) for law in others):
            kind.apply([law for law in others if type(law) is kind], program, trace)

    def proved(self, program: Program) -> None:
        """Removes parts of laws that only the proof needed."""
        for law in self.laws:
            if isinstance(law, ProgramLaw):
                law.proved(program)


def pass_of(name: str) -> type[Pass] | None:
    """Returns the pass of that name, which may be registered or belong to a plug-in: a pass, or
    laws, from which a pass is made.
    """
    if name not in PASSES and (found := plugged("passes", name)) is not None:
        if isinstance(found, type):
            register(found)
        else:
            several = found if isinstance(found, (list, tuple)) else [found]
            _called(name, [law for each in several for law in laws_of(each, name)])
    return PASSES.get(name) or all_passes().get(name)


def run_plugins(files: Iterable[str]) -> list[Pass]:
    """Runs Python files that may register gradient rules, passes and the like. Returns one pass for
    each file with laws at its top level: rules (onnxscript's too), families, outlined patterns. The
    pass has the name of the file.

    Raises InputError with the file, the line and the exception if a file fails.
    """
    found: list[Pass] = []
    for name in files:
        own = [law for key, v in _run(name).items() for law in laws_of(v, key)]
        if own:
            found.append(_called(Path(name).stem.replace("_", "-"), own))
    return found


def _shown(name: str) -> str:
    return f"{option('--plugin', 'plugins:')} {name}"


def _run(name: str) -> dict[str, Any]:
    plugin = _shown(name)
    if not Path(name).is_file():
        raise InputError(f"{plugin}: no such file")
    try:
        with _searched(os.path.dirname(os.path.abspath(name))):
            return runpy.run_path(name)
    except OnnxgradError as error:
        raise InputError(f"{plugin}: {error}") from error
    # the file is the user's program: every exception is reported
    except (Exception, SystemExit) as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise InputError(f"{plugin}, line {line}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _searched(folder: str) -> Iterator[None]:
    """Searches modules in the folder of a plugin, after all other folders, while it loads."""
    sys.path.append(folder)
    try:
        yield
    finally:
        # the last occurrence: the user's program may have this folder on its path already
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


def _called(name: str, laws: Sequence[Law]) -> Pass:
    """Registers a pass of this name for the laws, so that `--passes` accepts it too."""
    if name in PASSES and not issubclass(PASSES[name], UserLaws):
        raise InputError(f"{_shown(name)}: a pass already has this name: rename the file")
    made = tuple(laws)
    namespace = {"name": name, "__doc__": "; ".join(_law(law) for law in made)}
    cls = make_dataclass(
        "UserLaws", [("laws", tuple, made)], bases=(UserLaws,), namespace=namespace, frozen=True
    )
    PASSES[name] = cls
    found: Pass = cls()
    return found


def _law(law: Law) -> str:
    if isinstance(law, ProgramLaw):
        return law.summary
    return (law.build.__doc__ or law.name).strip().split("\n")[0]
