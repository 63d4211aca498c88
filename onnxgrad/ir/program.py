"""A model: the main binding block, the local functions, and the other fields of the file, which are
kept unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.derivations import Derivations
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.protobufs import elements
from onnxgrad.ir.storage.external_data import Digests, internalize
from onnxgrad.ir.storage.stored_arrays import as_stored, is_storable
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted, escaped

_ROWS = 40  # inputs or outputs in a notebook
_WIDEST = 400  # characters of a cell

FunctionKey = tuple[str, str, str]
# descriptive fields of a model beside its metadata; an unset field is the empty text, or 0
HEADER = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


class Journal(Protocol):
    """Learns of each change of a program's graphs just before it happens (`rewrite.journal`)."""

    def added(self, binding: Binding) -> None:
        """A binding is new."""

    def changes(self, binding: Binding) -> None:
        """Operands, results, attributes or names of a binding change, or it is removed."""

    def frames(self, block: BindingBlock) -> None:
        """Inputs or outputs of a block, or their names, change."""

    def constant(self, var: Var, new: bool) -> None:
        """An initializer is `new`, or is removed, or its name or value changes."""


class Names(set[str]):
    """Every name of a value or node that a program uses or has used."""

    def __init__(self) -> None:
        super().__init__()
        self._spare: dict[str, int] = {}
        # since the last mark: the hint, its number before, and the new name
        self._taken: list[tuple[str, int | None, str]] = []

    def fresh(self, hint: str) -> str:
        """Reserves a free name and returns it: `hint`, else `hint_2`, `hint_3`, ..."""
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
        """Starts recording the names that are taken."""
        self._taken.clear()

    def forget(self) -> None:
        """Frees the names that were taken since the last mark, as if they had never been taken."""
        while self._taken:
            hint, before, name = self._taken.pop()
            self.discard(name)
            if before is None:
                del self._spare[hint]
            else:
                self._spare[hint] = before


class Program:
    """Owns the main block, the functions (by domain, name, overload), opset imports, IR version and
    metadata.

    `proto` is the model as it was read and is never changed. `folder` holds its external data.
    `digests` are those of the data that verification read or a file received. `metadata` holds the
    model's metadata by key, and `header` its other descriptive fields (HEADER). `save` writes
    changes of both.
    """

    def __init__(self, proto: ModelProto, folder: Path | None, path: Path | None = None) -> None:
        self.proto = proto
        self.folder = folder
        self.digests = Digests()
        self.path = path
        self.ir_version: int = proto.ir_version
        self.metadata: dict[str, str] = {e.key: e.value for e in proto.metadata_props}
        self.header: dict[str, str | int] = {name: getattr(proto, name) for name in HEADER}
        self.opsets = domains.versions(proto.opset_import)
        self.functions: dict[FunctionKey, BindingBlock] = {}
        self.names = Names()
        # counts bindings added, removed or changed to another operator
        self.edits = 0
        self.journal: Journal | None = None
        self.derivations: Derivations | None = None
        # constants whose readers read an equal one before
        self.stand_ins: set[str] = set()
        self.main = BindingBlock(self, proto.graph, self.opsets)

    @property
    def opset(self) -> int:
        """The version of the default operator domain."""
        return self.opsets.get("", 0)

    @cached_property
    def proto_bytes(self) -> int:
        """The size of the model that was read; computing it serializes the model."""
        return int(self.proto.ByteSize())

    def blocks(self) -> list[BindingBlock]:
        """Every block of the program: main, function bodies and the blocks nested in them; outer
        before inner.
        """
        found = [self.main, *self.functions.values()]
        for block in found:  # grows during the walk
            found += [nested for b in block.bindings for nested in b.blocks.values()]
        return found

    def text(self) -> str:
        """The text of the main block, then that of each function under its full name."""
        functions = [
            b.text("::".join(part for part in key if part)) for key, b in self.functions.items()
        ]
        return "\n\n".join([self.main.text(), *functions])

    def check_block(self, block: BindingBlock) -> None:
        """Raises InternalError unless def-use chains are exact, definitions consistent, names
        unique and operands visible, without a cycle.
        """
        visible: dict[str, Var] = {}
        outer = None if block.owner is None else block.owner.block
        while outer is not None:
            visible = {**{v.name: v for v in outer.vars()}, **visible}
            outer = None if outer.owner is None else outer.owner.block
        checker = _Checker()
        checker.block(block, visible)
        for var in checker.defined:
            if Counter(var.users) != checker.reads.get(var, Counter()):
                raise InternalError(f"users of '{var.name}' are recorded wrongly")
            if var.returned != checker.returns[var]:
                raise InternalError(
                    f"'{var.name}' is returned {checker.returns[var]} times, "
                    f"recorded as {var.returned}"
                )

    def __repr__(self) -> str:
        """Returns a line without the graph."""
        name = self.main.name or "model"
        return f"Program({name}: {counted(len(self.main.bindings), 'node')}, opset {self.opset})"

    def _repr_html_(self) -> str:
        main = self.main
        name = self.path.name if self.path is not None else main.name or "model"
        count = sum(1 for _ in main.walk())
        sizes = counted(count, "node"), counted(len(main.initializers), "initializer")
        facts = f"{', '.join(sizes)}, opset {self.opset}"
        inputs = [v for v in main.inputs if v.initializer is None]
        rows = [*_rows("input", inputs), *_rows("output", main.outputs)]
        return (
            f'<div class="onnxgrad"><b>{escaped(name)}</b> <span style="opacity:.65">{facts}</span>'
            f"<table>{''.join(rows)}</table></div>"
        )

    def array(self, tensor: TensorProto) -> Array:
        """Returns the elements of a tensor; external data is read from the model's folder and not
        kept.

        Raises InputError if the data is damaged, or external data is missing or outside the folder.
        """
        if tensor.data_location == TensorProto.EXTERNAL:
            large = is_storable(tensor) and (raw_bytes(tensor) or 0) >= LARGE
            if large and self.folder is not None:
                return as_stored(tensor, self.folder)
            tensor = internalize(tensor, self.folder)
        return elements(tensor)


