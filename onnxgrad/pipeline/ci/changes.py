"""What changed in a model since the lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnxgrad.pipeline.ci.lock import settled
from onnxgrad.pipeline.facts import Facts


@dataclass(frozen=True)
class Change:
    """`what` (`bytes`, `operators.MatMul`, `inputs.x`) was `before` and is `after`, None where it
    is not there.
    """

    what: str
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return dict(vars(self))


def changes(before: Facts, after: Facts) -> tuple[Change, ...]:
    """Everything that changed, the interface first; of what is measured only what measuring again
    does not explain.
    """
    old, new = before.to_dict(), settled(after, before).to_dict()
    return tuple(found for key in old for found in _changes(key, old[key], new[key]))


def _changes(key: str, old: Any, new: Any) -> Iterator[Change]:
    if key in ("inputs", "outputs", "opset", "operators"):
        yield from _of_table(key, old, new)
        if list(old) != list(new) and sorted(old) == sorted(new) and key != "operators":
            yield Change(f"order of {key}", ", ".join(old), ", ".join(new))
    elif key == "latency":
        ratios = [None if timed is None else timed["ratio"] for timed in (old, new)]
        if old != new:
            yield Change(key, *ratios)
    elif old != new:
        yield Change(key, old, new)


def _of_table(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield Change(f"{key}.{name}", old.get(name), new.get(name))
