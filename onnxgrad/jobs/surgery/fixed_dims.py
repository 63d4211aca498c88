"""Replaces symbolic dimensions by fixed sizes in the declarations of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import GraphProto, ModelProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load, to_kind_of
from onnxgrad.ir.protobufs import copy_of, every_graph
from onnxgrad.ir.renaming import symbols
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.verify.feeds.dims import evaluate, roles, shape_of, symbols_in, tensor_types
from onnxgrad.wording import did_you_mean, option


@known_keywords
def fix_dims(model: ModelLike, dims: Mapping[str, int]) -> Any:
    """Returns the model with these sizes in the place of symbols, in every declared shape, in the
    type you passed in. `optimize` then folds values that depend on them.

    Raises InputError for a symbol that no input has, and for a size below 0.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N,3] x) => (float[N,3] y) { y = Tanh (x) }''')
    >>> str(onnxgrad.load(onnxgrad.fix_dims(model, {"N": 1})).main.inputs[0].type)
    'f32[1,3]'
    """
    return to_kind_of(load(fixed(model, dims)), model)


def fixed(model: ModelLike, dims: Mapping[str, int]) -> ModelProto:
    """Returns the result of `fix_dims` as a ModelProto with its weights. Raises InputError if these
    are larger than 2 GB.
    """
    made = copy_of(to_proto(load(model), weights=True))
    fix(made, dims)
    return made


def fix(
    made: ModelProto, dims: Mapping[str, int], words: tuple[str, str] = ("--fix-dim", "fix_dims")
) -> None:
    """Replaces symbols in a ModelProto; `words` are the names of the option in errors."""
    known = list(roles(made.graph))
    for name, size in dims.items():
        where = option(f"{words[0]} {name}={size}", f"{words[1]}: {{{name!r}: {size!r}}}")
        if name not in known:
            hint = did_you_mean(name, known, f"there are: {', '.join(known) or 'none'}")
            raise InputError(f"{where}: no input has a dimension {name!r}; {hint}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(f"{where}: the size must be a whole number, at least 0")
    for graph in every_graph(made.graph):
        _fix((*graph.input, *graph.output), dims)
        # other shapes are inferred again
        for value in list(graph.value_info):
            shapes = (kind.shape.dim for kind in tensor_types(value.type))
            symbols = (
                symbols_in(dim.dim_param) for dims in shapes for dim in dims if dim.dim_param
            )
            if any(found & dims.keys() for found in symbols):
                graph.value_info.remove(value)


def _fix(values: Iterable[ValueInfoProto], dims: Mapping[str, int]) -> None:
    for value in values:
        for kind in tensor_types(value.type):
            # an axis without a name is identified by its index
            for name, dim in zip(shape_of(value.name, kind) or (), kind.shape.dim, strict=False):
                symbols = symbols_in(name) if isinstance(name, str) else set()
                if symbols and (symbols <= dims.keys() or name in dims):
                    dim.dim_value = evaluate(name, dims)


def sizes_bound(graph: GraphProto, bound: Mapping[str, Array]) -> dict[str, int]:
    """Returns the sizes of symbols that bound inputs fix. Raises InputError if two of them
    differ.
    """
    known, found = roles(graph), dict[str, int]()
    pairs = [
        (value.name, dim, size)
        for value in graph.input
        if value.name in bound
        for dim, size in zip(
            shape_of(value.name, value.type.tensor_type) or (),
            bound[value.name].shape,
            strict=False,
        )
        if isinstance(dim, str) and (dim in known or len(symbols_in(dim)) != 1)
    ]
    plain = [pair for pair in pairs if symbols_in(pair[1]) == {pair[1]}]
    for name, dim, size in plain:
        if found.setdefault(dim, size) != size:
            raise InputError(
                f"'{name}' is bound to a value whose {dim} is {size}, but another bound "
                f"axis has {found[dim]}"
            )
    for name, dim, size in pairs:
        wanted = evaluate(dim, found) if symbols_in(dim) <= found.keys() else size
        if wanted != size:
            raise InputError(f"'{name}' is bound to a value whose {dim} is {size}, not {wanted}")
    named = symbols(graph)
    return {dim: size for dim, size in found.items() if dim in named}
