"""Edits of a model's protobuf that a careless tool could make: names, nodes, types, attributes, sizes, opsets, functions.

Unlike damage to bytes, the result is always a readable file; it is a valid model only by chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from tests.hostile.build import function, graph, model, node, tensor, value
from tests.hostile.seeds import seeds

_OPS = (
    *("Identity", "Constant", "ConstantOfShape", "Reshape", "Gemm", "MatMul", "Softmax", "Cast", "Shape", "Transpose"),
    *("Concat", "Split", "Gather", "Conv", "ReduceSum", "Slice", "Expand", "Where", "Dropout", "TopK", "If", "Loop"),
    *("Scan", "LSTM", "Einsum", "BatchNormalization", "LayerNormalization", "NegativeLogLikelihoodLoss", "Nowhere"),
    *("SequenceConstruct", "SequenceAt", "Optional", "RandomNormal", "QuantizeLinear", "Resize", "Pad", "CumSum"),
    *("SoftmaxCrossEntropyLoss", "Attention", "OneHot", "ArgMax", "Squeeze", "Unsqueeze", "Size", "NonZero", "Mul"),
)  # fmt: skip
_SIZES = (-1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_DTYPES = (0, *range(1, 18), 22, 23, 999, -1)
_OPSETS = (-1, 0, 1, 6, 7, 9, 11, 12, 13, 17, 18, 21, 22, 23, 25, 26, 30, 2**31)
_TYPES = (0, *range(1, 15))


def structural_seeds() -> Iterator[tuple[str, ModelProto]]:
    """(name, model) of valid models: the seeds of random damage, a loss, recurrence, and a Scan."""
    for name, data in seeds():
        yield name, ModelProto.FromString(data)
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return tensor(name, rng.standard_normal(shape), np.float32)

    yield "loss", model(
        [node("Gemm", "x w b", "h", transB=1), node("LayerNormalization", "h g", "n"), node("Relu", "n", "r"),
         node("Gemm", "r v", "z"), node("SoftmaxCrossEntropyLoss", "z t k", "y", reduction="mean")],
        [weight("w", 4, 3), weight("b", 4), weight("g", 4), weight("v", 4, 5), tensor("t", [1, 0]),
         tensor("k", [1, 2, 1, 1, 1], np.float32)], y=value("y", ()),
    )  # fmt: skip
    yield "recurrent", model(
        [node("LSTM", "x w r", "h", hidden_size=2), node("Squeeze", "h a", "s"), node("Einsum", "s s", "y", equation="abc,abc->ab")],
        [weight("w", 1, 8, 3), weight("r", 1, 8, 2), tensor("a", [1])], x=value("x", ("T", 1, 3)),
    )  # fmt: skip
    body = graph(
        [node("Add", "s e", "t"), node("Where", "k t e", "o")],
        [value("s", (3,)), value("e", (3,))], [value("t", (3,)), value("o", (3,))], [tensor("k", True)],
    )  # fmt: skip
    yield "scan", model(
        [node("Scan", "z x", "l o", body=body, num_scan_inputs=1), node("SequenceConstruct", "o o", "q"),
         node("ConcatFromSequence", "q", "y", axis=0)], [tensor("z", [0, 0, 0], np.float32)],
    )  # fmt: skip


def mutants(numbers: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """(name, file) of the mutants with these numbers; the seeds take turns."""
    models = list(structural_seeds())
    for i in numbers:
        name, seed = models[i % len(models)]
        yield f"{name}, edit {i}", mutant(random.Random(i), seed).SerializeToString()


def mutant(rng: random.Random, seed: ModelProto) -> ModelProto:
    """A copy of the seed after one to three random edits."""
    made = ModelProto()
    made.CopyFrom(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(EDITS)(rng, made)
    return made


def graphs(made: ModelProto) -> list[GraphProto]:
    """The main graph, and those inside its nodes and in functions."""
    found, work = [made.graph], [*made.graph.node, *(n for f in made.functions for n in f.node)]
    for at in work:
        for a in at.attribute:
            inner = [*([a.g] if a.HasField("g") else []), *a.graphs]
            found += inner
            work += [n for g in inner for n in g.node]
    return found


def _nodes(rng: random.Random, made: ModelProto) -> list[tuple[object, int]]:
    """(owner, index) of every node, whose owner is a graph or a function; shuffled."""
    found = [(o, i) for o in (*graphs(made), *made.functions) for i in range(len(o.node))]
    rng.shuffle(found)
    return found


def _any_node(rng: random.Random, made: ModelProto) -> NodeProto:
    found = _nodes(rng, made)
    if not found:
        made.graph.node.append(node("Identity", "x", "y"))
        return made.graph.node[0]
    owner, i = found[0]
    return owner.node[i]  # type: ignore[attr-defined,no-any-return]


def _names(made: ModelProto) -> list[str]:
    found = {"": None, "x": None, "y": None, "nowhere": None}
    for g in graphs(made):
        found |= dict.fromkeys(v.name for v in (*g.input, *g.output, *g.initializer))
        found |= dict.fromkeys(n for at in g.node for n in (*at.input, *at.output))
    return list(found)


def delete_node(rng: random.Random, made: ModelProto) -> None:
    for owner, i in _nodes(rng, made)[:1]:
        del owner.node[i]  # type: ignore[attr-defined]


def repeat_node(rng: random.Random, made: ModelProto) -> None:
    for owner, i in _nodes(rng, made)[:1]:
        owner.node.append(owner.node[i])  # type: ignore[attr-defined]


def move_node(rng: random.Random, made: ModelProto) -> None:
    """Its order is wrong afterwards, which may be allowed."""
    for owner, i in _nodes(rng, made)[:1]:
        copy = NodeProto()
        copy.CopyFrom(owner.node[i])  # type: ignore[attr-defined]
        del owner.node[i]  # type: ignore[attr-defined]
        owner.node.insert(rng.randrange(len(owner.node) + 1), copy)  # type: ignore[attr-defined]


def other_operator(rng: random.Random, made: ModelProto) -> None:
    _any_node(rng, made).op_type = rng.choice((*_OPS, *_OPS, "", "a" * 300))


def other_domain(rng: random.Random, made: ModelProto) -> None:
    at = _any_node(rng, made)
    at.domain = rng.choice(("", "ai.onnx", "com.microsoft", "f", "nowhere", "ai.onnx.ml"))
    at.overload = rng.choice(("", "", "other"))


def rewire(rng: random.Random, made: ModelProto) -> None:
    """Another operand, which may close a cycle or be of another type."""
    at = _any_node(rng, made)
    if at.input and rng.random() < 0.8:
        at.input[rng.randrange(len(at.input))] = rng.choice(_names(made))
    else:
        at.input.append(rng.choice(_names(made)))


def fewer_operands(rng: random.Random, made: ModelProto) -> None:
    at = _any_node(rng, made)
    ends = at.input if rng.random() < 0.6 else at.output
    if ends:
        del ends[rng.randrange(len(ends))]


def other_result(rng: random.Random, made: ModelProto) -> None:
    """A name that stands elsewhere too, none, or one output too many."""
    at = _any_node(rng, made)
    if at.output and rng.random() < 0.6:
        at.output[rng.randrange(len(at.output))] = rng.choice(_names(made))
    else:
        at.output.append(rng.choice(("", "extra", *_names(made))))


def rename(rng: random.Random, made: ModelProto) -> None:
    """Of an input, output or weight: to nothing, to a neighbour's name, or to one that nothing reads."""
    g = rng.choice(graphs(made))
    values = [*g.input, *g.output, *g.initializer, *g.value_info]
    if values:
        rng.choice(values).name = rng.choice(_names(made))


