"""Whole random models: control flow, functions, overridable weights, every opset from 13 to 25;
and feeds for them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from scripts.sweeping import composites, selections  # noqa: F401  # they register their steps
from scripts.sweeping.graphs import BOOL, INT, Block, Names, Value
from scripts.sweeping.steps import STEPS, step

OPSETS = range(13, 26)
INPUTS: tuple[tuple[int | str, ...], ...] = (
    ("N", 3),
    (2, 3),
    (3,),
    (1, 2, 3, 3),
    ("N", 2, 3, 3),
    (2, 2),
    ("N", 3, 2),
    (2, 3, 4),
    ("N", "S", 4),
    (2, 9, 8),
)
# sizes of the symbols, in turns
_SIZES = {"N": (1, 3), "S": (4, 2)}


def random_model(rng: Random) -> ModelProto:
    """Returns a model of 3 to 14 steps. It may fail on some or all feeds."""
    opset = rng.choice(OPSETS)
    names = Names(
        rng, opset, rng.choice([TensorProto.FLOAT] * 3 + [TensorProto.DOUBLE, TensorProto.FLOAT16])
    )
    main = Block(names)
    inputs = [Value(f"x{i}", names.dtype, rng.choice(INPUTS)) for i in range(rng.randint(1, 3))]
    main.values += inputs
    for _ in range(rng.randint(3, 14)):
        rng.choice(STEPS)(main)
    made = [v for v in main.values if v not in inputs] or [main.add("Neg", [inputs[0]], inputs[0])]
    outputs = rng.sample(made, min(len(made), rng.randint(1, 4)))
    if rng.random() < 0.8 and made[-1] not in outputs:
        outputs.append(made[-1])
    graph = helper.make_graph(
        main.nodes,
        "g",
        [_info(v) for v in inputs],
        [_info(v, rng) for v in outputs],
        [t for _, t in names.weights],
    )
    # a caller may override these; with other axes or sizes the declared outputs would be wrong
    if rng.random() < 0.2:
        graph.input.extend(
            _info(v)
            for v, _ in names.weights
            if v.dtype == names.dtype and v.exact and rng.random() < 0.4
        )
    if rng.random() < 0.2:  # a file's own names for sizes are anything, those that onnx invents too
        graph.value_info.extend(_info(v, rng, {"N": "unk__0"}) for v in made if rng.random() < 0.5)
    imports = [
        helper.make_opsetid("", opset),
        *([helper.make_opsetid("f", 1)] if names.functions else []),
    ]
    functions = [function for _, function in names.functions]
    return helper.make_model(
        graph, ir_version=8 if opset < 19 else 10, opset_imports=imports, functions=functions
    )


def _info(v: Value, rng: Random | None = None, renamed: dict[str, str] | None = None) -> Any:
    """Sizes that depend on data are unknown, have a name of their own, or there are no sizes at
    all.
    """
    if rng is not None and rng.random() < 0.3:
        return helper.make_tensor_value_info(v.name, v.dtype, None)
    dims = [(renamed or {}).get(d, d) if isinstance(d, str) else d for d in v.dims]
    return helper.make_tensor_value_info(v.name, v.dtype, dims)


def random_feeds(rng: Random, model: ModelProto) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Zeros, ties, and repeated values twice, at two sizes; overridable weights now and then
    given.
    """
    given = {t.name for t in model.graph.initializer}
    feeds = []
    for i, pool in enumerate(([0], [1], [-1, 0, 0, 1, 2], [-2, -1, -0.5, 0.5, 1, 1, 2])):
        feed = {}
        for value in model.graph.input:
            if value.name in given and (i < 2 or rng.random() < 0.5):
                continue
            tensor = value.type.tensor_type
            dims = [d.dim_value or _SIZES[d.dim_param][i % 2] for d in tensor.shape.dim]
            kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feed[value.name] = np.array(
                rng.choices(pool, k=int(np.prod(dims, dtype=int))), kind
            ).reshape(dims)
        feeds.append(feed)
    return feeds


# ---- control flow and functions ------------------------------------------------------------------


def _grown(g: Block, start: Value | None, steps: int, inputs: list[Value]) -> Block:
    inner = Block(g.names, [*g.outer, *g.values])
    inner.values += inputs
    if start is not None:
        inner.outer.append(start)
    for _ in range(steps):
        g.rng.choice(STEPS)(inner)
    return inner


