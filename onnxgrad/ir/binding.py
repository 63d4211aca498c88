"""One statement of a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onnx import NodeProto, helper

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.text import value_text
from onnxgrad.ir.var import Var, names_of
from onnxgrad.wording import printable

if TYPE_CHECKING:
    from onnxgrad.ir.block import BindingBlock


_MANY = 32  # operands that are searched one by one
_LINE = 240  # letters of a binding in a message


class Binding:
    """One statement `outs = Op(ins)`; nested blocks (If, Loop, Scan bodies) hang on it by
    attribute name.
    """

    __slots__ = (
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
        """The attributes written in the file, as Python values."""
        if self._attrs is None:
            self._attrs = attributes.read_all(self.node)
        return self._attrs

    @property
    def has_refs(self) -> bool:
        """Some attribute is a reference to an attribute of the enclosing function."""
        return self.block.is_function and any(a.ref_attr_name for a in self.node.attribute[:])

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute as the operator reads it: as written, implied (a Transpose without
        perm reverses), else the schema's default at this opset, else `default`.
        """
        if name in self.attrs:
            return self.attrs[name]
        if name == "perm" and self.is_op("Transpose") and self.inputs[0] is not None:
            rank = self.inputs[0].rank
            return default if rank is None else tuple(reversed(range(rank)))
        value = attributes.schema_defaults(self.op, self.version, self.domain).get(name)
        return default if value is None else value

    def set_attribute(self, name: str, value: Any) -> None:
        """Write an attribute. The NodeProto that was read stays as it is: the binding gets one
        of its own.
        """
        self.drop_attribute(name)
        self.node.attribute.append(helper.make_attribute(name, value))

    def drop_attribute(self, name: str) -> None:
        """Remove an attribute."""
        node, self._attrs = self._own_node(), None
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)

    def rename_operator(self, op: str) -> None:
        """Call another operator of the same domain, with the same operands and results."""
        self._own_node().op_type = self.op = op
        self.block.program.edits += 1

    def set_metadata(self, metadata: Mapping[str, str]) -> None:
        """Write the node's metadata."""
        node = self._own_node()
        del node.metadata_props[:]
        for key, value in metadata.items():
            node.metadata_props.add(key=key, value=value)

    def _own_node(self) -> NodeProto:
        """Its node from now on: a copy, which may be changed."""
        node = NodeProto()
        node.CopyFrom(self.node)
        self.node, self.changed = node, True
        self.block.touch()
        return node

    def to_node(self) -> NodeProto:
        """A copy of the node with the names that operands and results have now; graphs in it are
        as they were read.
        """
        node = NodeProto()
        node.CopyFrom(self.node)
        node.input[:] = names_of(self.inputs)
        node.output[:] = names_of(self.outputs)
        return node

    @property
    def version(self) -> int:
        """The opset version that gives this operator its meaning; 0 when its domain is not
        imported.
        """
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
        """Something reads a result, or a block returns one."""
        for out in self.outputs:  # no `any`: every sweep asks this of every binding
            if out is None:
                continue
            if out.users or out.returned:
                return True
        return False

    @property
    def is_live(self) -> bool:
        """Still part of the program: neither it nor a binding around it was removed."""
        binding: Binding | None = self
        while binding is not None:
            if binding not in binding.block.bindings:
                return False
            binding = binding.block.owner
        return True

    def operand(self, index: int) -> Var | None:
        """Input `index`, None when omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def places(self, operand: Var) -> list[int]:
        """The indices at which `operand` is read, in order.

        A Concat of 40 000 is not searched for each of its operands: where they stood is remembered,
        and looked up again when that is not where they are.
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
        """Output `index`, None when omitted."""
        return self.outputs[index] if index < len(self.outputs) else None

    def reads(self) -> list[Var]:
        """Every value it depends on, captures of its nested blocks included."""
        found = [v for v in self.inputs if v is not None]
        for nested in self.blocks.values():
            found.extend(nested.captures())
        return found

    def is_op(self, op: str, domain: str = "") -> bool:
        """Whether this binding calls `op` of `domain`."""
        return self.op == op and self.domain == domain

    def predecessors(self) -> Iterator[Binding]:
        """The bindings of the same block whose results it reads."""
        for v in self.reads() if self.blocks else self.inputs:
            if v is not None and v.block is self.block and v.definition is not None:
                yield v.definition

    def depends_on(self, sources: set[Binding], beside: Collection[Binding] = ()) -> bool:
        """Whether it reads, directly or through other bindings of its block, a result of one of
        `sources`.

        `beside`: bindings known to depend on none of them. What these read does not either, so it
        is climbed side by side with what this binding reads: the search ends where they have met,
        mostly a few bindings above, and not at the inputs.
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
        """`name=value` for each attribute written in the file, by name; graphs are left out."""
        return [f"{k}={value_text(v)}" for k, v in sorted(self.attrs.items())]

    def text(self, *, attributes: bool = True) -> str:
        """It on one line: results with types, operator, operands, attributes."""
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


RANDOM_OPS = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)


def draws(b: Binding) -> bool:
    """Whether the binding itself draws; what its nested blocks do is asked of their bindings."""
    return b.domain == "" and (b.op in RANDOM_OPS or (b.op == "Dropout" and _trains(b)))


def _trains(dropout: Binding) -> bool:
    """Before opset 7 an attribute says that it does not; from 7 to 11 it never does; then an
    operand may say so.
    """
    if dropout.version < 7:
        return not dropout.attr("is_test")
    return dropout.version >= 12 and dropout.operand(2) is not None
