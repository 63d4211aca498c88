"""Random models that a law's pattern may match: the pattern's operators, with operands of any rank,
dtype and sizes that ONNX's shape inference accepts.

The models use nothing else of the law, so most of its guards fail on some models and hold on
others. Some models have symbols or unknown sizes and ranks, or are in a local function, whose
values have no types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from onnxgrad.rewrite.pattern import (
    Both,
    Call,
    Capture,
    Each,
    Either,
    Literal,
    Not,
    Pattern,
    names_in,
)

Shape = tuple[int, ...]
INT = TensorProto.INT64
SIZES = "sizes"  # among the metadata of a model
_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_TRIES = 25
_NODES = 500  # that are tried for one model
_SIZES = (1, 1, 2, 2, 3, 4, 4, 8)
_DTYPES = (
    *[TensorProto.FLOAT] * 8, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
    TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8, TensorProto.INT8,
)  # fmt: skip


class Impossible(Exception):
    """The operator accepts no such operands."""


@dataclass(frozen=True)
class Value:
    """A value's name, dtype and shape; `array` where the file fixes it."""

    name: str
    dtype: int
    shape: Shape
    array: np.ndarray[Any, Any] | None = None

    @property
    def type(self) -> TypeProto:
        return helper.make_tensor_type_proto(self.dtype, self.shape)


