"""Recipes: the options of `optimize`, and what must come out, in `[tool.onnxgrad]` of
pyproject.toml or a TOML file.

    [tool.onnxgrad]                       # in a file given with --config: at top level
    preset = "default"                    # or passes = "a,b{option=value}" (or a list of such)
    without = ["combine-parallel-conv"]
    merge = "auto"
    target_opset = 23

    [tool.onnxgrad.verify]
    dims = { batch = 4 }
    seeds = [0, 1]
    tolerance = 1e-6                      # of max|y|, on top of the calibrated one

    [tool.onnxgrad.models."unet*.onnx"]   # the options above again, for these models alone, and:
    require = { MatMul = "<=164", "MatMul+Gemm" = "<=200", nodes = "<1500" }

An option on the command line wins over the recipe (`cli.recipe_options`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.program import Program
from onnxgrad.ir.stats import stats_of
from onnxgrad.limits import MOST_SECONDS, read_size
from onnxgrad.pipeline.requirements import miss, operators_of, requirement, unknown_operator
from onnxgrad.verify import Report
from onnxgrad.verify.proof import LEGS
from onnxgrad.verify.running.session import MOST_THREADS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = "tool.onnxgrad"
# key -> the type it has in TOML; `cli.recipe_options` knows the option of `optimize` that says the
# same
OPTIONS: dict[str, type] = {
    "preset": str,
    "passes": object,
    "without": list,
    "merge": str,
    "target_opset": int,
    "allow_growth": bool,
    "verify.run": bool,
    "verify.provider": str,
    "verify.dims": dict,
    "verify.seeds": list,
    "verify.legs": list,
    "verify.threads": int,
    "verify.timeout": object,
    "verify.max_memory": object,
    "verify.inputs": list,
    "verify.allow_empty": list,
}
_LATER = ("parameters", "bytes")
_GATES = ("require", "verify.tolerance")


@dataclass(frozen=True)
class Recipe:
    """The flat options for all models, and those for the models that a glob means; `where` names
    the file.
    """

    where: str
    common: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, model: str) -> dict[str, Any]:
        """The options for one model: the common ones, then those of every glob that means its
        path or file name.
        """
        found = dict(self.common)
        for pattern, own in self.models.items():
            if _means(pattern, model):
                joined = {**found.get("require", {}), **own.get("require", {})}
                found.update(own)
                found["require"] = joined
        return found

    def unmet(self, models: Iterable[str]) -> list[str]:
        """The globs that mean none of the models: mistyped, or meant for models of another call."""
        given = list(models)
        return [
            pattern for pattern in self.models if not any(_means(pattern, model) for model in given)
        ]

    def check_names(self, model: str, program: Program) -> None:
        """Raises InputError for a required operator that neither a schema has nor the model, before
        it is rewritten.

        Of a domain without schemas it may be an operator that the rewrites bring; `check` knows.
        """
        unknown = unknown_operator(
            self.of(model).get("require", {}), operators_of(program), others=True
        )
        if unknown:
            raise InputError(f"{self.where}: {unknown}")

    def check(self, model: str, program: Program, report: Report | None) -> None:
        """Raises NotProved, exit code 1, when the optimised model misses what the recipe requires,
        and InputError for a required operator that exists nowhere.
        """
        own = self.of(model)
        required = own.get("require", {})
        unknown = unknown_operator(
            required, operators_of(program) | set(stats_of(program.proto).operators)
        )
        if unknown:
            raise InputError(f"{self.where}: {unknown}")
        missed = [words for name, text in required.items() if (words := miss(program, name, text))]
        limit = own.get("verify.tolerance")
        worst = (
            None
            if report is None or limit is None
            else max((d.rel for d in report.differences), default=0.0)
        )
        if worst is not None and limit is not None and not worst <= limit:
            missed.append(f"a difference of {worst:.2e} of max, tolerance = {limit:g}")
        if missed:
            raise NotProved(
                f"{self.where} requires otherwise: {'; '.join(missed)}; nothing was written"
            )


def _means(pattern: str, model: str) -> bool:
    return fnmatchcase(model, pattern) or fnmatchcase(Path(model).name, pattern)


def find(config: str | None) -> Recipe | None:
    """The recipe of `--config FILE`, else of pyproject.toml in the current folder if it has the
    table; None otherwise.

    Raises InputError for a file that is missing or no TOML, and for an unknown key.
    """
    path = Path("pyproject.toml") if config is None else Path(config)
    if config is None and not path.is_file():
        return None
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: {e.strerror or e}") from e
    except (
        ValueError,
        RecursionError,
    ) as e:  # no TOML; or more digits, deeper arrays than Python reads
        if config is None:
            return None  # somebody else's file
        raise InputError(f"{path}: not TOML: {' '.join(str(e).split())}") from e
    table = data.get("tool", {}).get("onnxgrad") if isinstance(data.get("tool"), dict) else None
    if table is None:
        if config is None:
            return None
        if path.name == "pyproject.toml":
            raise InputError(f"{path}: has no table [{_TABLE}]")
        table = data
    return parse(table, str(path))


def parse(table: Any, where: str) -> Recipe:
    """A recipe from its table. Raises InputError naming the key."""
    if not isinstance(table, dict) or not isinstance(table.get("models", {}), dict):
        raise InputError(f"{where}: [{_TABLE}] and its models are tables")
    models = {
        pattern: _flat(own, f"{where}: models.{pattern!r}")
        for pattern, own in table.get("models", {}).items()
    }
    return Recipe(where, _flat({k: v for k, v in table.items() if k != "models"}, where), models)


def _flat(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict) or not isinstance(table.get("verify", {}), dict):
        raise InputError(f"{where}: is no table")
    flat = {k: v for k, v in table.items() if k != "verify"}
    flat.update((f"verify.{k}", v) for k, v in table.get("verify", {}).items())
    for key, value in flat.items():
        if key not in OPTIONS and key not in _GATES:
            raise InputError(
                f"{where}: unknown key '{key}'; there are "
                f"{', '.join((*OPTIONS, *_GATES, 'models'))}"
            )
        wanted = {"require": dict, "verify.tolerance": object}.get(key) or OPTIONS[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = (
            is_number
            if key in ("verify.timeout", "verify.tolerance")
            else isinstance(value, wanted)
        )
        if not fits or (key == "passes" and not isinstance(value, (str, list))):
            raise InputError(f"{where}: '{key}' has the wrong type: {repr(value)[:80]}")
    _check_items(flat, where)
    _check_numbers(flat, where)
    for name, text in flat.get("require", {}).items():
        _check_required(name, where)
        requirement(text)
    return flat


def _check_items(flat: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a list with something in it that cannot be there."""
    items: dict[str, Callable[[Any], bool]] = {
        "verify.seeds": lambda v: type(v) is int and 0 <= v < 1 << 63,
        "without": lambda v: isinstance(v, str),
        "verify.inputs": lambda v: isinstance(v, str),
        "verify.legs": LEGS.__contains__,
        "verify.allow_empty": lambda v: isinstance(v, str),
    }
    for key, allowed in items.items():
        for item in flat.get(key, ()):
            if not allowed(item):
                raise InputError(f"{where}: '{key}' cannot have {repr(item)[:80]}")
    passes = flat.get("passes", "")
    if not all(
        isinstance(item, str) for item in (passes if isinstance(passes, list) else [passes])
    ):
        raise InputError(f"{where}: 'passes' is a list of names, or names separated by commas")


def _check_numbers(flat: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a limit out of its range."""
    threads = flat.get("verify.threads", 1)
    if isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"{where}: 'verify.threads' must be a number from 1 to {MOST_THREADS}")
    if "verify.max_memory" in flat:
        read_size(flat["verify.max_memory"])
    timeout = flat.get("verify.timeout", 1.0)
    if not 0 < timeout < MOST_SECONDS:
        raise InputError(
            f"{where}: 'verify.timeout' must be a positive number of seconds, not {timeout}"
        )


def _check_required(name: str, where: str) -> None:
    """Raises InputError for a key of `require` that stands for no operators, nor for all nodes."""
    for part in map(str.strip, name.split("+")):
        if part in _LATER or (part in ("", "nodes") and name != "nodes"):
            what = "cannot be required yet" if part in _LATER else "does not stand for operators"
            raise InputError(f"{where}: require: '{part}' {what}: name operators, or nodes alone")
