"""Switches BatchNormalization and Dropout that a file puts into training mode to inference.

The nodes stay, so that a training step can switch them back: BatchNormalization normalises by its
running statistics and returns only its first result, Dropout returns its operand. A Dropout that an
input of the model switches stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from onnxgrad.errors import InputError
from onnxgrad.ir.domains import is_default
from onnxgrad.ir.load import program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, every_node, graphs_of, keep
from onnxgrad.ir.save import to_proto

# slots of the running mean and variance of a BatchNormalization, and of Dropout's switch
_RUNNING, _SWITCH = (3, 4), 2


def in_training_mode(model: ModelProto) -> dict[str, int]:
    """Returns how many nodes are in training mode, by operator."""
    found: dict[str, int] = {}
    for version, lists in _units(model):
        for nodes, true in lists:
            for node in nodes:
                if _trains(node, version, true):
                    found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def described(found: Mapping[str, int]) -> str:
    """Returns the numbers of nodes as text."""
    return " and ".join(f"{count} {name}" for name, count in sorted(found.items()))


def to_inference(program: Program) -> tuple[Program, tuple[str, ...]]:
    """Returns a Program in which no node is in training mode, and the names of the outputs that
    are gone because they were running statistics. Raises InputError if no output is left.
    """
    model = copy_of(to_proto(program))
    gone: tuple[str, ...] = ()
    for index, (version, lists) in enumerate(list(_units(model))):
        statistics, switches = _switched(version, lists)
        if index:
            function = model.functions[index - 1]
            _return_operands(function.node, function.output, statistics)
        else:
            gone = _drop_statistics(model, statistics.keys() | set(statistics.values()))
            _drop_unread(model, switches)
        for graph in (g for nodes, _ in lists for node in nodes for g in graphs_of(node)):
            _return_operands(graph.node, [v.name for v in graph.output], statistics)
    if not model.graph.output:
        raise InputError("inference: every output of the model is a running statistic")
    return program_of(model, program.folder, digests=program.digests), gone


def _switched(
    version: int, lists: Sequence[tuple[Any, set[str]]]
) -> tuple[dict[str, str], set[str]]:
    """Switches the nodes of a unit. Returns the operands that stand for the statistics that they
    returned, which other nodes now read, and the constants that were switches.
    """
    statistics: dict[str, str] = {}
    switches: set[str] = set()
    for nodes, true in lists:
        for node in nodes:
            if _trains(node, version, true):
                switches |= set(node.input[_SWITCH : _SWITCH + 1]) & true
                statistics |= _switch(node, version)
    for nodes, _ in lists:
        for node in nodes:
            node.input[:] = [statistics.get(name, name) for name in node.input]
    return statistics, switches


def _return_operands(nodes: Any, outputs: Iterable[str], statistics: Mapping[str, str]) -> None:
    """Lets a function or nested graph return the operands of statistics that it returned."""
    for name in (name for name in outputs if name in statistics):
        nodes.append(helper.make_node("Identity", [statistics[name]], [name]))


def _drop_statistics(model: ModelProto, statistics: set[str]) -> tuple[str, ...]:
    """Removes the outputs that are running statistics, also behind Identities."""
    for node in model.graph.node:
        if node.op_type == "Identity" and node.input[0] in statistics:
            statistics.add(node.output[0])
    gone = tuple(v.name for v in model.graph.output if v.name in statistics)
    keep(model.graph.output, lambda v: v.name not in gone)
    keep(model.graph.node, lambda n: n.op_type != "Identity" or n.output[0] not in gone)
    return gone


def _drop_unread(model: ModelProto, names: set[str]) -> None:
    """Removes these constants from the main graph if nothing reads them any more."""
    read = {name for node in every_node(model.graph.node) for name in node.input}
    unread = names - read - {v.name for v in model.graph.output}
    keep(model.graph.initializer, lambda t: t.name not in unread)
    keep(model.graph.node, lambda n: n.op_type != "Constant" or n.output[0] not in unread)
    keep(model.graph.value_info, lambda v: v.name not in unread)


def _units(model: ModelProto) -> Iterator[tuple[int, list[tuple[Any, set[str]]]]]:
    """Yields the main graph and each function: its opset, and its lists of nodes, nested ones
    included, with the names of constants that are true.
    """
    version = _opset(model.opset_import)
    yield version, list(_inside(model.graph.node, model.graph.initializer, set()))
    for function in model.functions:
        yield _opset(function.opset_import) or version, list(_inside(function.node, (), set()))


def _inside(
    nodes: Any, initializers: Iterable[TensorProto], outer: set[str]
) -> Iterator[tuple[Any, set[str]]]:
    true = outer | _true(nodes) | {t.name for t in initializers if _is_true(t)}
    yield nodes, true
    for node in nodes:
        for graph in graphs_of(node):
            yield from _inside(graph.node, graph.initializer, true)


def _true(nodes: Iterable[NodeProto]) -> set[str]:
    """Returns the names of Constant nodes that are true."""
    return {
        node.output[0]
        for node in nodes
        if node.op_type == "Constant"
        and any(a.type == AttributeProto.TENSOR and _is_true(a.t) for a in node.attribute)
    }


def _is_true(tensor: TensorProto) -> bool:
    if tensor.data_type != TensorProto.BOOL or np.prod(tensor.dims, dtype=int) != 1:
        return False
    return not tensor.external_data and bool(numpy_helper.to_array(tensor).any())


def _opset(imports: Iterable[Any]) -> int:
    return next((int(o.version) for o in imports if is_default(o.domain)), 0)


def _trains(node: NodeProto, version: int, true: set[str]) -> bool:
    if not is_default(node.domain):
        return False
    if node.op_type == "BatchNormalization":
        if version < 14:  # the number of results is the switch
            return sum(map(bool, node.output)) > 1
        return any(a.name == "training_mode" and a.i for a in node.attribute)
    if node.op_type != "Dropout":
        return False
    if version < 7:
        return not any(a.name == "is_test" and a.i for a in node.attribute)
    return len(node.input) > _SWITCH and node.input[_SWITCH] in true


def _switch(node: NodeProto, version: int) -> dict[str, str]:
    """Switches a node. Returns the operands that stand for the statistics that it returned."""
    if version < 7:
        keep(node.attribute, lambda a: a.name != "is_test")
        node.attribute.append(helper.make_attribute("is_test", 1))
    if node.op_type == "Dropout":
        del node.input[_SWITCH:]
        return {}
    keep(node.attribute, lambda a: a.name != "training_mode")
    pairs = zip(node.output[1:3], (node.input[i] for i in _RUNNING))
    statistics = {name: operand for name, operand in pairs if name}
    del node.output[1:]
    return statistics
