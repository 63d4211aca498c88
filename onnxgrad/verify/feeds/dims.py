"""The sizes of a model's symbolic dimensions in a proof.

A symbol is a `dim_param`. An unnamed or meaningless dimension (absent, negative, "?") of input `x`
at axis 1 is called `x.1`. A `dim_param` may be a formula of other symbols ("past + 1", "2*s0",
"max(n - 2, 0)"): sizes are chosen for symbols only, and formulas are evaluated.

The rank of an input `x` without a shape is chosen as a size is; it is called `x.rank`, and the
sizes of its axes `x.0`, `x.1` and so on.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import onnx

from onnxgrad.errors import InputError
from onnxgrad.wording import dim_option, option

_BATCH, _LENGTH, _SPATIAL = "batch", "length", "spatial"
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
# the functions in formulas of exporters and of `ir.sizes`
_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {
    "max": max,
    "Max": max,
    "min": min,
    "Min": min,
    "floor": int,
}
# names that are not identifiers: quoted, or with a dot, such as x.0 for axis 0 of x
_SPELT = re.compile(r"'([^']+)'|[^\W\d]\w*(?:[.:][\w.:]*)")
_MADE = "name_in_hex_"
_FALLBACK_SIZES = (16, 32, 64, 128, 224, 256, 320, 512, 640, 1024, 4, 3, 2, 1536, 4096, 16000)

# the first sizes of the axes of inputs without a shape, which differ
_AXES = (2, 3, 4, 5)
# ranks to try for such inputs, and the size of all axes if one is needed, as in x @ x
_SHAPES = ((2, 0), (3, 0), (4, 0), (2, 4), (3, 4), (4, 4), (1, 0), (0, 0))


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Returns the inputs without a default value."""
    known = {init.name for init in graph.initializer} | {
        init.values.name for init in graph.sparse_initializer
    }
    return [value for value in graph.input if value.name not in known]


def tensor_types(kind: onnx.TypeProto) -> Iterable[onnx.TypeProto.Tensor]:
    """Yields the tensor types inside a type: the type itself, or the element type of a sequence or
    optional.
    """
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        yield kind.tensor_type
    elif which == "sequence_type":
        yield from tensor_types(kind.sequence_type.elem_type)
    elif which == "optional_type":
        yield from tensor_types(kind.optional_type.elem_type)


def shape_of(name: str, kind: onnx.TypeProto.Tensor) -> list[int | str] | None:
    """Returns the sizes and symbols of an input's shape; None for unknown rank."""
    if not kind.HasField("shape"):
        return None
    return [_dim(f"{name}.{axis}", dim) for axis, dim in enumerate(kind.shape.dim)]


def rank_of(name: str) -> str:
    """Returns the name of the rank of an input without a shape."""
    return f"{name}.rank"


def _axis(rank: str, axis: int) -> str:
    """Returns the name of the size of an axis of the input whose rank has this name."""
    return f"{rank.removesuffix('.rank')}.{axis}"


def _is_axis(name: str, ranks: Sequence[str]) -> bool:
    """Whether a name is that of a size of an input without a shape."""
    owner, _, axis = name.rpartition(".")
    return rank_of(owner) in ranks and axis.isdecimal()


def shape_at(name: str, kind: onnx.TypeProto.Tensor, sizes: Mapping[str, int]) -> list[int]:
    """Returns the shape of an input at these sizes. Raises InputError for a symbol without a
    size.
    """
    shape = shape_of(name, kind)
    if shape is None:
        rank = sizes.get(rank_of(name), 0)
        usual = [*_AXES, *[2] * rank][:rank]
        return [sizes.get(_axis(rank_of(name), i), size) for i, size in enumerate(usual)]
    return [evaluate(dim, sizes) for dim in shape]


def unknown_ranks(graph: onnx.GraphProto) -> list[str]:
    """Returns the names of the ranks of inputs without a shape."""
    return [
        rank_of(value.name)
        for value in required_inputs(graph)
        if any(shape_of(value.name, kind) is None for kind in tensor_types(value.type))
    ]


