"""The types of the results of custom operators: declared, inferred, or guessed from readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.ir.load import load
from onnxgrad.ir.protobufs import copy_of, keep, scheduled
from onnxgrad.ir.types import type_to_proto
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.feeds.dims import roles

_FOLLOWED = 8  # values of the same type after a result that are searched for its type


class CannotCut(Exception):
    """The models cannot be cut at the operators; the message says why."""


def operands(node: NodeProto) -> list[str]:
    """Returns the operands of a node, then the values that its nested graphs capture."""
    return [*node.input, *sorted(reads(node) - {*node.input})]


def result_types(
    model: ModelProto, nodes: Sequence[NodeProto], other: ModelProto
) -> dict[str, TypeProto]:
    """Returns the type of each custom result: the declared type, or else the type of an operand
    with an element type that the result's readers accept. Sizes that are declared under names that
    no input has are those of an operand of that rank, if there is one. The proof uses values of
    these types. A wrong guess does not run, so it proves nothing.
    """
    found = {
        v.name: v.type
        for m in (other, model)
        for v in (*m.graph.value_info, *m.graph.output)
        if v.type.WhichOneof("value")
    }
    made = {name for n in nodes for name in n.output if name in found}
    symbols = roles(model.graph).keys()
    opened = {name: found.pop(name) for name in made if not _is_known(found[name], symbols)}
    while opened:
        types = _inferred(model, found, nodes, between=False) | found
        closed = {
            name: kind
            for n in nodes
            for name in n.output
            if name in opened
            for kind in [_sized(opened[name], [types[i] for i in operands(n) if i in types])]
            if _is_known(kind, symbols)
        }
        if not closed:
            break
        found |= closed
        opened = {name: kind for name, kind in opened.items() if name not in closed}
    found |= opened
    while left := [n for n in nodes if any(name and name not in found for name in n.output)]:
        guessed: dict[str, TypeProto] = {}
        for between in (False, True):
            types = _inferred(model, found, nodes, between=between) | found
            guessed |= {
                name: kind
                for n in left
                for name in n.output
                if name and name not in found
                for kind in [_as_read(model, name, [types[i] for i in operands(n) if i in types])]
                if kind is not None
            }
            # later unknown types may follow from earlier guesses
            if sized := {name: kind for name, kind in guessed.items() if _is_sized(kind)}:
                guessed = sized
                break
        if not guessed:
            raise CannotCut(f"the type of {left[0].output[0]!r} is neither declared nor known")
        found |= guessed
    return found


def _inferred(
    model: ModelProto, more: Mapping[str, TypeProto], nodes: Iterable[NodeProto], *, between: bool
) -> dict[str, TypeProto]:
    """Returns the known types of the values of the main graph if the custom results become inputs
    of these types. `between`: the first declared values after values of unknown type become inputs
    as well. Sizes declared for other values are not reliable, but here sizes only choose the feeds.
    """
    typed = copy_of(model)
    graph = typed.graph
    custom = {name for n in nodes for name in n.output if name}
    behind = {*custom}
    inputs: dict[str, ValueInfoProto] = {}
    left = []
    for node in scheduled(list(graph.node)):
        names = {name for name in node.output if name}
        if behind.isdisjoint(reads(node) | names):
            left.append(node)
        elif names <= more.keys() and (between or names <= custom):
            inputs |= {n: ValueInfoProto(name=n, type=more[n]) for n in sorted(names)}
            behind -= names
        else:
            behind |= names
            left.append(node)
    copied = [copy_of(n) for n in left]
    del graph.node[:]
    graph.node.extend(copied)
    keep(graph.value_info, lambda v: v.name not in inputs)
    graph.input.extend(inputs.values())
    declared = {v.name for v in (*graph.value_info, *graph.output, *graph.input)}
    graph.value_info.extend(
        ValueInfoProto(name=name, type=kind) for name, kind in more.items() if name not in declared
    )
    try:
        values = load(typed).main.vars()
    except OnnxgradError as error:
        raise CannotCut(f"the types of its values are not known ({error})") from error
    made = {v.name: type_to_proto(v.type) for v in values}
    return {name: kind for name, kind in made.items() if kind.WhichOneof("value")}


def _is_sized(kind: TypeProto) -> bool:
    shape = kind.tensor_type.shape
    return kind.tensor_type.HasField("shape") and all(d.WhichOneof("value") for d in shape.dim)


def _is_known(kind: TypeProto, symbols: Collection[str]) -> bool:
    """True if every size is a number, or a symbol that an input has."""
    return kind.tensor_type.HasField("shape") and all(
        d.HasField("dim_value") or d.dim_param in symbols for d in kind.tensor_type.shape.dim
    )


def _sized(kind: TypeProto, operands: Iterable[TypeProto]) -> TypeProto:
    """Returns a declared type with the shape of the first operand that it does not contradict."""
    sizes = kind.tensor_type.shape.dim
    for operand in operands:
        theirs = operand.tensor_type.shape.dim
        if (
            operand.tensor_type.HasField("shape")
            and len(sizes) == len(theirs)
            and all(
                d.dim_value == e.dim_value for d, e in zip(sizes, theirs) if d.HasField("dim_value")
            )
        ):
            found = copy_of(kind)
            found.tensor_type.shape.CopyFrom(operand.tensor_type.shape)
            return found
    return kind


def _as_read(model: ModelProto, name: str, operands: Sequence[TypeProto]) -> TypeProto | None:
    """Returns the first type that all readers of a value accept: the type of an operand, or the
    first operand's shape with a common element type. If no type fits, returns the type of the first
    operand, and None if there is none.
    """
    taken = list(_accepted(model, name))
    guesses = [*operands]
    for code in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL):
        for kind in operands[:1]:
            made = copy_of(kind)
            made.tensor_type.elem_type = code
            guesses.append(made)
    good = (k for k in guesses if all(_text(k) in kinds for kinds in taken))
    return next(good, operands[0] if operands else None)


def _accepted(model: ModelProto, name: str) -> Iterator[Collection[str]]:
    """Yields the types that each reader of a value accepts, if onnx knows the reader. Includes the
    readers of results that must have the same type, and constants among the operands that must have
    it too.
    """
    weights = {
        t.name: TypeProto(tensor_type=TypeProto.Tensor(elem_type=t.data_type))
        for t in model.graph.initializer
    }
    versions, alike = domains.versions(model.opset_import), [name]
    for value in alike:  # the list grows in the loop
        for node in model.graph.node:
            domain = domains.canonical(node.domain)
            if value not in node.input or not onnx.defs.has(node.op_type, domain):
                continue
            schema = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            slots = [p.type_str for p in schema.inputs]
            slots += slots[-1:] * (len(node.input) - len(slots))
            mine = slots[[*node.input].index(value)]
            allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
            yield allowed.get(mine, (mine,))
            beside = [n for n, slot in zip(node.input, slots) if slot == mine and n in weights]
            yield from ((_text(weights[n]),) for n in beside)
            results = [n for n, p in zip(node.output, schema.outputs) if p.type_str == mine]
            alike += [n for n in results if n not in alike and len(alike) < _FOLLOWED]


def _text(kind: TypeProto) -> str:
    """Returns a type as onnx's schemas spell it; empty for anything but a tensor."""
    if not kind.HasField("tensor_type"):
        return ""
    name = TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    return f"tensor({name})"
