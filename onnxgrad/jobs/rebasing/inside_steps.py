"""The model inside the steps of `preprocess`, which an export of new weights lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, keep, reads
from onnxgrad.ir.types import type_to_proto


@frozen
class Inside:
    """The part of a model without steps: its nodes by place, its inputs and outputs, and the names
    of the constants that steps alone read.
    """

    nodes: Collection[int]
    inputs: Sequence[ValueInfoProto]
    outputs: Sequence[ValueInfoProto]
    constants: Collection[str]

    @staticmethod
    def of(program: Program) -> Inside | None:
        """Returns the part of a program that was just read; None if there are no steps, or if the
        type of a value is unknown. Outputs that steps read come last, in the order of nodes.
        """
        graph = program.proto.graph
        nodes = {i: node for i, node in enumerate(graph.node) if not _is_step(node)}
        steps = [node for node in graph.node if _is_step(node)]
        if not steps:
            return None
        types = {v.name: v.type for v in program.main.vars()}
        made = {name: node for node in steps for name in node.output if name}
        read, read_by_steps = _read(nodes.values()), _read(steps)
        inputs, left = list[str](), [name for name in made if name in read]
        for value in graph.input:
            inputs += [value.name] if value.name in read or value.name not in read_by_steps else []
            inputs += [n for n in left if n not in inputs and value.name in _sources(n, made)]
        outputs = [v.name for v in graph.output if v.name not in made]
        own = (name for node in nodes.values() for name in node.output)
        outputs += [name for name in own if name in read_by_steps and name not in outputs]
        if any(types.get(name) is None for name in (*inputs, *outputs)):
            return None

        def values(names: Iterable[str]) -> list[ValueInfoProto]:
            found = ((n, types[n]) for n in names)
            return [ValueInfoProto(name=n, type=type_to_proto(t)) for n, t in found if t]

        constants = read_by_steps - read - set(outputs)
        return Inside(nodes.keys(), values(inputs), values(outputs), constants)

    def outline(self, model: ModelProto) -> ModelProto:
        """Returns this part of an outline of the program."""
        made = copy_of(model)
        graph = made.graph
        nodes = [node for i, node in enumerate(model.graph.node) if i in self.nodes]
        for field, kept in (("node", nodes), ("input", self.inputs), ("output", self.outputs)):
            graph.ClearField(field)
            getattr(graph, field).extend(kept)
        keep(graph.initializer, lambda t: t.name not in self.constants)
        return made


def _is_step(node: NodeProto) -> bool:
    return any(e.key == "onnxgrad.made_by" and e.value == "preprocess" for e in node.metadata_props)


def _read(nodes: Iterable[NodeProto]) -> set[str]:
    return {name for node in nodes for name in reads(node)}


def _sources(name: str, made: dict[str, NodeProto]) -> set[str]:
    """Returns the names of all values from which steps compute one."""
    found, work = set[str](), [name]
    while work:
        node = made.get(work.pop())
        new = set(reads(node)) - found if node is not None else set[str]()
        found |= new
        work += new
    return found
