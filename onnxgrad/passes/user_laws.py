"""The user's own rules and families, as a pass or from a Python file."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import PASSES, Pass, roots
from onnxgrad.passes.outline_as import OutlinedPattern, leave_out_body, outline
from onnxgrad.rewrite.combine import Family, apply_family
from onnxgrad.rewrite.onnxscript_rules import (
    OnnxscriptRule,
    apply_onnxscript_rules,
    onnxscript_rules,
)
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule, apply_rules
from onnxgrad.wording import option

Law = Rule | Family | OutlinedPattern | OnnxscriptRule


def laws_of(given: Any, name: str = "onnxscript-rule") -> tuple[Law, ...]:
    """A rule, family or outlined pattern; or the rules of onnxscript's RewriteRule or
    RewriteRuleSet, where `name` is for rules that have none. None of anything else. Raises
    InputError for a rule of onnxscript's that cannot be applied here.
    """
    return (given,) if isinstance(given, Law) else onnxscript_rules(given, name)


@dataclass(frozen=True)
class UserLaws(Pass):
    """Rules, everywhere until none applies; then each family, and each outlined pattern; then the
    rules of onnxscript.
    """

    name: ClassVar[str] = "own-laws"
    laws: tuple[Law, ...] = ()

    def run(self, program: Program, trace: Trace) -> None:
        """Apply the rules in every block, combine every group of each family, outline the
        patterns, then apply onnxscript's rules.
        """
        rules = [law for law in self.laws if isinstance(law, Rule)]
        for block in roots(program):
            apply_rules(block, rules, trace)
            for law in self.laws:
                if isinstance(law, Family):
                    apply_family(block, law, trace)
        for law in self.laws:
            if isinstance(law, OutlinedPattern):
                outline(law, program, trace)
        others = [law for law in self.laws if isinstance(law, OnnxscriptRule)]
        if others:
            apply_onnxscript_rules(program, others, trace)

    def proved(self, program: Program) -> None:
        """Leave out the bodies of operators that the runtime has."""
        for law in self.laws:
            if isinstance(law, OutlinedPattern) and not law.body:
                leave_out_body(law, program)


def run_plugins(files: Iterable[str]) -> list[Pass]:
    """Run Python files that register gradient rules, passes and the like; the rules, families and
    outlined patterns that each of them leaves at its top level, onnxscript's rules too, as a pass
    named as the file.

    Raises InputError that names file and line, and what the file raised.
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
    # it is the user's program: whatever it raises is theirs to see
    except (Exception, SystemExit) as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise InputError(f"{plugin}, line {line}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _searched(folder: str) -> Iterator[None]:
    """Modules that are found nowhere else are searched in the folder of a plugin while it loads."""
    sys.path.append(folder)
    try:
        yield
    finally:
        # the last one: it may be on the path of the user's program anyway
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


def _called(name: str, laws: Sequence[Law]) -> Pass:
    """A pass of this name, which `--passes` knows too."""
    if name in PASSES and not issubclass(PASSES[name], UserLaws):
        raise InputError(f"{_shown(name)}: there is a pass of this name: call the file otherwise")
    made = tuple(laws)
    namespace = {"name": name, "__doc__": "; ".join(_law(law) for law in made)}
    cls = make_dataclass(
        "UserLaws", [("laws", tuple, made)], bases=(UserLaws,), namespace=namespace, frozen=True
    )
    PASSES[name] = cls
    found: Pass = cls()
    return found


def _law(law: Law) -> str:
    if isinstance(law, OutlinedPattern):
        return f"what matches is a call of {law.domain}::{law.name}"
    if isinstance(law, OnnxscriptRule):
        return f"{law.name}, a rule of onnxscript"
    return (law.build.__doc__ or law.name).strip().split("\n")[0]