def _dim(fallback: str, dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    named = dim.dim_param.strip()
    return (
        named if any(c.isalnum() for c in named) and not named.lstrip("-").isdigit() else fallback
    )


def symbols_in(formula: str) -> set[str]:
    """Returns the symbols of a formula. A text that is not a formula is one symbol."""
    tree = _parse(formula)
    if tree is None:
        return {formula}
    names = {_name(node) for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names - _FUNCTIONS.keys()


def _parse(formula: str) -> ast.expr | None:
    if formula.isidentifier() or not any(c in formula for c in "+-*/("):
        return None
    try:
        tree = ast.parse(_SPELT.sub(_identifier, formula), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    allowed = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Call, ast.Name, ast.Constant, ast.Load)
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(_function(node) is None or node.keywords for node in calls):
        return None
    return tree if all(isinstance(node, (*allowed, *_OPERATORS)) for node in nodes) else None


def _identifier(found: re.Match[str]) -> str:
    return _MADE + (found[1] or found[0]).encode().hex()


def _name(node: ast.Name) -> str:
    made = node.id.removeprefix(_MADE)
    return node.id if made == node.id else bytes.fromhex(made).decode()


def _function(node: ast.Call) -> Callable[..., int] | None:
    return _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None


def evaluate(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Returns the size of a dimension. Raises InputError for a symbol without a size."""
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    tree = _parse(dim)
    if tree is None:
        raise InputError(f"dimension {dim!r} has no size; set it with {dim_option(dim)}")
    return max(_value(tree, sizes), 0)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return evaluate(_name(node), sizes)
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, sizes)
    function = _function(node) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and function is not None:
        return function(*(_value(argument, sizes) for argument in node.args))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        if right == 0 and isinstance(node.op, (ast.Div, ast.FloorDiv)):
            return 0
        return int(_OPERATORS[type(node.op)](left, right))
    raise InputError(f"cannot evaluate the dimension {ast.unparse(node)!r}")


def named_dims(graph: onnx.GraphProto) -> list[str]:
    """Returns the symbols and formulas in the shapes of the inputs, as they are written."""
    shapes = (
        shape_of(value.name, kind) or []
        for value in required_inputs(graph)
        for kind in tensor_types(value.type)
    )
    return [*dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))]


def roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns the role of each symbol (batch, length or spatial), by its first position and its
    name.
    """
    found: dict[str, str] = {}
    for value in required_inputs(graph):
        for kind in tensor_types(value.type):
            shape = shape_of(value.name, kind) or []
            for axis, dim in enumerate(shape):
                for symbol in sorted(symbols_in(dim)) if isinstance(dim, str) else ():
                    found.setdefault(symbol, _role(symbol, axis, shape))
    return found


def _role(symbol: str, axis: int, shape: list[int | str]) -> str:
    text = symbol.lower()
    if "batch" in text:
        return _BATCH
    if any(word in text for word in ("seq", "len", "time", "token")):
        return _LENGTH
    if len(shape) == 4 and (axis in (2, 3) or (axis == 1 and shape[3] in (1, 3, 4))):
        return _SPATIAL
    if any(word in text for word in ("height", "width")):
        return _SPATIAL
    if len(shape) == 3 and axis == 1 and isinstance(shape[0], int) and isinstance(shape[2], int):
        return _BATCH  # a recurrent state: (layers, batch, hidden)
    return _BATCH if axis == 0 and len(shape) > 1 else _LENGTH


def dim_plans(
    model: onnx.ModelProto, dims: Mapping[str, int] | None = None
) -> list[dict[str, int]]:
    """Returns assignments of a size to every symbol of the inputs, the best first; `dims` fixes
    some symbols.

    The first plan is generic (batch 2, length 8, spatial 64). The second has batch and length 1,
    the third only batch 1, because a picture of one pixel tests little. The others are fallbacks
    for models that need a particular size. Inputs without a shape have rank 2 and then 3 at the
    first sizes, and other ranks and equal sizes if the model needs these. A model without symbols
    has one empty plan. Raises InputError for a name in `dims` that no input has.
    """
    found, ranks = roles(model.graph), unknown_ranks(model.graph)
    fixed = dict(dims or {})
    for name, size in fixed.items():
        where = option(f"--dim {name}={size}", f"dims={fixed}")
        if name not in found and name not in ranks and not _is_axis(name, ranks):
            known = ", ".join([*found, *ranks]) or "none"
            raise InputError(f"{where}: no input has a dimension {name!r} (dimensions: {known})")
        if size < 0:
            raise InputError(f"{where}: a size cannot be negative")
    sizes = [(2, 8, 64), (1, 1, 96), (1, 5, 96), (1, 1, 64), (1, 5, 64), (2, 8, 96), (1, 1, 1)]
    sizes += [(batch, size, size) for size in _FALLBACK_SIZES for batch in (2, 1)]
    plans: list[dict[str, int]] = []
    tries = [(some, shape) for some in sizes[:2] for shape in _SHAPES]
    # the first two plans differ in sizes and in ranks
    tries = [tries[0], (sizes[1], _SHAPES[1]), *tries[1:]]
    tries += [(some, _SHAPES[-1]) for some in sizes[2:]]
    for (batch, length, spatial), (rank, size) in tries:
        by_role = {_BATCH: batch, _LENGTH: length, _SPATIAL: spatial}
        plan = _with_total({symbol: by_role[role] for symbol, role in found.items()})
        plan |= dict.fromkeys(ranks, rank)
        plan |= {_axis(name, i): size for name in ranks for i in range(rank if size else 0)}
        plan |= fixed
        if plan not in plans:
            plans.append(plan)
    return plans


def _with_total(plan: dict[str, int]) -> dict[str, int]:
    """Returns the plan with past + new = total, for decoders with a cache that name all three
    lengths.
    """
    past = [s for s in plan if "past" in s.lower()]
    total = [s for s in plan if "total" in s.lower()]
    new = [s for s in plan if "seq" in s.lower() and s not in past and s not in total]
    if len(past) == len(total) == len(new) == 1:
        plan[total[0]] = plan[past[0]] + plan[new[0]]
    return plan
