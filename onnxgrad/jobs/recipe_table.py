"""The tables of a recipe as flat options: what has no meaning is named, with what was meant."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.jobs.requirements import QUANTITIES, bound_of
from onnxgrad.limits import MOST_SECONDS, read_size
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.vocabulary import LEGS, MOST_THREADS
from onnxgrad.wording import did_you_mean

TABLE = "tool.onnxgrad"
_IN_WORDS: dict[type, str] = {
    str: "text", list: "a list", dict: "a table", int: "a whole number", bool: "true or false",
}  # fmt: skip
# key -> the type it has in TOML; `cli.recipe_options` knows the option of `optimize` that says the
# same
OPTIONS: dict[str, type] = {
    "preset": str,
    "passes": object,
    "without": list,
    "merge": str,
    "target_opset": int,
    "for": str,
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
    "verify.atol": object,
    "verify.rtol": object,
    "verify.metric": object,
    "verify.coverage": object,
}
# what must come out, and how `onnxgrad ci` measures for it
GATES: dict[str, type] = {
    "require": dict,
    "allow_unproved": bool,
    "verify.tolerance": object,
    "bench.run": bool,
    "bench.seconds": object,
    "bench.rounds": int,
}
# of the table `ci`, for all models together
OF_CI: dict[str, type] = {"models": list, "out": str, "lock": str}
_SUBTABLES = ("verify", "bench")
_NUMBERS = ("verify.timeout", "verify.tolerance", "bench.seconds")


def heading(where: str, name: str) -> str:
    """How a table of a recipe is headed in that file."""
    return f"[{TABLE}.{name}]" if Path(where).name == "pyproject.toml" else f"[{name}]"


def flat_options(
    table: Any, where: str, folder: Path, others: Iterable[str] = ()
) -> dict[str, Any]:
    """The options of a table by flat keys (`verify.seeds`), files from `folder`. `others`: the keys
    that the caller reads itself. Raises InputError naming the key.
    """
    if not isinstance(table, dict):
        raise InputError(f"{where}: is no table")
    for name in _SUBTABLES:
        if not isinstance(table.get(name, {}), dict):
            raise InputError(f"{where}: '{name}' is no table")
    flat = {k: v for k, v in table.items() if k not in (*_SUBTABLES, *others)}
    for name in _SUBTABLES:
        flat.update((f"{name}.{k}", v) for k, v in table.get(name, {}).items())
    known = {**OPTIONS, **GATES}
    for key, value in flat.items():
        check_key(key, value, known, where, others)
    _check_items(flat, where)
    _check_numbers(flat, where)
    _check_bounds(flat, where)
    for name, text in flat.get("require", {}).items():
        _check_required(name, where)
        try:
            bound_of(name, text)
        except InputError as error:
            raise InputError(f"{where}: require: {error}") from None
    if "verify.inputs" in flat:
        flat["verify.inputs"] = [_beside(folder, item) for item in flat["verify.inputs"]]
    return flat


def check_key(
    key: str, value: Any, known: Mapping[str, type], where: str, others: Iterable[str] = ()
) -> None:
    """Raises InputError for a key that is not known, or a value of another type."""
    names = [*known, *others]
    if key not in known:
        hint = did_you_mean(key, names, f"there are {', '.join(names)}")
        raise InputError(f"{where}: unknown key '{key}'; {hint}")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_bool = isinstance(value, bool) and known[key] is not bool
    fits = is_number if key in _NUMBERS else isinstance(value, known[key]) and not is_bool
    if not fits or (key == "passes" and not isinstance(value, (str, list))):
        wanted = _IN_WORDS.get(known[key])
        hint = f"; {wanted} is wanted" if wanted else ""
        raise InputError(f"{where}: '{key}' has the wrong type: {repr(value)[:80]}{hint}")


def _beside(folder: Path, item: str) -> str:
    """`[NAME=]FILE` with the file that lies in `folder`."""
    name, equals, file = item.partition("=")
    if not equals or (folder / item).exists():
        return os.path.join(folder, item)
    return f"{name}={os.path.join(folder, file)}"


def _check_items(flat: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a list with something in it that cannot be there."""
    items: dict[str, Callable[[Any], bool]] = {
        "verify.seeds": lambda v: type(v) is int and 0 <= v < 1 << 63,
        "without": lambda v: isinstance(v, str),
        "verify.inputs": lambda v: isinstance(v, str),
        "verify.legs": LEGS.__contains__,
        "verify.allow_empty": lambda v: isinstance(v, str),
    }
    for key in ("verify.seeds", "verify.legs"):
        if key in flat and not flat[key]:
            raise InputError(f"{where}: '{key}' is empty: name at least one, or leave it out")
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
    if "verify.coverage" in flat:
        try:
            wanted_share(flat["verify.coverage"])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if "verify.max_memory" in flat:
        read_size(flat["verify.max_memory"])
    for key in ("verify.timeout", "bench.seconds"):
        if not 0 < flat.get(key, 1.0) < MOST_SECONDS:
            raise InputError(
                f"{where}: '{key}' must be a positive number of seconds, not {flat[key]}"
            )
    if not 0 <= flat.get("verify.tolerance", 0.0) < math.inf:
        raise InputError(f"{where}: 'verify.tolerance' must be a finite number from 0 on")
    if flat.get("bench.rounds", 1) < 1:
        raise InputError(f"{where}: 'bench.rounds' must be at least 1")


def _check_bounds(flat: Mapping[str, Any], where: str) -> None:
    """Raises InputError for what is no bound of a proof."""
    atol, rtol, metric = (flat.get(f"verify.{name}") for name in ("atol", "rtol", "metric"))
    texts = metric if isinstance(metric, list) else [] if metric is None else [metric]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: 'verify.metric' is text such as \"cosine=0.999\", or a list")
    try:
        Bounds.of(atol, rtol, texts)
    except InputError as error:
        raise InputError(f"{where}: verify: {error}") from None


def _check_required(name: str, where: str) -> None:
    """Raises InputError for a key of `require` that stands neither for operators nor for one
    quantity.
    """
    for part in map(str.strip, name.split("+")):
        if not part or (part in QUANTITIES and name != part):
            raise InputError(
                f"{where}: require: '{part}' does not stand for operators: name operators, or one "
                f"of {', '.join(QUANTITIES)} alone"
            )
