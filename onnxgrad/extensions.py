"""Extension points. A plug-in declares names as entry points of its package, in the groups of
`onnxgrad help rules`; the object behind a name is imported when the name is first used.

`plugins/entry_points.txt` declares the plug-ins of this package in the format that pip installs.
Entry points of the working folder are ignored: it may be a stranger's, beside a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.interpreter import is_working_folder

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_BUILT_IN = Path(__file__).parent / "plugins" / "entry_points.txt"
_PREFIX = "onnxgrad."


def plugged(group: str, name: str) -> Any:
    """Returns the object that a plug-in declares as `name` in the group `onnxgrad.<group>`, or
    None. Built-in plug-ins come first. Raises InputError if another one cannot be imported.
    """
    place = built_in(group).get(name)
    if place is not None:
        return _imported(place)
    place = installed(group).get(name)
    if place is None:
        return None
    try:
        return _imported(place)
    except OnnxgradError:
        raise
    except Exception as error:  # the plug-in is the user's program
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"plug-in '{name}' of {_PREFIX}{group}, {place}: {why}") from error


def built_in(group: str) -> dict[str, str]:
    """Returns the place, `module:object`, of each name that this package declares in a group."""
    return _table().get(_PREFIX + group, {})


def attribute(group: str, module: str, name: str) -> Any:
    """Returns the object that this package declares in a group as a name of a module. Raises
    AttributeError for any other name.
    """
    if name not in built_in(group):
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    return plugged(group, name)


@cache
def installed(group: str) -> dict[str, str]:
    """Returns the places of the names that installed packages declare in a group. Imports nothing
    of them. If several packages declare a name, the first on the path has it.
    """
    found: dict[str, str] = {}
    for _, point in _points():
        if point.group == _PREFIX + group:
            found.setdefault(point.name, point.value)
    return found


@cache
def packages() -> dict[str, str]:
    """Returns the versions of the installed packages that extend this one, by name."""
    return {
        found.metadata["Name"]: found.version
        for found, point in _points()
        if point.group.startswith(_PREFIX)
    }


def _points() -> Iterator[tuple[Distribution, EntryPoint]]:
    """Yields the entry points of the packages on the path, without those of the working folder."""
    from importlib.metadata import distributions  # takes longer than `onnxgrad --help`

    path = [entry for entry in sys.path if not is_working_folder(entry)]
    for distribution in distributions(path=path):
        yield from ((distribution, point) for point in distribution.entry_points)


@cache
def _table() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    group: dict[str, str] = {}
    for line in _BUILT_IN.read_text(encoding="utf-8").splitlines():
        name, is_entry, place = line.partition(" = ")
        if is_entry:
            group[name] = place
        elif line:
            group = found.setdefault(line.strip("[]"), {})
    return found


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
