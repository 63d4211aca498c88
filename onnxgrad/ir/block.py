"""The binding block: an ONNX graph seen as an ordered list of SSA statements `outs = Op(ins)`.

`Var` and `Binding` compare by identity. Def-use chains are exact at all times: they change only
through the methods of `BindingBlock`. The block is a view over the protobuf: a binding keeps the
NodeProto that it was read from, and an unchanged binding is written back as it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.derivations import LITERAL
from onnxgrad.ir.topological_order import topological_order
from onnxgrad.ir.types import TensorType, Type, type_from_proto
from onnxgrad.ir.var import Var
from onnxgrad.wording import printable, text_html

if TYPE_CHECKING:
    from onnxgrad.ir.program import Program


class BindingBlock:
    """Parameters, an ordered list of bindings, and outputs. The order has no meaning: `schedule`
    makes it topological.
    """

    def __init__(
        self,
        program: Program,
        proto: GraphProto | FunctionProto,
        opsets: dict[str, int],
        owner: Binding | None = None,
    ) -> None:
        self.program = program
        self.proto = proto
        self.opsets = opsets
        self.owner = owner
        self.inputs: list[Var] = []
        self.outputs: list[Var] = []
        # values that training_info and the like name: they stay, under their names
        self.pinned: list[Var] = []
        self.initializers: dict[str, Var] = {}
        self.sparse: list[Var] = []  # sparse initializers: carried, never computed with
        self.bindings: dict[Binding, None] = {}
        # declarations to write for values that came from elsewhere; None: write no declaration
        self.declared: dict[Var, ValueInfoProto | None] = {}
        # a glob of keys of metadata (and doc_string) of graph and declarations that is not written
        self.stripped = ""
        self.changed = False
        self.index: object = None  # `operator_index` keeps its index here
        self._file_types: tuple[dict[str, Type], dict[str, Type]] | None = None

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def file_types(self) -> tuple[dict[str, Type], dict[str, Type]]:
        """The types that the file declares: of intermediate values, and of a graph's outputs."""
        if self._file_types is None:
            outputs = self.proto.output if isinstance(self.proto, GraphProto) else ()
            self._file_types = _types_in(self.proto.value_info), _types_in(outputs)
        return self._file_types

    @property
    def is_function(self) -> bool:
        """Whether the block is in the body of a local function, where most types are unknown."""
        block = self  # inlined from `root`: runs for every binding
        while block.owner is not None:
            block = block.owner.block
        return isinstance(block.proto, FunctionProto)

    @property
    def root(self) -> BindingBlock:
        """The outermost block: the main graph or a function body."""
        block = self
        while block.owner is not None:
            block = block.owner.block
        return block

    @property
    def name(self) -> str:
        """The graph's or function's name."""
        return self.proto.name

    def vars(self) -> Iterator[Var]:
        """Every value that this block itself defines: parameters, initializers, results."""
        yield from self.inputs
        yield from (v for v in (*self.initializers.values(), *self.sparse) if not v.is_input)
        yield from (out for b in self.bindings for out in b.outputs if out is not None)

    def walk(self) -> Iterator[Binding]:
        """Every binding of this block and of all nested ones."""
        stack: list[Iterator[Binding]] = [iter(self.bindings)]
        while stack:
            for b in stack[-1]:
                yield b
                if b.blocks:
                    stack.extend(iter(nested.bindings) for nested in b.blocks.values())
                    break
            else:
                stack.pop()

    def captures(self) -> Iterator[Var]:
        """Values of enclosing blocks that this block or a nested one reads."""
        inside: dict[BindingBlock, None] = {self: None}
        work = [self]
        while work:
            nested = [block for b in work.pop().bindings for block in b.blocks.values()]
            inside.update(dict.fromkeys(nested))
            work += nested
        for block in inside:
            for b in block.bindings:
                yield from (v for v in b.inputs if v is not None and v.block not in inside)
            yield from (v for v in block.outputs if v.block not in inside)

    # ---- changing --------------------------------------------------------------------------------

    def touch(self) -> None:
        """Marks this block and those around it as different from the file."""
        if not self.changed:
            self.changed = True
            if self.owner is not None:
                self.owner.changed = True
                self.owner.block.touch()

    def add_input(self, name: str, type_: Type | None) -> Var:
        """Adds a graph input, such as a seed or a state. The name must be free."""
        self.note_frame()
        var = Var(name, self, type_)
        var.is_input = True
        self.inputs.append(var)
        self.program.names.add(name)
        self.touch()
        return var

    def add_output(self, var: Var) -> None:
        """Makes a value an output of the block, under its own name."""
        self.note_frame()
        self.outputs.append(var)
        var.returned += 1
        self.touch()

    def remove_output(self, var: Var) -> None:
        """Removes an output. Raises InternalError if the value is not an output."""
        if not any(v is var for v in self.outputs):
            raise InternalError(f"no output to remove: {var!r}")
        self.note_frame()
        self.outputs = [v for v in self.outputs if v is not var]
        var.returned = sum(v is var for v in self.pinned)
        self.touch()

    def ask_for(self, var: Var) -> None:
        """Makes an initializer a graph input without a default. Raises InternalError for other
        values.
        """
        if self.initializers.get(var.name) is not var:
            raise InternalError(f"only an initializer can become an input: {var!r}")
        self.note_frame()
        self._note_constant(var)
        del self.initializers[var.name]
        var.initializer = None
        if not var.is_input:
            var.is_input = True
            self.inputs.append(var)
        self.touch()

    def fix(self, var: Var, tensor: TensorProto) -> None:
        """Makes an input a constant; before IR version 4, when every initializer is an input as
        well, one that is its default.
        """
        self.note_frame()
        if var.initializer is None:
            var.initializer = tensor
            self.initializers[var.name] = var
        var.set_constant(tensor)
        if self.program.ir_version >= 4:
            self.inputs = [other for other in self.inputs if other is not var]
            var.is_input = False
        self.touch()

    def let_override(self, var: Var) -> None:
        """Makes an initializer a graph input as well, whose default it is."""
        if var.is_input:
            return
        self.note_frame()
        self._note_constant(var)
        var.is_input = True
        self.inputs.append(var)
        self.touch()

    def add_initializer(self, tensor: TensorProto, copied: Var | None = None) -> Var:
        """Adds a constant named as the tensor, with the elements of `copied`. Returns its value."""
        var = Var(tensor.name, self, TensorType(tensor.data_type, tuple(tensor.dims)))
        if copied is not None and self.program.derivations is not None:
            var.source = copied.source or LITERAL
        if copied is not None and copied.reads is not None:
            var.reads = copied.reads
            if copied.name != tensor.name:
                self.program.stand_ins.add(copied.name)
        var.initializer = tensor
        self.initializers[tensor.name] = var
        self._note_constant(var, new=True)
        self.program.names.add(tensor.name)
        self.touch()
        return var

    def remove_initializer(self, var: Var) -> None:
        """Removes a constant that nothing reads. Raises InternalError for an initializer that is
        read, or is also a graph input.
        """
        if var.use_count or var.is_input:
            raise InternalError(f"removing an initializer that is still needed: {var!r}")
        self._note_constant(var)
        del self.initializers[var.name]
        self.touch()

    def append(
        self, node: NodeProto, inputs: Sequence[Var | None], types: Sequence[Type | None]
    ) -> Binding:
        """Appends `node`, which reads `inputs`; its output names must be free. Rules emit through
        `ir.emission` instead.
        """
        outputs: list[Var | None] = []
        binding = Binding(node, self, list(inputs), outputs)
        for name, type_ in zip(node.output[:], types, strict=True):
            var = Var(name, self, type_) if name else None
            if var is not None:
                var.definition = binding
                self.program.names.add(name)
            outputs.append(var)
        for v in inputs:
            if v is not None:
                v.users[binding] = v.users.get(binding, 0) + 1
        self.bindings[binding] = None
        if self.program.journal is not None:
            self.program.journal.added(binding)
        self.program.edits += 1
        self.touch()
        return binding

    def set_operand(self, binding: Binding, index: int, new: Var | None) -> None:
        """Makes operand `index` of `binding` read `new`."""
        old = binding.inputs[index]
        if old is new:
            return
        binding.note()
        if old is not None:
            slots = old.users[binding] - 1
            if slots:
                old.users[binding] = slots
            else:
                del old.users[binding]
        binding.inputs[index] = new
        if new is not None:
            new.users[binding] = new.users.get(binding, 0) + 1
        binding.changed = True
        binding.block.touch()

    def set_operands(self, binding: Binding, operands: Sequence[Var | None]) -> None:
        """Replaces all operands of `binding`; their number may change."""
        while operands and operands[-1] is None:
            operands = operands[:-1]
        binding.note()
        for i in range(len(binding.inputs)):
            self.set_operand(binding, i, None)
        binding.inputs[:] = [None] * len(operands)
        for i, v in enumerate(operands):
            self.set_operand(binding, i, v)
        binding.changed = True
        self.touch()

    def add_result(self, binding: Binding, index: int, name: str, type_: Type | None) -> Var:
        """Names an omitted optional output of `binding`, so that other bindings can read it."""
        if binding.result(index) is not None:
            raise InternalError(f"output {index} has a name already: {binding}")
        binding.note()
        while len(binding.outputs) <= index:
            binding.outputs.append(None)
        var = Var(name, binding.block, type_)
        var.definition = binding
        binding.outputs[index] = var
        self.program.names.add(name)
        binding.changed = True
        binding.block.touch()
        return var

    def replace(self, old: Var, new: Var) -> None:
        """Makes every reader of `old` read `new`, in time linear in the uses. Output names stay.

        When `old` is an output, `new` takes over its name if it can; otherwise (an input, an
        initializer, a value that is an output already) an Identity keeps the interface. A graph
        input that is itself an output stays that output: both names are interface. If `new` has
        the name of `old`, an output of a nested graph gets another name.
        """
        if old is new:
            return
        for user in list(old.users):
            for i in user.places(old):
                self.set_operand(user, i, new)
        for block in old.blocks_returning():
            block.return_instead(old, new)

    def return_instead(self, old: Var, new: Var) -> None:
        """Returns `new` instead of `old` under the name of `old` (see `replace`)."""
        if old.block is self and old.is_interface:
            return
        new = self._in_place_of(old, new)
        self.note_frame()
        for slots in (self.outputs, self.pinned):
            for i, v in enumerate(slots):
                if v is old:
                    slots[i] = new
                    old.returned -= 1
                    new.returned += 1
        self.touch()

    def _in_place_of(self, old: Var, new: Var) -> Var:
        """Returns the value to return in place of `old`: `new`, or an Identity of it."""
        if old.block is not self:
            twice = any(v is new for v in self.outputs)
            return self._identity(self.program.names.fresh(new.name), new) if twice else new
        free = new.definition is not None and not new.returned
        if new.block is self and (free or new.name == old.name):
            old.swap_names(new)
            return new
        name, other = old.name, self.program.names.fresh(old.name)
        if new.name == name:
            return self._identity(other, new)
        old.rename(other)
        return self._identity(name, new)

    def _identity(self, name: str, source: Var) -> Var:
        node = NodeProto(op_type="Identity", input=[source.name], output=[name])
        node.name = self.program.names.fresh(f"{name}_identity")
        return self.append(node, [source], [source.type]).out

    def remove(self, binding: Binding) -> None:
        """Removes a binding. Raises InternalError if an output is read."""
        if binding.is_read:
            raise InternalError(f"removing a binding that is still read: {binding}")
        binding.note()
        for nested in binding.blocks.values():
            nested.release()
        for v in binding.inputs:
            if v is not None:
                v.users.pop(binding, None)
        del self.bindings[binding]
        self.program.edits += 1
        self.touch()

    def note_frame(self) -> None:
        """Tells the program's journal, if there is one, that inputs or outputs will change."""
        if self.program.journal is not None:
            self.program.journal.frames(self)

    def _note_constant(self, var: Var, *, new: bool = False) -> None:
        if self.program.journal is not None:
            self.program.journal.constant(var, new)

    def release(self) -> None:
        """Drops every use of outer values in this block and its nested blocks. Called when the
        owner is removed.
        """
        for b in self.bindings:
            for v in b.inputs:
                if v is not None:
                    v.users.pop(b, None)
            for nested in b.blocks.values():
                nested.release()
        for v in self.outputs:
            v.returned -= 1

    def remove_unused(self, candidates: Iterable[Binding] | None = None) -> int:
        """Removes unread bindings, and those that only removed bindings read. Returns their number.

        The search starts at `candidates`, by default at every binding of the block.
        """
        work = list(self.bindings if candidates is None else candidates)
        removed = 0
        while work:
            b = work.pop()
            if b not in b.block.bindings or b.is_read:
                continue
            reads = [v.definition for v in b.reads() if v.definition is not None]
            b.block.remove(b)
            removed += 1
            work.extend(reads)
        return removed

    # ---- order -----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Sorts the bindings topologically, keeping the present order wherever it is legal.

        Visits the bindings depth-first in their present order, operands first: a binding that
        stands before its operand pulls only what it needs. Raises InternalError naming the cycle.
        """
        if not self._is_ordered():
            self.bindings = dict.fromkeys(self.in_order())

    def in_order(self) -> list[Binding]:
        """Returns the bindings in the order that `schedule` gives them."""
        return topological_order(self.bindings, Binding.predecessors, lambda b: b.out.name)

    def _is_ordered(self) -> bool:
        """Whether every binding comes after those that it reads, as is nearly always so."""
        seen: set[Binding | None] = {None}
        for b in self.bindings:
            for v in b.reads() if b.blocks else b.inputs:
                if v is not None and v.definition not in seen and v.block is self:
                    return False
            seen.add(b)
        return True

    def check(self) -> None:
        """Checks every invariant of the data structure. Raises InternalError at the first
        violation.
        """
        self.program.check_block(self)

    # ---- text ------------------------------------------------------------------------------------

    def text(self, name: str | None = None) -> str:
        """`name(params) { bindings; return outputs }`, one binding per line."""
        params = [v.declaration for v in self.inputs]
        params += [v.declaration for v in self.initializers.values() if not v.is_input]
        lines = [f"{name or self.name or 'main'}({', '.join(params)}) {{", *self._lines("  ")]
        return "\n".join([*map(printable, lines), "}"])

    def _lines(self, indent: str) -> Iterator[str]:
        for b in self.bindings:
            yield indent + b.text()
            for name, nested in b.blocks.items():
                params = [v.declaration for v in (*nested.inputs, *nested.initializers.values())]
                yield f"{indent}  {name}({', '.join(params)}) {{"
                yield from nested._lines(indent + "    ")
                yield f"{indent}  }}"
        yield f"{indent}return {', '.join(v.name for v in self.outputs)}"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return text_html(self.text())


def _types_in(values: Iterable[ValueInfoProto]) -> dict[str, Type]:
    types = {v.name: type_from_proto(v.type) for v in values}
    return {name: type_ for name, type_ in types.items() if type_ is not None}
