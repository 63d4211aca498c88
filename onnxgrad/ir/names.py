"""Names: where fresh ones come from, and how values keep theirs, change them or hand them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxgrad.errors import InternalError

if TYPE_CHECKING:
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.var import Var


class Names(set[str]):
    """Every name that a program uses or used: of values and nodes alike."""

    def __init__(self) -> None:
        super().__init__()
        self._spare: dict[str, int] = {}
        # since the last mark: what was asked for, its number before, and the name it received
        self._taken: list[tuple[str, int | None, str]] = []

    def fresh(self, hint: str) -> str:
        """A name nobody uses: `hint`, else `hint_2`, `hint_3`, ... It is taken from now on."""
        before = self._spare.get(hint)
        name, count = hint, before or 1
        while name in self:
            count += 1
            name = f"{hint}_{count}"
        self._spare[hint] = count
        self._taken.append((hint, before, name))
        self.add(name)
        return name

    def mark(self) -> None:
        """From here on, remember which names are taken."""
        self._taken.clear()

    def forget(self) -> None:
        """Free the names that were taken since the last mark, as if nobody had asked for them."""
        while self._taken:
            hint, before, name = self._taken.pop()
            self.discard(name)
            if before is None:
                del self._spare[hint]
            else:
                self._spare[hint] = before


def rename(var: Var, name: str) -> None:
    """Give a value another name; the caller sees to it that the name is free. InternalError for
    a graph input.
    """
    if var.name == name:
        return
    if _is_interface(var):
        raise InternalError(
            f"renaming graph input '{var.name}' to '{name}' would change the model's interface"
        )
    if var.initializer is not None:  # keep the order of the file
        own = var.block.initializers
        var.block.initializers = {name if v is var else key: v for key, v in own.items()}
    var.name = name
    var.block.program.names.add(name)
    if var.definition is not None:
        var.definition.changed = True
    for user in var.users:
        user.changed = True
        user.block.touch()
    if var.returned:
        for block in blocks_returning(var):
            block.touch()
    var.block.touch()


def swap_names(a: Var, b: Var) -> None:
    """Let two values exchange their names."""
    was_a, was_b = a.name, b.name
    rename(a, was_b)
    rename(b, was_a)


def return_instead(block: BindingBlock, old: Var, new: Var) -> None:
    """Make `new` what `block` returns in the place of `old`, by the name of `old` (see
    `BindingBlock.replace`).
    """
    if old.block is block:
        if _is_interface(old):
            return
        if new.definition is not None and not new.returned and new.block is block:
            swap_names(old, new)
        else:
            name = old.name
            rename(old, block.program.names.fresh(name))
            new = _identity(block, name, new)
    elif any(v is new for v in block.outputs):
        new = _identity(block, block.program.names.fresh(new.name), new)
    for slots in (block.outputs, block.pinned):
        for i, v in enumerate(slots):
            if v is old:
                slots[i] = new
                old.returned -= 1
                new.returned += 1
    block.touch()


def _is_interface(var: Var) -> bool:
    """A graph input, whose name callers use. Inputs of nested blocks and functions are passed by
    position.
    """
    return var.is_input and var.block.owner is None and not var.block.is_function


def _identity(block: BindingBlock, name: str, new: Var) -> Var:
    node_name = block.program.names.fresh(f"{name}_identity")
    node = NodeProto(op_type="Identity", name=node_name, input=[new.name], output=[name])
    return block.append(node, [new], [new.type]).out


def blocks_returning(var: Var) -> list[BindingBlock]:
    """The value's own block and the nested ones that return it directly (rare, so looked for
    only when uses remain).
    """
    block = var.block
    own = sum(v is var for v in (*block.outputs, *block.pinned))
    found = [block] if own else []
    if own != var.returned:
        found += [
            nested
            for b in block.walk()
            for nested in b.blocks.values()
            if any(v is var for v in (*nested.outputs, *nested.pinned))
        ]
    return found