class Growing:
    """A graph under construction."""

    def __init__(self, rng: Random, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.dtype = rng.choice(_DTYPES)
        self.nodes: list[NodeProto] = []
        self.inputs: list[Value] = []
        self.constants: list[Value] = []
        self.captured: dict[str, Any] = {}
        self.count = 0
        self.left = _NODES

    def new(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # ---- leaves ----------------------------------------------------------------------------------

    def constant(self, array: Any) -> Value:
        array = np.asarray(array)
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        made = Value(self.new("c"), dtype, array.shape, array)
        self.constants.append(made)
        return made

    def leaf(self, dtype: int, like: Sequence[Value], *, fixed: bool | None = None) -> Value:
        """Returns an input or a constant whose shape is related to that of `like`."""
        shape = self.shape(like)
        if fixed if fixed is not None else self.chance(0.4):
            kind = helper.tensor_dtype_to_np_dtype(dtype)
            signed = dtype in {*_FLOATS, TensorProto.INT64, TensorProto.INT32}
            pool = [0, 1] if dtype == TensorProto.BOOL else [0, 1, 1, 2, 3, -1 if signed else 1]
            shape = self.rng.choice(((), (1,))) if self.chance(0.25) else shape
            size = int(np.prod(shape, dtype=int))
            pool = [self.rng.choice(pool)] if self.chance(0.3) else pool  # the same everywhere
            return self.constant(
                np.array(self.rng.choices(pool, k=size)).astype(kind).reshape(shape)
            )
        made = Value(self.new("x"), dtype, shape)
        self.inputs.append(made)
        return made

    def shape(self, like: Sequence[Value]) -> Shape:
        rng = self.rng
        if not like or self.chance(0.15):
            return tuple(rng.choice(_SIZES) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4))))
        s = rng.choice(like).shape
        ones = tuple(n if self.chance(0.5) else 1 for n in s)
        other = rng.choice(_SIZES)
        return rng.choice(
            (s, s, s, s[-1:], s[-1:], (), (1,), ones, s[1:], (other, *s), (1, *s), (*s[:-1], other),
             (*s[:-2], *s[-1:], other), (*s[-1:], other), (other, *s[1:]), s[::-1], s[1:2])
        )  # fmt: skip

    # ---- patterns --------------------------------------------------------------------------------

    def value(self, p: Pattern | None, dtype: int, like: Sequence[Value]) -> Value | None:
        if p is None:
            return None
        if isinstance(p, Capture):
            return self.capture(p, dtype, like)
        if isinstance(p, Literal):
            return self.literal(p, dtype)
        if isinstance(p, Either):
            return self.value(self.rng.choice(p.choices), dtype, like)
        if isinstance(p, Both):
            known = p.first if isinstance(p.first, Capture) else None
            made = self.value(p.second, dtype, like)
            if known is not None:
                self.captured.setdefault(known.name, made)
            return made
        if isinstance(p, Call):
            return self.call(p, like)
        return self.leaf(dtype, like) if isinstance(p, Not) else None

    def capture(self, p: Capture, dtype: int, like: Sequence[Value]) -> Value | None:
        if p.name not in self.captured:
            if p.absent and self.chance(0.4):
                return None
            self.captured[p.name] = self.leaf(dtype, like)
        found = self.captured[p.name]
        return found if isinstance(found, Value) else self.leaf(dtype, like)

    def literal(self, p: Literal, dtype: int) -> Value:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        array = p.value if p.value.dtype.kind in "US" else p.value.astype(kind)
        return self.constant(
            array.reshape(self.rng.choice(((), (), (1,)))) if not array.ndim else array
        )

    def call(self, p: Call, like: Sequence[Value]) -> Value:
        """Returns a node of the pattern's operator; operands that do not fit are replaced."""
        before = dict(self.captured)
        for _ in range(_TRIES):
            self.left -= 1
            if self.left < 0:
                break
            self.captured = dict(before)
            marks = len(self.nodes), len(self.inputs), len(self.constants)
            try:
                return self._call(p, self.rng.choice(sorted(p.ops)), like)
            except Impossible:
                del self.nodes[marks[0] :], self.inputs[marks[1] :], self.constants[marks[2] :]
        raise Impossible(str(p.ops))

    def _call(self, p: Call, op: str, like: Sequence[Value]) -> Value:
        schema = self.schema(op, p.domain)
        patterns = list(p.operands)
        each = patterns[-1] if patterns and isinstance(patterns[-1], Each) else None
        if each is not None:
            low, high = max(each.at_least, 1), each.at_most or 4
            patterns[-1:] = [each.pattern] * self.rng.randint(low, max(low, high))
        operands: list[Value | None] = []
        bound: dict[str, int] = {}
        around = list(like)
        for i, pattern in enumerate(patterns):
            if each is not None and i >= len(p.operands) - 1:
                self._forget(each)
            if schema is not None and _formal(schema, i) is None:
                if not isinstance(pattern, Capture):
                    raise Impossible(f"{op} has no operand {i} at opset {self.opset}")
                continue  # an attribute at this opset
            kind, dtype = _dtype(self, _formal(schema, i), bound)
            found = self._operand(op, i, pattern, (kind, dtype), operands, around)
            if found is not None:
                bound.setdefault(kind, found.dtype)
                around.append(found)
            operands.append(found)
        _check_bias(op, operands)
        first = next((v for v in operands if v is not None), None)
        attrs = self.attributes(p, op, schema, first)
        rank = None if first is None else len(first.shape)
        if op == "Transpose" and len(attrs.get("perm", range(rank or 0))) != rank:
            raise Impossible("a perm of another rank")
        return self.node(op, p.domain, schema, operands, attrs, p.result)

    def _operand(
        self, op: str, index: int, pattern: Pattern | None, typed: tuple[str, int],
        before: Sequence[Value | None], around: Sequence[Value],
    ) -> Value | None:  # fmt: skip
        kind, dtype = typed
        data = before[0] if before else None
        if kind != "tensor(int64)" or not isinstance(pattern, Capture) or data is None:
            return self.value(pattern, dtype, around)
        found = self.captured.get(pattern.name)
        if not isinstance(found, Value):
            found = self.captured[pattern.name] = self.integers(op, index, data)
        return found

    def _forget(self, each: Each) -> None:
        """Forgets the captures of one member of an Each before the next."""
        common = {c.name for c in each.same}
        for name in names_in(each.pattern):
            if name not in common:
                self.captured.pop(name, None)

    def schema(self, op: str, domain: str) -> onnx.defs.OpSchema | None:
        if domain:
            return None
        try:
            return onnx.defs.get_schema(op, self.opset, domain)
        except onnx.defs.SchemaError as error:
            raise Impossible(op) from error

    def node(
        self, op: str, domain: str, schema: Any, operands: Sequence[Value | None],
        attrs: dict[str, Any], result: int,
    ) -> Value:  # fmt: skip
        count = max(result + 1, 2 if op == "Split" else 1)
        if (
            op == "Split"
            and schema is not None
            and "num_outputs" in schema.attributes
            and len(operands) < 2
        ):
            attrs["num_outputs"] = count
        names = [self.new() for _ in range(count)]
        while operands and operands[-1] is None:
            operands = operands[:-1]
        given = ["" if v is None else v.name for v in operands]
        node = helper.make_node(op, given, names, domain=domain, **attrs)
        known = [v for v in operands if v is not None]
        out = known[0].type if schema is None else _inferred(schema, node, known, self.opset)
        tensor = out.tensor_type
        if not tensor.elem_type or not tensor.HasField("shape"):
            raise Impossible("its type is not known")
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        if min(dims, default=0) < 0 or len(dims) > 6:
            raise Impossible("its sizes are not known")
        self.nodes.append(node)
        return Value(names[result], tensor.elem_type, tuple(dims))

    # ---- attributes and integer operands -------------------------------------------------------

    def attributes(self, p: Call, op: str, schema: Any, first: Value | None) -> dict[str, Any]:
        made: dict[str, Any] = {}
        known = {} if schema is None else schema.attributes
        for name, wanted in p.attrs:
            if schema is not None and name not in known:
                raise Impossible(f"{op} has no {name} at opset {self.opset}")
            if isinstance(wanted, Capture):
                found = self.captured.get(wanted.name)
                if found is None:
                    found = self.captured[wanted.name] = self.attribute(name, first)
                wanted = found
            made[name] = list(wanted) if isinstance(wanted, tuple) else wanted
        for name in known:
            needed = known[name].required
            if name == "axes" and first is not None and not first.shape and op != "Unsqueeze":
                raise Impossible("a scalar has no axes")
            if name not in made and name in _RANDOM and (needed or self.chance(0.4)):
                made[name] = self.attribute(name, first)
        return {k: v for k, v in made.items() if v is not None and v != []}

    def attribute(self, name: str, first: Value | None) -> Any:
        rank = len(first.shape) if first is not None else 2
        make: Callable[[Random, int], Any] = _RANDOM.get(name, lambda rng, rank: None)
        return make(self.rng, rank)

    def integers(self, op: str, index: int, data: Value) -> Value:
        """Returns a constant, or rarely an input, that `op` accepts as its int64 operand."""
        if op.startswith("Gather"):
            wide = self.rng.choice(((), (1,), (2,), (2, 2), data.shape[:1], data.shape))
            if self.chance(0.6):
                return self.constant(np.zeros(wide, np.int64))
            made = Value(self.new("i"), INT, wide)
            self.inputs.append(made)
            return made
        if op not in _INTEGERS and op != "Unsqueeze" and not data.shape:
            raise Impossible("a scalar has no axes")
        return self.constant(
            np.array(_INTEGERS.get(op, _some_axes)(self.rng, index, data.shape), np.int64)
        )