def delete_value(rng: random.Random, made: ModelProto) -> None:
    g = rng.choice(graphs(made))
    field = rng.choice((g.input, g.output, g.initializer))
    if len(field):
        del field[rng.randrange(len(field))]


def repeat_value(rng: random.Random, made: ModelProto) -> None:
    g = rng.choice(graphs(made))
    field = rng.choice((g.input, g.output, g.initializer))
    if len(field):
        field.append(rng.choice(field))  # type: ignore[call-overload]


def declared_dtype(rng: random.Random, made: ModelProto) -> None:
    g = rng.choice(graphs(made))
    values = [*g.input, *g.output, *g.value_info]
    if values:
        at = rng.choice(values)
        kind = rng.choice(("tensor", "tensor", "tensor", "sequence", "optional", "sparse", "none"))
        if kind == "none":
            at.ClearField("type")
        elif kind == "sequence":
            at.type.sequence_type.elem_type.tensor_type.elem_type = 1
        elif kind == "optional":
            at.type.optional_type.elem_type.tensor_type.elem_type = 1
        elif kind == "sparse":
            at.type.sparse_tensor_type.elem_type = 1
        else:
            at.type.tensor_type.elem_type = rng.choice(_DTYPES)


def declared_sizes(rng: random.Random, made: ModelProto) -> None:
    g = rng.choice(graphs(made))
    values = [v for v in (*g.input, *g.output, *g.value_info) if v.type.HasField("tensor_type")]
    if not values:
        return
    at = rng.choice(values).type.tensor_type
    way = rng.randrange(4)
    if way == 0:
        at.ClearField("shape")
    elif way == 1 or not at.shape.dim:
        at.shape.dim.add(dim_value=rng.choice(_SIZES))
    elif way == 2:
        del at.shape.dim[rng.randrange(len(at.shape.dim))]
    else:
        dim = at.shape.dim[rng.randrange(len(at.shape.dim))]
        dim.Clear()
        if rng.random() < 0.6:
            dim.dim_value = rng.choice(_SIZES)
        elif rng.random() < 0.7:
            dim.dim_param = rng.choice(("", "N", "N+M", "x", "-1", "T"))


