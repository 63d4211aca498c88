"""Records what each rewrite changes in a program, in time that depends on the change alone.

A journal learns of each change just before it happens, and keeps the first image of every binding,
initializer and frame that changes. `settle` returns the difference since the last call. The digest
of the program is a sum over its parts, so it follows the differences. At the end it must be the
digest of the program as it stands: then the recorded differences are all that happened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir.attributes import GRAPH_KINDS
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_graph, keep
from onnxgrad.ir.var import Var, names_of

_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class Image:
    """A binding at one time: its node, operands and results. `names` are those of the operands and
    results at that time; None if they are as the node was read.
    """

    node: NodeProto
    inputs: tuple[Var | None, ...]
    outputs: tuple[Var | None, ...]
    names: tuple[list[str], list[str]] | None = None

    @staticmethod
    def of(b: Binding) -> Image:
        """The image of a binding now. Nodes are copied before they change, so it stays."""
        names = (names_of(b.inputs), names_of(b.outputs)) if b.changed else None
        return Image(b.node, tuple(b.inputs), tuple(b.outputs), names)

    def calls_as(self, other: Image) -> bool:
        """Whether both call one operator with equal attributes, whatever their operands."""
        a, b = self.node, other.node
        return a is b or (
            (a.op_type, a.domain, a.overload) == (b.op_type, b.domain, b.overload)
            and _attributes(a) == _attributes(b)
        )

    @property
    def digest(self) -> int:
        """The digest of the node without its nested graphs."""
        return _node_digest(self.node, self.names)


@dataclass
class Difference:
    """The changes between two states: bindings by their images before and after, of which one is
    None for a binding that was added or removed; outputs of blocks that are other values now.

    `tensors`: former values of initializers that stay and have another value. `made`: new
    initializers. `interface`: the inputs of a block, or the number of its outputs, changed.
    """

    bindings: dict[Binding, tuple[Image | None, Image | None]] = field(default_factory=dict)
    returned: list[tuple[Var, Var]] = field(default_factory=list)
    tensors: dict[Var, TensorProto] = field(default_factory=dict)
    made: dict[Var, None] = field(default_factory=dict)
    interface: bool = False
    opsets: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))

    @property
    def is_empty(self) -> bool:
        """Whether no value is computed in another way."""
        parts = (self.bindings, self.returned, self.tensors)
        return not any(parts) and not self.interface and self.opsets[0] == self.opsets[1]


class Recorder:
    """The journal of a program, from its creation until `stop`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._tensors: dict[Var, tuple[int, int]] = {}
        self.digest = self._of_program()
        self._forget()
        program.journal = self

    def stop(self) -> None:
        """Ends the recording."""
        self.program.journal = None

    # ---- what the program reports ----------------------------------------------------------------

    def added(self, binding: Binding) -> None:
        """A binding is new."""
        self._bindings.setdefault(binding, None)

    def changes(self, binding: Binding) -> None:
        """A binding changes or is removed."""
        if binding not in self._bindings:
            self._bindings[binding] = Image.of(binding)
            for nested in binding.blocks.values():  # it may take its nested blocks along
                self._enter(nested)

    def _enter(self, block: BindingBlock) -> None:
        self.frames(block)
        for v in block.initializers.values():
            self.constant(v, False)
        for b in block.bindings:
            self.changes(b)

    def frames(self, block: BindingBlock) -> None:
        """Inputs or outputs of a block, or their names, change."""
        if block not in self._frames:
            new = not _Live(self._roots).block(block)
            former = None if new else (tuple(block.inputs), tuple(block.outputs), _frame(block))
            self._frames[block] = former

    def constant(self, var: Var, new: bool) -> None:
        """An initializer is new, or changes, or is removed."""
        if var not in self._constants:
            self._constants[var] = None if new else (var.initializer, self._constant_digest(var))

    def _forget(self) -> None:
        self._bindings: dict[Binding, Image | None] = {}
        # the former inputs, outputs and digest; None if the block is new
        self._frames: dict[BindingBlock, tuple[Sequence[Var], Sequence[Var], int] | None] = {}
        self._constants: dict[Var, tuple[TensorProto | None, int] | None] = {}
        self._opsets = dict(self.program.opsets)
        self._roots = _roots(self.program)

    # ---- differences -----------------------------------------------------------------------------

    def settle(self) -> Difference:
        """Returns the difference since the last call, and brings the digest up to date."""
        found = Difference(opsets=(self._opsets, dict(self.program.opsets)))
        live = _Live(_roots(self.program))
        self._compare_roots()
        change = self._settle_bindings(found, live)
        change += self._settle_frames(found, live)
        change += self._settle_constants(found, live)
        self.digest = (self.digest + change) % _MODULUS
        self._forget()
        return found

    def _compare_roots(self) -> None:
        """Notes the bindings of functions that came or went, and of nested blocks that came with
        their bindings.
        """
        now = _roots(self.program)
        for block in self._roots:
            if block not in now:
                self._enter(block)
        new = [block for block in now if block not in self._roots]
        new += [
            nested
            for b, before in self._bindings.items()
            if before is None
            for nested in b.blocks.values()
        ]
        for block in new:  # grows during the walk
            self._frames[block] = None
            for v in block.initializers.values():
                self._constants[v] = None
            for b in block.bindings:
                self._bindings.setdefault(b, None)
                new += b.blocks.values()

    def _settle_bindings(self, found: Difference, live: _Live) -> int:
        """Adds the changed bindings to `found`. Returns the change of the digest."""
        change = 0
        for b, before in self._bindings.items():
            after = Image.of(b) if live.binding(b) else None
            if before is not None:
                change -= before.digest
            if after is not None:
                change += after.digest
            if _computes_otherwise(before, after):
                found.bindings[b] = before, after
        return change

    def _settle_frames(self, found: Difference, live: _Live) -> int:
        change = 0
        for block, former in self._frames.items():
            stays = live.block(block)
            change += (_frame(block) if stays else 0) - (former[2] if former else 0)
            if former and stays:
                inputs, outputs = former[:2]
                found.interface |= inputs != tuple(block.inputs)
                found.interface |= len(outputs) != len(block.outputs)
                found.returned += [(u, v) for u, v in zip(outputs, block.outputs) if u is not v]
        return change

    def _settle_constants(self, found: Difference, live: _Live) -> int:
        change = 0
        for v, known in self._constants.items():
            there = v.block.initializers.get(v.name) is v and live.block(v.block)
            if known is not None:
                change -= known[1]
                if there and known[0] is not None and known[0] is not v.initializer:
                    found.tensors[v] = known[0]
            elif there:
                found.made[v] = None
            change += self._constant_digest(v) if there else 0
        return change

    @property
    def chains(self) -> bool:
        """Whether the recorded differences lead to the program as it stands now."""
        return self.digest == self._of_program()

    # ---- digests ---------------------------------------------------------------------------------

    def _of_program(self) -> int:
        total = 0
        for block in self.program.blocks():
            total += _frame(block) + sum(Image.of(b).digest for b in block.bindings)
            total += sum(map(self._constant_digest, block.initializers.values()))
        return total % _MODULUS

    def _constant_digest(self, v: Var) -> int:
        """The digest of an initializer; that of its elements is computed once."""
        tensor = v.initializer
        if tensor is None:
            return 0
        known = self._tensors.get(v)
        if known is None or known[0] != id(tensor):
            known = self._tensors[v] = id(tensor), _content_digest(tensor)
        return _digest(v.name.encode(), known[1].to_bytes(16, "little"))