def cut(program: Program, v: Var) -> Var:
    """Replaces a value by an input with its name. Raises InputError if its type is unknown."""
    block = program.main
    if v.is_input and v.initializer is None:
        return v
    if v.type is None:
        raise InputError(f"the type of '{v.name}' is not known: it cannot be an input")
    if v.initializer is not None:
        block.ask_for(v)
        return v
    name = v.name
    v.rename(program.names.fresh(f"{name}_computed"))
    made = block.add_input(name, v.type)
    for user in list(v.users):
        for place in user.places(v):
            user.block.set_operand(user, place, made)
    return made


def called(binding: Binding) -> FunctionKey | None:
    """Returns domain, name and overload of the local function that a binding calls; None if it
    calls none.
    """
    functions = binding.block.program.functions
    if not functions:
        return None
    node = binding.node
    keys = [(domain, binding.op, node.overload) for domain in (binding.domain, node.domain)]
    return next((key for key in keys if key in functions), None)


def _rows(kind: str, values: Sequence[Var]) -> Iterable[str]:
    for v in values[:_ROWS]:
        texts = map(escaped, (kind, v.name[:_WIDEST], str(v.type or "?")[:_WIDEST]))
        cells = [f'<td style="text-align:left">{text}</td>' for text in texts]
        yield f"<tr>{''.join(cells)}</tr>"
    if len(values) > _ROWS:
        yield f"<tr><td>{kind}</td><td>and {len(values) - _ROWS:,} more</td></tr>"


class _Checker:
    """Walks the blocks and counts the readers of each value, and how often it is returned."""

    def __init__(self) -> None:
        self.defined: list[Var] = []
        self.reads: dict[Var, Counter[Binding]] = {}
        self.returns: Counter[Var] = Counter()

    def block(self, block: BindingBlock, outer: Mapping[str, Var]) -> None:
        own = list(block.vars())
        _check_definitions(block, own)
        self.defined += own
        # by name, because the file keeps names only
        visible = {**outer, **{v.name: v for v in own}}
        for b in block.bindings:
            self._binding(b, block, visible)
        for v in (*block.outputs, *block.pinned):
            if visible.get(v.name) is not v:
                raise InternalError(f"output '{v.name}' of block '{block.name}' is not visible")
            self.returns[v] += 1
        block.in_order()  # raises InternalError for a cycle

    def _binding(self, b: Binding, block: BindingBlock, visible: Mapping[str, Var]) -> None:
        if b.block is not block:
            raise InternalError(f"binding belongs to another block: {b}")
        for out in b.outputs:
            if out is not None and out.definition is not b:
                raise InternalError(f"'{out.name}' does not know its binding: {b}")
        for v in b.inputs:
            if v is None:
                continue
            if visible.get(v.name) is not v:
                raise InternalError(f"'{v.name}' is not visible here: {b}")
            self.reads.setdefault(v, Counter())[b] += 1
        for nested in b.blocks.values():
            if nested.owner is not b:
                raise InternalError(f"nested block '{nested.name}' does not know its binding: {b}")
            self.block(nested, visible)


def _check_definitions(block: BindingBlock, own: Sequence[Var]) -> None:
    """Raises InternalError unless each name is defined once, each value belongs to the block, and
    each constant has its tensor.
    """
    for name, count in Counter(v.name for v in own).items():
        if count > 1:
            raise InternalError(f"'{name}' is defined {count} times in block '{block.name}'")
    for v in own:
        if v.block is not block:
            raise InternalError(f"'{v.name}' belongs to another block than '{block.name}'")
    for name, v in block.initializers.items():
        if v.name != name or v.initializer is None:
            raise InternalError(f"initializer '{name}' of block '{block.name}' is recorded wrongly")
