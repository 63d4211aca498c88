"""Equality of models up to the names of inner values, nodes and functions, and the order of nodes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


def canonical(model: ModelProto, *, metadata: bool = True) -> ModelProto:
    """`model` with its main graph's inner values called after what computes them, nodes sorted by that, no value_info."""
    found = ModelProto()
    found.CopyFrom(model)
    _canonical_graph(found.graph, {}, metadata)
    imports = sorted(found.opset_import, key=lambda o: o.domain)
    del found.opset_import[:]
    found.opset_import.extend(imports)
    return found


def _canonical_graph(graph: GraphProto, outer: Mapping[str, str], metadata: bool) -> None:
    names = dict(outer)
    names.update((v.name, v.name) for v in graph.input)
    names.update((t.name, t.name) for t in graph.initializer)
    kept = {v.name for v in graph.output}
    seen: Counter[bytes] = Counter()
    rows: list[tuple[str, NodeProto]] = []
    for node in graph.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        if not metadata:
            del copy.metadata_props[:]
        copy.input[:] = [names[n] if n else "" for n in node.input]
        for a in copy.attribute:
            if a.type == AttributeProto.GRAPH:
                a.g.name = ""
                _canonical_graph(a.g, names, metadata)
        copy.output[:] = [str(i) if n else "" for i, n in enumerate(node.output)]
        data = copy.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).hexdigest()[:24]
        seen[data] += 1
        for i, n in enumerate(node.output):
            if n:
                names[n] = n if n in kept else f"{digest}_{seen[data]}_{i}"
        copy.output[:] = [names[n] if n else "" for n in node.output]
        rows.append((data.hex() + str(seen[data]), copy))
    del graph.node[:]
    graph.node.extend(node for _, node in sorted(rows, key=lambda r: r[0]))
    for v in graph.output:
        v.name = names[v.name]
    del graph.value_info[:]  # what is declared about inner values may be inferred anew