def _roots(program: Program) -> dict[BindingBlock, bool]:
    return dict.fromkeys((program.main, *program.functions.values()), True)


class _Live:
    """Answers whether blocks and bindings are part of a program with these outermost blocks, each
    block once.
    """

    def __init__(self, roots: dict[BindingBlock, bool]) -> None:
        self._known = dict(roots)

    def block(self, block: BindingBlock) -> bool:
        if block not in self._known:
            owner = block.owner
            self._known[block] = (
                owner is not None
                and any(nested is block for nested in owner.blocks.values())
                and self.binding(owner)
            )
        return self._known[block]

    def binding(self, b: Binding) -> bool:
        return b in b.block.bindings and self.block(b.block)


def _computes_otherwise(before: Image | None, after: Image | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (
        before.inputs != after.inputs
        or before.outputs != after.outputs
        or not before.calls_as(after)
    )


def digest_of(model: ModelProto) -> int:
    """Returns the digest of a file, as that of the program that reads or wrote it."""
    total = 0
    for graph in every_graph(model.graph):
        total += _graph_digest(graph)
    for function in model.functions:
        total += _names_digest(function.input, function.output)
        total += _nodes_digest(function)
    return total % _MODULUS


def _graph_digest(graph: GraphProto) -> int:
    total = _names_digest([v.name for v in graph.input], [v.name for v in graph.output])
    for t in graph.initializer:
        total += _digest(t.name.encode(), _content_digest(t).to_bytes(16, "little"))
    return total + sum(_node_digest(n) for n in graph.node)


def _nodes_digest(function: FunctionProto) -> int:
    total = 0
    for n in function.node:
        total += _node_digest(n)
        for a in n.attribute:
            for graph in (*a.graphs, *((a.g,) if a.type == AttributeProto.GRAPH else ())):
                total += sum(map(_graph_digest, every_graph(graph)))
    return total


def _frame(block: BindingBlock) -> int:
    return _names_digest([v.name for v in block.inputs], [v.name for v in block.outputs])


def _names_digest(inputs: Iterable[str], outputs: Iterable[str]) -> int:
    return _digest("\0".join(inputs).encode(), "\0".join(outputs).encode())


def _node_digest(node: NodeProto, names: tuple[list[str], list[str]] | None = None) -> int:
    if names is not None or any(a.type in GRAPH_KINDS for a in node.attribute):
        node, source = NodeProto(), node
        node.CopyFrom(source)
        keep(node.attribute, lambda a: a.type not in GRAPH_KINDS)
        if names is not None:
            node.input[:], node.output[:] = names
    return _digest(node.SerializeToString(deterministic=True))


def _content_digest(tensor: TensorProto) -> int:
    """The digest of a tensor without its name."""
    if tensor.HasField("raw_data"):
        kind = repr((tensor.data_type, tuple(tensor.dims))).encode()
        return _digest(kind, tensor.raw_data)
    bare = TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("name")
    return _digest(bare.SerializeToString(deterministic=True))


def _digest(*parts: bytes) -> int:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return int.from_bytes(found.digest(), "little")


def _attributes(node: NodeProto) -> list[bytes]:
    """The attributes without their doc strings, in a fixed order."""
    found = []
    for a in node.attribute:
        bare = AttributeProto()
        bare.CopyFrom(a)
        bare.ClearField("doc_string")
        found.append(bare.SerializeToString(deterministic=True))
    return sorted(found)
