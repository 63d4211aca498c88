"""A binding: one statement of a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from onnx import NodeProto, helper

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.protobufs import keep
from onnxgrad.ir.text import value_text
from onnxgrad.ir.var import Var, names_of
from onnxgrad.wording import printable

if TYPE_CHECKING:
    from onnxgrad.ir.block import BindingBlock


_MANY = 32  # up to this many operands are searched one by one
_LINE = 240  # characters of a binding in a message


class Binding:
    """One statement `outs = Op(ins)`. `blocks` holds its nested blocks (bodies of If, Loop and
    Scan) by attribute name.
    """

    __slots__ = (
        "__weakref__",
        "_attrs",
        "_places",
        "block",
        "blocks",
        "changed",
        "domain",
        "inputs",
        "node",
        "op",
        "outputs",
    )

    def __init__(
        self,
        node: NodeProto,
        block: BindingBlock,
        inputs: list[Var | None],
        outputs: list[Var | None],
    ) -> None:
        self.node = node
        self.op: str = node.op_type
        self.domain: str = domains.canonical(node.domain)
        self.block = block
        self.inputs = inputs
        self.outputs = outputs
        self.blocks: dict[str, BindingBlock] = {}
        self.changed = False
        self._attrs: dict[str, Any] | None = None
        self._places: dict[Var | None, list[int]] | None = None

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes written in the file, as Python values; lists are tuples. Graphs are left
        out: they are nested blocks.
        """
        if self._attrs is None:
            written = self.node.attribute[:]
            self._attrs = {
                a.name: attributes.read(a) for a in written if a.type not in attributes.GRAPH_KINDS
            }
        return self._attrs

    @property
    def has_refs(self) -> bool:
        """Whether an attribute is a reference to an attribute of the enclosing function."""
        return self.block.is_function and any(a.ref_attr_name for a in self.node.attribute[:])

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute as the operator reads it: as written, else implied (a Transpose
        without perm reverses), else the schema's default at this opset, else `default`.
        """
        if name in self.attrs:
            return self.attrs[name]
        if name == "perm" and self.is_op("Transpose") and self.inputs[0] is not None:
            rank = self.inputs[0].rank
            return default if rank is None else tuple(reversed(range(rank)))
        value = attributes.schema_defaults(self.op, self.version, self.domain).get(name)
        return default if value is None else value

    def set_attribute(self, name: str, value: Any) -> None:
        """Writes an attribute into a copy of the NodeProto. The NodeProto that was read stays
        unchanged.
        """
        self.drop_attribute(name)
        self.node.attribute.append(helper.make_attribute(name, value))

    def drop_attribute(self, name: str) -> None:
        """Removes an attribute."""
        self._attrs = None
        keep(self._own_node().attribute, lambda a: a.name != name)

    def rename_operator(self, op: str) -> None:
        """Changes the operator to another of the same domain, with the same operands and
        results.
        """
        self._own_node().op_type = self.op = op
        self.block.program.edits += 1

    def drop_result(self, index: int) -> None:
        """Removes an unread result from a call whose function no longer returns it."""
        if index < len(self.outputs):
            self.note()
            del self.outputs[index]
            self.changed = True
            self.block.touch()

    def set_metadata(self, metadata: Mapping[str, str], *, documented: bool = True) -> None:
        """Writes the node's metadata. documented: keep its doc string."""
        node = self._own_node()
        if not documented:
            node.ClearField("doc_string")
        del node.metadata_props[:]
        for key, value in metadata.items():
            node.metadata_props.add(key=key, value=value)

    def note(self) -> None:
        """Tells the program's journal, if there is one, that this binding is about to change."""
        journal = self.block.program.journal
        if journal is not None:
            journal.changes(self)

    def _own_node(self) -> NodeProto:
        """Replaces the node by a copy that may be changed. Returns the copy."""
        self.note()
        self.node, self.changed = deepcopy(self.node), True
        self.block.touch()
        return self.node

    def to_node(self) -> NodeProto:
        """Returns a copy of the node with the current names of operands and results. Graphs in the
        copy are as they were read.
        """
        node = deepcopy(self.node)
        node.input[:] = names_of(self.inputs)
        node.output[:] = names_of(self.outputs)
        return node

    @property
    def version(self) -> int:
        """The opset version of this operator's domain; 0 if the domain is not imported."""
        return self.block.opsets.get(self.domain, 0)

    @property
    def out(self) -> Var:
        """The first output."""
        out = self.outputs[0]
        if out is None:
            raise InternalError(f"binding without a first output: {self}")
        return out

    @property
    def is_read(self) -> bool:
        """Whether a binding reads a result or a block returns one."""
        for out in self.outputs:  # no `any`: every sweep needs this for every binding
            if out is None:
                continue
            if out.users or out.returned:
                return True
        return False

    @property
    def is_live(self) -> bool:
        """Whether the binding is still part of the program: neither the binding nor one around it
        was removed.
        """
        owner = self.block.owner
        return self in self.block.bindings and (owner is None or owner.is_live)

    def operand(self, index: int) -> Var | None:
        """Input `index`, None if omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def places(self, operand: Var) -> list[int]:
        """Returns the indices at which `operand` is read, in order.

        The indices of a binding with many operands are cached, so that a Concat of 40,000 operands
        is not searched for each of them. Stale entries are looked up again.
        """
        if len(self.inputs) <= _MANY:
            return [i for i, v in enumerate(self.inputs) if v is operand]
        known = self._places or {}
        found = [
            i for i in known.get(operand, ()) if i < len(self.inputs) and self.inputs[i] is operand
        ]
        if len(found) != operand.users.get(self, 0):
            self._places = {}
            for i, v in enumerate(self.inputs):
                self._places.setdefault(v, []).append(i)
            found = self._places.get(operand, [])
        return list(found)

    def result(self, index: int) -> Var | None:
        """Output `index`, None if omitted."""
        return self.outputs[index] if index < len(self.outputs) else None

    def reads(self) -> list[Var]:
        """Returns every value that the binding depends on, with captures of its nested blocks."""
        captured = [v for nested in self.blocks.values() for v in nested.captures()]
        return [v for v in self.inputs if v is not None] + captured

    def is_op(self, op: str, domain: str = "") -> bool:
        """Whether this binding calls `op` of `domain`."""
        return self.op == op and self.domain == domain

    def predecessors(self) -> Iterator[Binding]:
        """Yields the bindings of the same block whose results this binding reads."""
        for v in self.reads() if self.blocks else self.inputs:
            if v is not None and v.block is self.block and v.definition is not None:
                yield v.definition

    def depends_on(self, sources: set[Binding], beside: Collection[Binding] = ()) -> bool:
        """Whether this binding reads a result of one of `sources`, directly or through other
        bindings of its block.

        `beside`: bindings known not to depend on `sources`; neither do their predecessors. Both
        searches go up in step and end where they meet, mostly a few bindings above instead of at
        the inputs.
        """
        seen, work = {self}, deque([self])
        free, above = set(beside), deque(beside)
        while work:
            if above:
                more = [b for b in above.popleft().predecessors() if b not in free]
                free.update(more)
                above.extend(more)
            binding = work.popleft()
            if binding in free:
                continue
            for needed in binding.predecessors():
                if needed in sources:
                    return True
                if needed not in seen:
                    seen.add(needed)
                    work.append(needed)
        return False

    def attribute_texts(self) -> list[str]:
        """`name=value` for each attribute written in the file, sorted; graphs are left out."""
        return [f"{k}={value_text(v)}" for k, v in sorted(self.attrs.items())]

    def text(self, *, attributes: bool = True) -> str:
        """Returns one line: results with types, operator, operands, attributes."""
        results = ", ".join("_" if v is None else v.typed_name for v in self.outputs)
        operands = ["_" if v is None else v.name for v in self.inputs]
        attrs = self.attribute_texts() if attributes else []
        nested = [f"{k}={{...}}" for k in self.blocks]
        name = f"{self.domain}::{self.op}" if self.domain else self.op
        return printable(f"{results} = {name}({', '.join(operands + attrs + nested)})")

    def __str__(self) -> str:  # for messages: without attributes that would fill the screen
        text = self.text()
        return text if len(text) <= _LINE else self.text(attributes=False)

    def __repr__(self) -> str:
        return f"<{self}>"


def draws(b: Binding) -> bool:
    """Whether the operator itself draws random numbers, not a binding of its nested blocks."""
    return b.domain == "" and (b.op in RANDOM or (b.op == "Dropout" and _trains(b)))


def _trains(dropout: Binding) -> bool:
    """Whether a Dropout may train. Before opset 7 an attribute decides, and from 12 on an operand.
    In between Dropout never trains.
    """
    if dropout.version < 7:
        return not dropout.attr("is_test")
    return dropout.version >= 12 and dropout.operand(2) is not None
