"""A block as it stands before something is tried on it, to return to when that is given up."""

from __future__ import annotations

from itertools import islice

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock


class Savepoint:
    """Remembers a block; `restore` takes back whatever was added to it since, to the last byte of
    what saving writes: bindings, constants, names, and whether the block counts as changed.

    It costs no copy, so only additions can be taken back: what is tried must not alter what stands
    there already. One savepoint of a program is open at a time.
    """

    __slots__ = (
        "_bindings",
        "_block",
        "_initializers",
        "_opsets",
        "_proto",
        "_sparse",
        "_unchanged",
    )

    def __init__(self, block: BindingBlock) -> None:
        self._block = block
        self._bindings = len(block.bindings)
        self._initializers = len(block.initializers)
        self._sparse = len(block.sparse)
        root = block if block.owner is None else block.root
        self._opsets = len(root.opsets)
        self._proto = root.proto
        # of attempts, of which there are very many, most find the block changed
        self._unchanged = [] if block.changed else _unchanged(block)
        block.program.names.mark()

    def restore(self) -> None:
        """Take back what was added. Raises InternalError where something older reads it."""
        block = self._block
        added = len(block.bindings) - self._bindings
        for b in list(islice(reversed(block.bindings), max(added, 0))):
            block.remove(b)
        for name in list(block.initializers)[self._initializers :]:
            block.remove_initializer(block.initializers[name])
        del block.sparse[self._sparse :]
        root = self._block.root
        root.proto = self._proto
        if isinstance(root.opsets, dict):
            for domain in list(root.opsets)[self._opsets :]:
                del root.opsets[domain]
        for inner, owner, changed in self._unchanged:
            inner.changed = False
            if owner is not None:
                owner.changed = changed
        block.program.names.forget()


def _unchanged(block: BindingBlock) -> list[tuple[BindingBlock, Binding | None, bool]]:
    """The block and those around it as far as nothing touched them, each with its owner and
    whether that is changed.
    """
    found = []
    inner: BindingBlock | None = block
    while inner is not None and not inner.changed:
        owner = inner.owner
        found.append((inner, owner, owner is not None and owner.changed))
        inner = None if owner is None else owner.block
    return found
