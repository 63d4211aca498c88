"""Models without the values of their weights: the outline that a record keeps, and the digest of an
optimised model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from onnxgrad.errors import NotProved
from onnxgrad.ir.origins import weight_in
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import (
    DATA_FIELDS,
    clear_data,
    copy_fields,
    copy_of,
    every_graph,
    graphs_of,
    model_nodes,
)
from onnxgrad.ir.storage.external_data import internalize

# constants of so many bytes may be stored in another file
_LARGE = 1 << 10
# describe an export, beside its entries of metadata; passes keep them
_ABOUT = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


def without_weights(
    program: Program, weights: Collection[str], *, described: bool = False
) -> ModelProto:
    """The model that was read, without data of weights, and unless `described` without metadata of
    nodes. Raises NotProved if two initializers have one name.
    """
    made = copy_of(program.proto)
    names: set[str] = set()
    for node in () if described else model_nodes(made):
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for name, tensor in initializers(made):
        if name in names:
            raise NotProved(f"not rebasable: two initializers are called '{name}'")
        names.add(name)
        if name in weights:
            clear_data(tensor)
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(internalize(tensor, program.folder))
    return made


def digest_of(model: ModelProto, made: Collection[str]) -> str:
    """Identifies an optimised model, whatever the values of the constants `made` from weights, its
    metadata, and wherever large constants are stored.
    """
    bare, found = ModelProto(), hashlib.sha256()
    copy_fields(model, bare, skip=("graph", "functions", "metadata_props", *_ABOUT))
    copy_fields(model.graph, bare.graph, skip=("initializer", "node"))
    for tensor in model.graph.initializer:
        if tensor.name in made or _is_large(tensor):
            found.update(repr((tensor.name, tensor.data_type, tensor.dims[:])).encode())
        else:
            found.update(tensor.SerializeToString(deterministic=True))
    for part in (*model.functions, *model.graph.node, bare):
        found.update(_bare_bytes(part, made))
    return found.hexdigest()


def _bare_bytes(part: Any, made: Collection[str]) -> bytes:
    """The bytes of a node, a function, or the rest of a model, without the data of constants that
    are `made` or large. A part without any is not copied.
    """
    if any(name in made or _is_large(t) for name, t in _constants_of(part)):
        part = copy_of(part)
        for name, tensor in _constants_of(part):
            if name in made or _is_large(tensor):
                clear_data(tensor)
    data: bytes = part.SerializeToString(deterministic=True)
    return data


def _constants_of(part: Any) -> Iterable[tuple[str, TensorProto]]:
    if isinstance(part, NodeProto):
        return _constants_in([[part]])
    return _constants_in([part.node]) if isinstance(part, FunctionProto) else ()


def _is_large(tensor: TensorProto) -> bool:
    return (raw_bytes(tensor) or 0) >= _LARGE


def set_by_optimize(model: ModelProto, original: ModelProto) -> list[str]:
    """The fields and metadata of an optimised model that differ from those of its original."""
    fields = [name for name in _ABOUT if getattr(model, name) != getattr(original, name)]
    before = {entry.key: entry.value for entry in original.metadata_props}
    return fields + [e.key for e in model.metadata_props if before.get(e.key) != e.value]


def describe(made: ModelProto, own: Collection[str], new: ModelProto) -> None:
    """Gives an optimised model the metadata of the new export, except for its `own`."""
    for name in _ABOUT:
        if name not in own:
            made.ClearField(name)
            if new.HasField(name):
                setattr(made, name, getattr(new, name))
    kept = [copy_of(e) for e in made.metadata_props if e.key in own]
    made.ClearField("metadata_props")
    made.metadata_props.extend(e for e in new.metadata_props if e.key not in own)
    made.metadata_props.extend(kept)


def has_data(tensor: TensorProto) -> bool:
    """Whether a tensor has elements, or needs none."""
    return any(entry.name in DATA_FIELDS for entry, _ in tensor.ListFields()) or 0 in tensor.dims


def constants_of(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """The values of Constant nodes, and the initializers of all graphs, by name."""
    yield from _constants_in(_bodies(model))
    yield from ((t.name, t) for t in model.graph.initializer)


def _bodies(model: ModelProto) -> list[Any]:
    """The nodes of the graph, and of each function."""
    return [*(f.node for f in model.functions), model.graph.node]


def _constants_in(bodies: Iterable[Iterable[NodeProto]]) -> Iterator[tuple[str, TensorProto]]:
    """The values of Constant nodes, and the initializers of nested graphs, by name."""
    for node in chain.from_iterable(bodies):
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
            continue
        for graph in graphs_of(node):
            yield from _constants_in([graph.node])
            yield from ((t.name, t) for t in graph.initializer)


def initializers(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """The initializers of all graphs, and the Constant nodes in graphs that may hold weights, by
    name.
    """
    for graph in every_graph(model.graph):
        yield from ((t.name, t) for t in graph.initializer)
        for node in graph.node:
            tensor = weight_in(node) if node.op_type == "Constant" else None
            if tensor is not None:
                yield node.output[0], tensor


def bare(node: NodeProto) -> NodeProto:
    """Returns the node as an outline has it if its constant is a weight."""
    made = NodeProto()
    copy_fields(node, made, skip=("metadata_props", "doc_string"))
    tensor = weight_in(made)
    if tensor is not None:
        clear_data(tensor)
    return made