def _tensors(made: ModelProto) -> list[TensorProto]:
    found = [t for g in graphs(made) for t in g.initializer]
    return found + [
        a.t for g in graphs(made) for n in g.node for a in n.attribute if a.HasField("t")
    ]


def weight_dims(rng: random.Random, made: ModelProto) -> None:
    for t in rng.sample(found := _tensors(made), min(len(found), 1)):
        way = rng.randrange(3)
        if way == 0:
            t.dims.append(rng.choice(_SIZES))
        elif t.dims:
            i = rng.randrange(len(t.dims))
            if way == 1:
                t.dims[i] = rng.choice(_SIZES)
            else:
                del t.dims[i]


def weight_data(rng: random.Random, made: ModelProto) -> None:
    """Data of another length or in another field, another dtype, or external data that is nowhere."""
    for t in rng.sample(found := _tensors(made), min(len(found), 1)):
        way = rng.randrange(6)
        if way == 0:
            t.data_type = rng.choice(_DTYPES)
        elif way == 1:
            t.raw_data = t.raw_data[: rng.randrange(len(t.raw_data) + 1)]
        elif way == 2:
            t.raw_data = t.raw_data + rng.randbytes(rng.randrange(1, 9))
        elif way == 3:
            t.ClearField("raw_data")
        elif way == 4:
            t.float_data.extend([1.0] * rng.randrange(1, 4))
        else:
            t.data_location = TensorProto.EXTERNAL
            for key, text in (
                ("location", rng.choice(("nowhere.bin", "good.bin", ""))),
                ("offset", "-1"),
            ):
                if rng.random() < 0.7:
                    t.external_data.add(key=key, value=text)


def weight_shape(rng: random.Random, made: ModelProto) -> None:
    """A weight of another rank, whose data fit."""
    for t in rng.sample(found := _tensors(made), min(len(found), 1)):
        try:
            array = numpy_helper.to_array(t)
        except Exception:  # noqa: BLE001  # an earlier edit damaged it
            continue
        other = [array.reshape(-1), array[None], array.reshape(-1)[0] if array.size else array]
        t.CopyFrom(numpy_helper.from_array(np.asarray(rng.choice(other)), t.name))


def attribute_type(rng: random.Random, made: ModelProto) -> None:
    at = _any_node(rng, made)
    if at.attribute:
        a = rng.choice(at.attribute)
        a.type = rng.choice(_TYPES)  # type: ignore[assignment]
        if rng.random() < 0.3:
            a.ref_attr_name = rng.choice(("", "axis", "nowhere"))


