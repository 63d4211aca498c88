"""One small change of a model, such as a wrong rewrite could make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
# operators that replace each other
_FAMILIES = (
    (
        "Relu",
        "Sigmoid",
        "Tanh",
        "Neg",
        "Abs",
        "Exp",
        "Erf",
        "Sin",
        "Identity",
        "Softplus",
        "Floor",
        "Sqrt",
        "Sign",
    ),
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    ("ArgMax", "ArgMin"),
    ("And", "Or", "Xor"),
    ("MaxPool", "AveragePool"),
)


@dataclass(frozen=True)
class Mutant:
    """`computed`: a weight was recomputed, so that a proof allows for its rounding."""

    model: ModelProto
    what: str
    computed: bool = False


def mutant(rng: Random, model: ModelProto) -> Mutant | None:
    """Returns a copy with one random change, or None if the drawn kind does not apply."""
    copy = ModelProto()
    copy.CopyFrom(model)
    kind, computed = rng.choice(_KINDS)
    what = kind(rng, copy)
    return (
        None
        if what is None or copy == model
        else Mutant(copy, f"{kind.__name__.strip('_')}: {what}", computed)
    )


def _nodes(model: ModelProto) -> list[NodeProto]:
    """Yields every node of the graph, of nested graphs and of functions."""
    found = [*_walk(model.graph.node)]
    for function in model.functions:
        found += _walk(function.node)
    return found


def _walk(nodes: object) -> Iterator[NodeProto]:
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for attribute in node.attribute:
            graphs: tuple[GraphProto, ...] = (
                (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ()
            )
            for graph in graphs:
                yield from _walk(graph.node)


def _operator(rng: Random, model: ModelProto) -> str | None:
    places = [(n, f) for n in _nodes(model) for f in _FAMILIES if n.op_type in f and not n.domain]
    if not places:
        return None
    node, family = rng.choice(places)
    before = node.op_type
    node.op_type = rng.choice([op for op in family if op != before])
    return f"{before} -> {node.op_type} ({node.output[0]})"


def _operands(rng: Random, model: ModelProto) -> str | None:
    places = [n for n in _nodes(model) if len([name for name in n.input if name]) > 1]
    if not places:
        return None
    node = rng.choice(places)
    i, j = rng.sample([k for k, name in enumerate(node.input) if name], 2)
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return f"operands {i} and {j} of {node.op_type} ({node.output[0]})"


def _results(rng: Random, model: ModelProto) -> str | None:
    places = [n for n in _nodes(model) if len([name for name in n.output if name]) > 1]
    if not places:
        return None
    node = rng.choice(places)
    i, j = rng.sample([k for k, name in enumerate(node.output) if name], 2)
    node.output[i], node.output[j] = node.output[j], node.output[i]
    return f"results {i} and {j} of {node.op_type}"


def _attribute(rng: Random, model: ModelProto) -> str | None:
    kinds = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT)
    places = [
        (n, a) for n in _nodes(model) for a in n.attribute if a.type in kinds and a.name != "to"
    ]
    if not places:
        return None
    node, a = rng.choice(places)
    if a.type == AttributeProto.INT:
        a.i += rng.choice((-1, 1))
    elif a.type == AttributeProto.FLOAT:
        a.f = float(np.float32(a.f * (1 + 10 ** -rng.uniform(0, 6)) + rng.choice((0, 1e-6))))
    elif a.ints:
        i = rng.randrange(len(a.ints))
        a.ints[i], a.ints[0] = (
            (a.ints[0], a.ints[i]) if rng.random() < 0.5 else (a.ints[i] + rng.choice((-1, 1)), 0)
        )
    return f"{a.name} of {node.op_type} ({node.output[0]})"


def _bypass(rng: Random, model: ModelProto) -> str | None:
    nodes = list(model.graph.node)
    readers = [
        n for n in nodes if any(name in {o for m in nodes for o in m.output} for name in n.input)
    ]
    if not readers:
        return None
    reader = rng.choice(readers)
    made = {o: n for n in nodes for o in n.output}
    at = rng.choice([i for i, name in enumerate(reader.input) if name in made])
    passed = made[reader.input[at]]
    given = [name for name in passed.input if name]
    if not given:
        return None
    reader.input[at] = rng.choice(given[:2])
    return f"{passed.op_type} before {reader.op_type} ({reader.output[0]})"


def _rewire(rng: Random, model: ModelProto) -> str | None:
    nodes = list(model.graph.node)
    at = rng.randrange(len(nodes))
    known = [v.name for v in model.graph.input] + [o for n in nodes[:at] for o in n.output if o]
    places = [i for i, name in enumerate(nodes[at].input) if name in known]
    if not places or not known:
        return None
    nodes[at].input[rng.choice(places)] = rng.choice(known)
    return f"an operand of {nodes[at].op_type} ({nodes[at].output[0]})"


def _moved_weight(rng: Random, model: ModelProto) -> str | None:
    """Old values in another order: nothing was rounded."""
    places = [t for t in model.graph.initializer if t.data_type in _FLOATS and np.prod(t.dims) > 1]
    if not places:
        return None
    tensor = rng.choice(places)
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    i, j = rng.sample(range(flat.size), 2)
    flat[i], flat[j] = flat[j], flat[i]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name}[{i}] and [{j}]"


def _computed_weight(rng: Random, model: ModelProto) -> str | None:
    places = [t for t in model.graph.initializer if t.data_type in _FLOATS and np.prod(t.dims) > 0]
    if not places:
        return None
    tensor = rng.choice(places)
    array = numpy_helper.to_array(tensor).copy()
    factor = 1 + rng.choice((-1, 1)) * 10 ** -rng.uniform(0, 6)
    if rng.random() < 0.5:
        array = (array * factor).astype(array.dtype)
        where = ""
    else:
        i = rng.randrange(array.size)
        array.reshape(-1)[i] *= factor
        where = f"[{i}]"
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name}{where} * {factor:.8g}"


_KINDS: tuple[tuple[Callable[[Random, ModelProto], str | None], bool], ...] = (
    (_operator, False),
    (_operands, False),
    (_results, False),
    (_attribute, False),
    (_bypass, False),
    (_rewire, False),
    (_moved_weight, False),
    (_computed_weight, True),
    (_computed_weight, True),
)
