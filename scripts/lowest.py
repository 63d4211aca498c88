"""The lowest versions that pyproject.toml declares, as constraints for pip: one `name==version` a
line.

python scripts/lowest.py >lowest.txt && pip install -c lowest.txt '.[cpu,test]'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tomllib

_ROOT = Path(__file__).resolve().parents[1]
_FLOOR = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)(?:;.*)?")


def lowest(extras: tuple[str, ...] = ("cpu", "test")) -> Iterator[str]:
    """Returns the constraint of every dependency, extras included. Raises ValueError for a
    dependency without exactly one floor.
    """
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in extras for r in project["optional-dependencies"][extra]),
    ]
    for requirement in wanted:
        if "python_version<'3.11'" in requirement.replace(" ", ""):
            continue  # the tests want Python 3.11
        match = _FLOOR.fullmatch(requirement.replace(" ", ""))
        if match is None:
            raise ValueError(f"{requirement!r} has no floor of the form name>=version")
        yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    print(*lowest(), sep="\n")
