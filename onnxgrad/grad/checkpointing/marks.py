"""Checkpoint marks in the file: metadata of the node that reads the marked value.

`onnxgrad.checkpoint.start` and `onnxgrad.checkpoint.end` hold a JSON list: the positions of the
marked operands, and the names of marked values that only a nested graph of the node reads. A
gradient graph contains no marks. The marks of a nested graph (a body of Loop or Scan, a branch)
hold where its gradient runs it again: they cut one step in segments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.grad.checkpointing.recomputation import Marks, outermost
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import Var

START, END = "onnxgrad.checkpoint.start", "onnxgrad.checkpoint.end"


def write(marks: Marks, *, named: bool = True) -> None:
    """Writes marks into the metadata of the nodes that read the values. Unless `named`, a value
    that only a nested graph reads is a position too, which copies of the node keep.
    """
    for key, uses in ((START, marks.start), (END, marks.end)):
        for b in dict.fromkeys(b for _, b in uses):
            marked, known = {v for v, r in uses if r is b}, b.inputs if named else _positions(b)
            places: list[int | str] = [i for i, v in enumerate(known) if v in marked]
            places += sorted(v.name for v in marked if v not in known)
            b.set_metadata({**_metadata(b), key: json.dumps(places)})


def _positions(b: Binding) -> list[Var | None]:
    return [*b.inputs, *dict.fromkeys(v for v in b.reads() if v not in b.inputs)]


def settle(blocks: Iterable[BindingBlock]) -> None:
    """Replaces names in the marks of these blocks by positions. Raises InputError for a damaged
    mark.
    """
    for block in blocks:
        found = take(block)
        if found is not None:
            write(found.now(), named=False)


def drop(blocks: Iterable[BindingBlock]) -> None:
    """Removes the marks of these blocks. Raises InputError for a damaged mark."""
    for block in blocks:
        take(block)


class FileMarks:
    """The marks of a file, after their removal from its nodes. Calls that read marked values may
    have been opened since.
    """

    def __init__(self, block: BindingBlock, marks: Marks) -> None:
        self._block, self._marks, self._bindings = block, marks, set(block.bindings)

    @property
    def values(self) -> list[Var]:
        """The marked values."""
        marked = {v for v, _ in (*self._marks.start, *self._marks.end)}
        return [v for b in self._block.bindings for v in b.outputs if v is not None and v in marked]

    def now(self) -> Marks:
        """The marks, moved to the bindings that replaced their readers."""
        return Marks(
            frozenset(self._uses(self._marks.start)), frozenset(self._uses(self._marks.end))
        )

    def _uses(self, uses: Iterable[tuple[Var, Binding]]) -> list[tuple[Var, Binding]]:
        found = []
        for v, b in uses:
            new = [outermost(u, v) for u in v.users] if b not in self._block.bindings else []
            found += [(v, u) for u in new if u not in self._bindings] if new else [(v, b)]
        return found


def take(block: BindingBlock) -> FileMarks | None:
    """Removes the marks and returns them; None if there are none. Raises InputError for a damaged
    mark.
    """
    found: dict[str, set[tuple[Var, Binding]]] = {START: set(), END: set()}
    for b in block.bindings:
        metadata = _metadata(b)
        keys = [key for key in (START, END) if key in metadata]
        for key in keys:
            found[key].update((v, b) for v in _marked(b, key, metadata.pop(key)))
        if keys:
            b.set_metadata(metadata)
    if not any(found.values()):
        return None
    return FileMarks(block, Marks(frozenset(found[START]), frozenset(found[END])))


def _marked(b: Binding, key: str, text: str) -> list[Var]:
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, list):
        raise InputError(f"metadata {key} of '{b}' is not a JSON list of operands: {text[:40]!r}")
    operands: dict[Any, Var | None] = {v.name: v for v in b.reads()}
    operands.update(enumerate(_positions(b)))
    found = []
    for place in places:
        v = operands.get(place) if isinstance(place, (str, int)) else None
        if v is None:
            raise InputError(
                f"metadata {key} of '{b}' marks operand {place!r}, which it does not read"
            )
        found.append(v)
    return found


def _metadata(b: Binding) -> dict[str, str]:
    return {e.key: e.value for e in b.node.metadata_props}