def _some_axes(rng: Random, index: int, shape: Shape) -> list[int]:
    rank = max(len(shape), 1)
    return rng.sample(range(-rank, rank), rng.randint(1, min(rank, 2)))


def _slice(rng: Random, index: int, shape: Shape) -> list[int]:
    axis = rng.randrange(max(len(shape), 1))
    return [(0, 0, rng.choice((1, 2, 2**31)), axis, 1)[index]]


def _split(rng: Random, index: int, shape: Shape) -> list[int]:
    n = rng.choice(shape) if shape else 2
    return [n // 2, n - n // 2]


def _expanded(rng: Random, index: int, shape: Shape) -> list[int]:
    return [rng.choice((1, n, n if n > 1 else 3)) for n in (1, *shape)][rng.randint(0, 1) :]


def _factors(rng: Random, size: int, shape: Shape) -> list[int]:
    """Sizes of a Reshape: the same, two axes joined, one split, flat, a -1 or a 0 among them."""
    found = list(shape)
    way = rng.randrange(6)
    if way == 0 and len(found) > 1:
        i = rng.randrange(len(found) - 1)
        found[i : i + 2] = [found[i] * found[i + 1]]
    elif way == 1 and found:
        i = rng.randrange(len(found))
        part = rng.choice([d for d in (1, 2, 4) if found[i] % d == 0])
        found[i : i + 1] = [found[i] // part, part]
    elif way == 2:
        last = rng.choice([d for d in (1, 2, 3, 4, 8) if size % d == 0])
        found = [size // last, last]
    elif way == 3:
        found = [size]
    elif way == 4:
        found = [1, *found]
    if found and rng.random() < 0.4:
        found[rng.randrange(len(found))] = -1
    if rng.random() < 0.2:
        found = [0 if i < len(shape) and n == shape[i] and n else n for i, n in enumerate(found)]
    return found


_INTEGERS: dict[str, Callable[[Random, int, Shape], list[int]]] = {
    "Reshape": lambda rng, index, shape: _factors(rng, int(np.prod(shape, dtype=int)), shape),
    "Expand": _expanded,
    "Slice": _slice,
    "Tile": lambda rng, index, shape: [rng.choice((1, 1, 2)) for _ in shape],
    "Pad": lambda rng, index, shape: [rng.choice((0, 0, 1)) for _ in range(2 * len(shape))],
    "Split": _split,
}
_RANDOM: dict[str, Callable[[Random, int], Any]] = {
    "axis": lambda rng, rank: rng.randint(-rank, max(rank - 1, 0)),
    "perm": lambda rng, rank: rng.sample(range(rank), rank),
    "to": lambda rng, rank: rng.choice(_DTYPES),
    "keepdims": lambda rng, rank: rng.randint(0, 1),
    "transA": lambda rng, rank: rng.randint(0, 1),
    "transB": lambda rng, rank: rng.randint(0, 1),
    "alpha": lambda rng, rank: rng.choice((1.0, 0.5, 2.0)),
    "beta": lambda rng, rank: rng.choice((1.0, 0.5, 0.0)),
    "epsilon": lambda rng, rank: 1e-3,
    "axes": lambda rng, rank: rng.sample(range(max(rank, 1)), rng.randint(1, max(1, min(rank, 2)))),
    "direction": lambda rng, rank: "forward",
    "hidden_size": lambda rng, rank: 2,
    "num_groups": lambda rng, rank: 2,
    "q_num_heads": lambda rng, rank: 2,
    "kv_num_heads": lambda rng, rank: 2,
    "scale": lambda rng, rank: 0.5,
}


def _check_bias(op: str, operands: Sequence[Value | None]) -> None:
    """Raises Impossible for a bias of a Conv that onnx accepts but no runtime."""
    weights, bias = (*operands, None, None, None)[1:3]
    if op == "Conv" and weights and bias and bias.shape != weights.shape[:1]:
        raise Impossible("a bias of another length")


def _formal(schema: Any, index: int) -> Any:
    if schema is None or not schema.inputs:
        return None
    last = schema.inputs[-1]
    if index < len(schema.inputs):
        return schema.inputs[index]
    variadic = last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return last if variadic else None


def _dtype(g: Growing, formal: Any, bound: dict[str, int]) -> tuple[str, int]:
    """The type variable of a formal operand, and a dtype for it."""
    if formal is None:
        return "T", g.dtype
    kind = formal.type_str
    if kind in bound:
        return kind, bound[kind]
    allowed = {_TENSORS[t] for t in formal.types if t in _TENSORS}
    if g.dtype in allowed and g.chance(0.9):
        return kind, g.dtype
    if not allowed:
        raise Impossible(kind)
    return kind, g.rng.choice(sorted(allowed))


_TENSORS = {
    f"tensor({name})": dtype
    for name, dtype in {
        "float": 1, "double": 11, "float16": 10, "bfloat16": 16, "int64": 7, "int32": 6, "bool": 9,
        "uint8": 2, "int8": 3,
    }.items()
}  # fmt: skip


def _inferred(schema: Any, node: NodeProto, known: Sequence[Value], opset: int) -> TypeProto:
    types = {v.name: v.type for v in known}
    data = {v.name: numpy_helper.from_array(v.array) for v in known if v.array is not None}
    imports = [helper.make_opsetid("", opset)]
    try:
        onnx.checker.check_node(node, _context(opset))
        out = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports, ir_version=8
        )
    except (
        onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError
    ) as error:  # fmt: skip
        raise Impossible(str(error)) from error
    if node.output[0] not in out:
        raise Impossible("its type is not known")
    return out[node.output[0]]


def _context(opset: int) -> Any:
    made = onnx.checker.C.CheckerContext()
    made.ir_version = 8
    made.opset_imports = {"": opset}
    return made


# ---- models --------------------------------------------------------------------------------------


def model_for(
    pattern: Pattern, rng: Random, opset: int, *, shared: Sequence[str] = ()
) -> ModelProto | None:
    """Returns a model whose operators match the pattern, or several patterns that share the
    captures `shared`. Returns None if none was found.
    """
    g = Growing(rng, opset)
    results = []
    try:
        for _ in range(rng.randint(2, 4) if shared else 1):
            g.captured = {k: v for k, v in g.captured.items() if k in shared}
            root = g.value(pattern, g.dtype, [])
            if root is None or not g.nodes:
                return None
            results.append(root)
    except Impossible:
        return None
    model = _model(g, results)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return None
    return model


def _model(g: Growing, results: Sequence[Value]) -> ModelProto:
    rng = g.rng
    nodes = list(g.nodes)
    outputs: dict[str, Value] = {v.name: v for v in results}
    if rng.random() < 0.3:  # another node follows the match
        first = results[0]
        nodes.append(helper.make_node("Identity", [first.name], ["behind"]))
        outputs.pop(first.name)
        outputs["behind"] = Value("behind", first.dtype, first.shape)
    inputs = list({v.name: v for v in g.inputs}.values())
    used = {name for node in nodes for name in node.input}
    constants = [v for v in {v.name: v for v in g.constants}.values() if v.name in used]
    openness = rng.choice(("static", "static", "static", "symbols", "symbols", "some", "rank"))
    declared = [_declared(v, openness, rng) for v in inputs]
    given = [
        _declared(v, "rank" if openness != "static" else openness, rng) for v in outputs.values()
    ]
    tensors = [numpy_helper.from_array(v.array, v.name) for v in constants if v.array is not None]
    imports = [helper.make_opsetid("", g.opset), helper.make_opsetid("com.microsoft", 1)]
    functions = []
    if rng.random() < 0.1:
        names = [v.name for v in (*inputs, *constants)]
        body = helper.make_function("my", "F", names, list(outputs), nodes, imports)
        functions, nodes = [body], [helper.make_node("F", names, list(outputs), domain="my")]
        imports = [*imports, helper.make_opsetid("my", 1)]
    graph = helper.make_graph(nodes, "g", declared, given, tensors)
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model) if rng.random() < 0.2 else model
    # the sizes with which it runs, which may differ from the declared ones
    sizes = {v.name: v.shape for v in inputs} | {name: v.shape for name, v in outputs.items()}
    helper.set_model_props(model, {SIZES: json.dumps(sizes)})
    return model


def sizes_of(model: ModelProto) -> dict[str, Shape]:
    """The sizes with which a model of `model_for` runs: of its inputs and outputs."""
    (sizes,) = (json.loads(p.value) for p in model.metadata_props if p.key == SIZES)
    return {name: tuple(shape) for name, shape in sizes.items()}


def feeds_of(model: ModelProto, rng: Random) -> dict[str, Any]:
    """Random values for the inputs of a model of `model_for`."""
    found: dict[str, Any] = {}
    sizes = sizes_of(model)
    for v in model.graph.input:
        dtype = v.type.tensor_type.elem_type
        kind, shape = helper.tensor_dtype_to_np_dtype(dtype), sizes[v.name]
        count = int(np.prod(shape, dtype=int))
        if dtype in _FLOATS:
            values = [rng.choice((-1.0, 1.0)) * rng.uniform(0.1, 2.0) for _ in range(count)]
        elif v.name.startswith("i"):  # an index, of whatever has one row
            values = [0] * count
        else:
            values = rng.choices((0, 1) if dtype == TensorProto.BOOL else (0, 1, 2, 3), k=count)
        found[v.name] = np.array(values).astype(kind).reshape(shape)
    return found


def _declared(v: Value, openness: str, rng: Random) -> ValueInfoProto:
    if openness == "rank" and rng.random() < 0.6:
        return helper.make_tensor_value_info(v.name, v.dtype, None)
    dims: list[Any] = list(v.shape)
    if openness == "symbols":
        dims = [f"d{n}" if n != 1 else n for n in dims]
    elif openness == "some":
        dims = [None if rng.random() < 0.3 else f"d{n}" if rng.random() < 0.5 else n for n in dims]
    return helper.make_tensor_value_info(v.name, v.dtype, dims)