def _graph(inner: Block, name: str, inputs: list[Any], outputs: list[Value]) -> GraphProto:
    return helper.make_graph(
        inner.nodes,
        name,
        inputs,
        [helper.make_tensor_value_info(v.name, v.dtype, None) for v in outputs],
    )


def _ending(inner: Block, v: Value) -> Value:
    """A result of `v`'s dtype and sizes."""
    found = inner.pick(lambda u: u.dtype == v.dtype and u.dims == v.dims) or v
    return inner.add(inner.rng.choice(["Identity", "Neg", "Relu"]), [found], v)


def _condition(g: Block) -> Value | None:
    v = g.floating(exact=True)
    if v is None:
        return None
    flat = g.add("Reshape", [v, g.ints(-1)], replace(v, dims=(g.names.new("u"),)))
    total = g.add("ReduceSum", [flat, g.ints(0)], replace(flat, dims=()), keepdims=0)
    return g.add("Greater", [total, g.names.weight([], v.dtype)], replace(total, dtype=BOOL))


@step()
def branching(g: Block) -> None:
    v, c = g.floating(), _condition(g)
    if v is None or c is None or len(g.nodes) > 60:
        return
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = _grown(g, v, g.rng.randint(0, 3), [])
        branches[name] = _graph(inner, g.names.new("b"), [], [_ending(inner, v)])
    g.add("If", [c], replace(v, exact=False), **branches)


@step()
def looping(g: Block) -> None:
    v = g.floating()
    if v is None or len(g.nodes) > 60:
        return
    i, k, state = (
        Value(g.names.new("i"), INT, ()),
        Value(g.names.new("k"), BOOL, ()),
        replace(v, name=g.names.new("s")),
    )
    inner = _grown(g, None, g.rng.randint(0, 2), [state])
    end = inner.bounded(_ending(inner, state))
    more = inner.add("Identity", [k], k)
    scanned = _ending(inner, v)
    body = _graph(
        inner,
        g.names.new("b"),
        [_info(i), _info(k), helper.make_tensor_value_info(state.name, v.dtype, None)],
        [more, end, scanned],
    )
    # of no iteration, onnxruntime makes an empty result whose other sizes are those that inference
    # happens to know
    count = g.names.constant(np.int64(g.rng.randint(1, 3)))
    g.several(
        "Loop",
        [count, None, v],
        [replace(v, exact=False), replace(v, dims=(g.names.new("u"), *v.dims), exact=False)],
        body=body,
    )


@step()
def scanning(g: Block) -> None:
    v = g.floating()
    if v is None or len(v.dims) < 2 or len(g.nodes) > 60:
        return
    row = Value(g.names.new("r"), v.dtype, v.dims[1:], v.exact)
    inner = _grown(g, None, g.rng.randint(0, 2), [row])
    body = _graph(
        inner,
        g.names.new("b"),
        [helper.make_tensor_value_info(row.name, v.dtype, None)],
        [_ending(inner, row)],
    )
    g.add("Scan", [v], replace(v, exact=False), num_scan_inputs=1, body=body)


@step()
def calling(g: Block) -> None:
    """Returns a function of one operand that keeps its sizes; its body has no types."""
    v = g.floating()
    if v is None or g.outer:
        return
    functions = g.names.functions
    if not functions or g.rng.random() < 0.5:
        name = g.names.new("F")
        inner, a = Block(g.names), Value("a", v.dtype, ("A",))
        inner.values.append(a)
        for op in g.rng.choices(
            ["Neg", "Relu", "Tanh", "Abs", "Identity", "square", "double"], k=g.rng.randint(1, 4)
        ):
            last = inner.values[-1]
            two = {"square": ("Mul", last), "double": ("Add", inner.values[0])}.get(op)
            inner.add(*((two[0], [last, two[1]]) if two else (op, [last])), last)
        imports = [
            helper.make_opsetid("", g.names.opset),
            *([helper.make_opsetid("f", 1)] if functions else []),
        ]
        if functions and g.rng.random() < 0.5:
            last, called = inner.values[-1], g.rng.choice(functions)[0]
            inner.add(called, [last], last, domain="f")
        functions.append(
            (
                name,
                helper.make_function(
                    "f", name, ["a"], [inner.values[-1].name], inner.nodes, imports
                ),
            )
        )
    for _ in range(g.rng.randint(1, 2)):
        g.add(g.rng.choice(functions)[0], [v], replace(v, exact=False), domain="f")
