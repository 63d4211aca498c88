"""Models without the values of their weights: the outline that a record keeps, and the digest of an
optimised model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from onnx import ModelProto, NodeProto, TensorProto

from onnxgrad.errors import NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.origins import weight_in
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import (
    DATA_FIELDS,
    clear_data,
    copy_fields,
    copy_of,
    every_graph,
    every_node,
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
    return Frame.of(model, made, holders(model)).digest()


@frozen
class Frame:
    """A copy of an optimised model without the data of its constants `made` from weights, and of
    large ones, and without the metadata of its graph. `others`: large ones that are not made, and
    where their data is. `source`: the model.
    """

    source: ModelProto
    model: ModelProto
    made: dict[str, TensorProto]
    others: list[tuple[TensorProto, TensorProto]]

    @staticmethod
    def of(model: ModelProto, made: Collection[str], at: Sequence[int]) -> Frame:
        """Returns the copy of a model of which only the nodes `at` hold constants."""
        frame, graph = Frame(model, ModelProto(), {}, []), model.graph
        copied = frame.model.graph
        copy_fields(model, frame.model, skip=("graph", "functions"))
        copy_fields(graph, copied, skip=("node", "initializer", "value_info", "metadata_props"))
        for field in ("node", "value_info"):
            add = getattr(copied, field).add
            for message in getattr(graph, field):
                add().CopyFrom(message)  # `extend` would serialise and parse it
        add = copied.initializer.add
        for tensor in graph.initializer:
            name = tensor.name
            if name not in made and not _is_large(tensor):
                add().CopyFrom(tensor)
                continue
            bare = add(name=name, data_type=tensor.data_type, dims=tensor.dims)
            if tensor.doc_string or tensor.metadata_props:
                copy_fields(tensor, bare, skip=(*DATA_FIELDS, "name", "data_type", "dims"))
            frame._leaves(name, bare, tensor, made)
        frame.model.functions.extend(model.functions)
        frame._empty_nodes(model, made, at)
        return frame

    def _empty_nodes(self, model: ModelProto, made: Collection[str], at: Sequence[int]) -> None:
        """Removes the data of constants in the nodes `at` and in functions."""
        bodies = [
            [body.node[i] for i in at if i < len(body.node)]
            for body in (model.graph, self.model.graph)
        ]
        for i in reversed(range(len(model.functions))):  # the last of equal names is made
            bodies[0] += model.functions[i].node
            bodies[1] += self.model.functions[i].node
        tensors, bares = (list(_constants_in([body])) for body in bodies)
        for (name, tensor), (_, bare) in zip(tensors, bares, strict=True):
            if name in made or _is_large(tensor):
                clear_data(bare)
                self._leaves(name, bare, tensor, made)

    def _leaves(
        self, name: str, bare: TensorProto, tensor: TensorProto, made: Collection[str]
    ) -> None:
        if name in made and name not in self.made:
            self.made[name] = bare
        else:
            self.others.append((bare, tensor))

    def digest(self) -> str:
        """Identifies the model, before `complete`."""
        rest = ModelProto()
        copy_fields(self.model, rest, skip=("graph", "functions", "metadata_props", *_ABOUT))
        found = hashlib.sha256()
        for part in (self.model.graph, *self.model.functions, rest):
            found.update(part.SerializeToString(deterministic=True))
        return found.hexdigest()

    def complete(self) -> ModelProto:
        """Copies the data of `others` and the metadata. Returns the model."""
        for bare, tensor in self.others:
            bare.CopyFrom(tensor)
        self.others.clear()
        self.model.graph.metadata_props.extend(self.source.graph.metadata_props)
        return self.model


def holders(model: ModelProto) -> list[int]:
    """The places of the nodes of the main graph that hold constants, or graphs."""
    return [i for i, n in enumerate(model.graph.node) if n.op_type == "Constant" or graphs_of(n)]


def weight_holders(model: ModelProto) -> list[int]:
    """The places of the nodes of the main graph that may hold weights, or graphs."""
    nodes = model.graph.node
    return [i for i in holders(model) if weight_in(nodes[i]) is not None or graphs_of(nodes[i])]


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
    yield from _constants_in([*(f.node for f in model.functions), model.graph.node])
    yield from ((t.name, t) for t in model.graph.initializer)


def _constants_in(bodies: Iterable[Iterable[NodeProto]]) -> Iterator[tuple[str, TensorProto]]:
    """The values of Constant nodes, and the initializers of nested graphs, by name."""
    for node in chain.from_iterable(bodies):
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
            continue
        for graph in graphs_of(node):
            yield from _constants_in([graph.node])
            yield from ((t.name, t) for t in graph.initializer)


def initializers(
    model: ModelProto, at: Sequence[int] | None = None
) -> Iterator[tuple[str, TensorProto]]:
    """The initializers of all graphs, and the Constant nodes in graphs that may hold weights, by
    name. `at`: the `weight_holders`, if they are known.
    """
    graph = model.graph
    nodes = graph.node if at is None else [graph.node[i] for i in at]
    yield from ((t.name, t) for t in graph.initializer)
    yield from _weights_in(nodes)
    for inner in (g for node in nodes for nested in graphs_of(node) for g in every_graph(nested)):
        yield from ((t.name, t) for t in inner.initializer)
        yield from _weights_in(inner.node)


def _weights_in(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    for node in nodes:
        tensor = weight_in(node) if node.op_type == "Constant" else None
        if tensor is not None:
            yield node.output[0], tensor


def strip_like(node: NodeProto, like: NodeProto) -> None:
    """Removes what an outline leaves out of a node: descriptions, and the data of those constants
    that have none in the node `like` of the outline.
    """
    gone = {n for n, t in _constants_in([[like]]) if not has_data(t)}
    for inner in every_node([node]):
        inner.ClearField("metadata_props")
        inner.ClearField("doc_string")
    for name, tensor in _constants_in([[node]]):
        if name in gone:
            clear_data(tensor)
