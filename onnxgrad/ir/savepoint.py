"""A block before an attempt to rewrite it, to be restored if the attempt fails."""

from __future__ import annotations

from itertools import islice

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock


class Savepoint:
    """Remembers a block; `restore` removes everything that was added since, to the last byte of the
    saved file: bindings, constants, names, and whether the block counts as changed.

    It costs no copy, so only additions can be undone: the attempt must not alter older parts. One
    savepoint of a program is open at a time.
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
        # there are very many attempts, and most of them begin with a changed block
        self._unchanged = [] if block.changed else _unchanged(block)
        block.program.names.mark()

    def restore(self) -> None:
        """Remove the additions. Raises InternalError if something older reads one."""
        block = self._block
        added = len(block.bindings) - self._bindings
        for b in list(islice(reversed(block.bindings), max(added, 0))):
            block.remove(b)
        for name in list(block.initializers)[self._initializers :]:
            block.remove_initializer(block.initializers[name])
        del block.sparse[self._sparse :]
        root = block.root
        root.proto = self._proto
        for domain in list(root.opsets)[self._opsets :]:
            del root.opsets[domain]
        for inner, owner, changed in self._unchanged:
            inner.changed = False
            if owner is not None:
                owner.changed = changed
        block.program.names.forget()


def _unchanged(block: BindingBlock) -> list[tuple[BindingBlock, Binding | None, bool]]:
    """Returns the block and those around it as far as they are unchanged, each with its owner and
    whether the owner is changed.
    """
    found = []
    inner: BindingBlock | None = block
    while inner is not None and not inner.changed:
        owner = inner.owner
        found.append((inner, owner, owner is not None and owner.changed))
        inner = None if owner is None else owner.block
    return found
