"""A recipe as options of `onnxgrad optimize`; those that the user wrote out win."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any

from onnxgrad.jobs.recipe import OPTIONS, Recipe
from onnxgrad.limits import read_size

# keys whose option is not called like them
_OPTION = {
    "for": "for_",
    "verify.run": "no_verify",
    "verify.dims": "dim",
    "verify.seeds": "seed",
    "verify.legs": "leg",
    "verify.inputs": "input",
}


def with_recipe(
    args: argparse.Namespace, recipe: Recipe, model: str, given: Sequence[str] = ()
) -> argparse.Namespace:
    """A copy of `args` with the recipe's options for `model`, except those among the words
    `given`.
    """
    made = copy.copy(args)
    for key, value in recipe.of(model).items():
        if key not in OPTIONS:
            continue  # what is required of the result
        name = _OPTION.get(key, key.rpartition(".")[2])
        flags = [f"--{name.rstrip('_').replace('_', '-')}"]
        if key == "passes":
            flags.append("--preset")  # which says what runs as well
        if not any(w.partition("=")[0] in flags for w in given):
            setattr(made, name, _argument(key, value))
    return made


def _argument(key: str, value: Any) -> Any:
    """A TOML value as what the option would have given."""
    if key == "passes" and isinstance(value, list):
        return ",".join(value)
    if key == "verify.run":
        return not value
    if key == "verify.dims":
        return [f"{name}={size}" for name, size in value.items()]
    if key in ("verify.atol", "verify.rtol"):
        own = value if isinstance(value, dict) else {"": value}
        return [
            f"{output}={number!r}" if output else repr(number) for output, number in own.items()
        ]
    if key == "verify.metric":
        return value if isinstance(value, list) else [value]
    if key == "verify.max_memory":
        return read_size(value)
    return float(value) if key == "verify.timeout" else value