def attribute_value(rng: random.Random, made: ModelProto) -> None:
    at = _any_node(rng, made)
    if not at.attribute:
        return
    i = rng.randrange(len(at.attribute))
    a = at.attribute[i]
    way = rng.randrange(4)
    if way == 0:
        del at.attribute[i]
    elif way == 1:
        a.name = rng.choice(("", "axis", "value", "body", "perm", "nowhere"))
    elif way == 2:
        at.attribute.append(a)
    else:
        a.i = rng.choice(_SIZES)
        a.f = rng.choice((0.0, -1.0, 1e38, float("nan")))
        a.s = rng.choice((b"", b"nonsense", b"\xff\xfe", b"sum"))
        a.ints[:] = [rng.choice(_SIZES[:6]) for _ in range(rng.randrange(5))]


def new_attribute(rng: random.Random, made: ModelProto) -> None:
    at = _any_node(rng, made)
    name = rng.choice(
        ("axis", "axes", "perm", "to", "value", "value_int", "epsilon", "body", "keepdims", "alpha")
    )
    a = AttributeProto(name=name, type=rng.choice(_TYPES[1:9]))  # type: ignore[arg-type]
    a.i, a.f, a.s = rng.choice(_SIZES), 0.5, b"mean"
    a.ints[:] = [rng.randrange(-1, 3) for _ in range(rng.randrange(4))]
    at.attribute.append(a)


def opset(rng: random.Random, made: ModelProto) -> None:
    way = rng.randrange(5)
    if way == 0 and made.opset_import:
        del made.opset_import[rng.randrange(len(made.opset_import))]
    elif way == 1:
        made.opset_import.add(
            domain=rng.choice(("", "ai.onnx", "f", "my")), version=rng.choice(_OPSETS)
        )
    elif way == 2:
        made.ir_version = rng.choice((-1, 0, 1, 3, 4, 8, 10, 13, 14, 99, 2**40))
    elif made.opset_import:
        rng.choice(made.opset_import).version = rng.choice(_OPSETS)


def cycle(rng: random.Random, made: ModelProto) -> None:
    """A node reads a result that is computed from it."""
    nodes = [n for n in made.graph.node if n.input and n.output]
    if len(nodes) > 1:
        first, last = sorted(rng.sample(range(len(nodes)), 2))
        nodes[first].input[rng.randrange(len(nodes[first].input))] = nodes[last].output[0]


def functions(rng: random.Random, made: ModelProto) -> None:
    """A function that is called like an operator, calls itself, has no nodes, or has other ends."""
    if not made.functions or rng.random() < 0.5:
        name = rng.choice(("Constant", "Relu", "Shape", "p", "If", "Identity"))
        domain = rng.choice(("", "f", "f", "ai.onnx"))
        body = [node(rng.choice(("Sigmoid", "Neg", "Nowhere")), "a", "b")]
        made.functions.append(function(name, body, domain=domain))
        made.opset_import.add(domain=domain, version=1)
        at = _any_node(rng, made)
        if rng.random() < 0.7:
            at.op_type, at.domain = name, domain
        return
    at = rng.choice(made.functions)
    way = rng.randrange(7)
    if way == 0:
        at.node.append(NodeProto(op_type=at.name, domain=at.domain, input=["a"], output=["b"]))
    elif way == 1:
        del at.node[:]
    elif way == 2:
        at.input.append(rng.choice(("a", "", "c")))
    elif way == 3:
        at.output.append(rng.choice(("b", "", "nowhere")))
    elif way == 4:
        at.name = rng.choice(("Constant", "", "If"))
    elif way == 5:
        del at.opset_import[:]
    else:
        made.functions.append(at)


EDITS: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    delete_node, repeat_node, move_node, other_operator, other_operator, other_domain, rewire, rewire, fewer_operands,
    fewer_operands, other_result, rename, delete_value, repeat_value, declared_dtype, declared_sizes, weight_dims,
    weight_data, weight_shape, weight_shape, attribute_type, attribute_value, new_attribute, opset, cycle, functions,
)  # fmt: skip
