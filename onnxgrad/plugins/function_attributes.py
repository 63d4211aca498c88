"""Attributes of a function whose gradient is a function with the same attributes.

Gradient rules need the values of attributes, which only calls contain. So the gradient is built for
several values. If the graphs differ only in places that hold an attribute's value, these places
refer to the attribute. Otherwise the gradient's form depends on the value, and an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import copy_of, every_node

# attributes by name, as a call has them
Values = Mapping[str, AttributeProto]

_SINGLE = (AttributeProto.INT, AttributeProto.FLOAT)
# kinds of attributes, and the form of Constant that holds one
_KINDS = {
    AttributeProto.INT: "value_int",
    AttributeProto.FLOAT: "value_float",
    AttributeProto.INTS: "value_ints",
    AttributeProto.FLOATS: "value_floats",
}
# changes that lead to values different from those of calls, and from each other
_FACTORS = (1.25, 0.75, 1.5)
_STEPS = (1, 2, -1, -2, 3)
# how many other values must give the same graph
_LEAST = 2


def bind(graph: GraphProto, values: Values) -> None:
    """Replaces references to attributes by values, and removes references without a value."""
    for node in every_node(graph.node):
        if not any(a.ref_attr_name for a in node.attribute):
            continue
        attributes = list(node.attribute)
        del node.attribute[:]
        for a in attributes:
            if not a.ref_attr_name:
                node.attribute.append(a)
            elif a.ref_attr_name in values:
                given = node.attribute.add()
                given.CopyFrom(values[a.ref_attr_name])
                given.name = a.name


def probes(values: Values) -> list[Values]:
    """Returns sets of other values for all attributes. Raises InputError for attributes that are
    not numbers.
    """
    for a in values.values():
        if a.type not in _KINDS:
            raise InputError(
                f"attribute '{a.name}' is not a number, and a gradient depends on its value: "
                "inline the function, or differentiate the model that calls it"
            )
    floats = {
        n: a for n, a in values.items() if a.type in (AttributeProto.FLOAT, AttributeProto.FLOATS)
    }
    made: list[Values] = []
    for step in _STEPS:
        for factor in _FACTORS if floats else (1.0,):
            made.append({n: _moved(a, step, factor, i) for i, (n, a) in enumerate(values.items())})
    return made


def _moved(a: AttributeProto, step: int, factor: float, index: int) -> AttributeProto:
    value: Any = helper.get_attribute_value(a)
    if a.type == AttributeProto.INT:
        value += step
    elif a.type == AttributeProto.INTS:
        value = [v + step for v in value]
    else:  # the index distinguishes attributes with equal values
        shift = 0.0625 * (index + 1)
        array = np.float32(value) * np.float32(factor) + np.float32(shift)
        value = array.tolist()
    return helper.make_attribute(a.name, value, attr_type=a.type)


def refer_to_attributes(
    function: FunctionProto, values: Values, others: Sequence[tuple[Values, FunctionProto]]
) -> None:
    """Lets `function`, built for `values`, refer to attributes wherever the functions built for
    other values contain those. Raises InputError if they differ in anything else.
    """
    if len(others) < _LEAST or any(len(f.node) != len(function.node) for _, f in others):
        raise _depends(values)
    nodes = []
    for i, node in enumerate(function.node):
        nodes += _referring(node, [(values, node), *((v, f.node[i]) for v, f in others)])
    del function.node[:]
    function.node.extend(nodes)


def _depends(values: Values) -> InputError:
    return InputError(
        f"the form of the gradient depends on the value of '{', '.join(values)}': inline the "
        "function, or differentiate the model that calls it"
    )


def _referring(node: NodeProto, forms: list[tuple[Values, NodeProto]]) -> list[NodeProto]:
    """Returns the node with references to attributes; several nodes if a constant refers to one."""
    values = forms[0][0]
    if any(_bare(n) != _bare(node) for _, n in forms):
        raise _depends(values)
    if all(n == node for _, n in forms):
        return [node]
    if node.op_type == "Constant" and node.attribute[0].name == "value":
        return _constant(node, forms)
    made = copy_of(node)
    for i, a in enumerate(node.attribute):
        places = [(v, n.attribute[i]) for v, n in forms]
        if all(p == a for _, p in places):
            continue
        name = next((name for name in values if all(_is(p, v[name]) for v, p in places)), None)
        if name is None:
            raise _depends(values)
        made.attribute[i].CopyFrom(AttributeProto(name=a.name, type=a.type, ref_attr_name=name))
    return [made]


def _bare(node: NodeProto) -> tuple[Any, ...]:
    names = tuple(a.name for a in node.attribute)
    return node.op_type, node.domain, tuple(node.input), tuple(node.output), names


def _is(place: AttributeProto, value: AttributeProto) -> bool:
    same = place.type == value.type
    return same and bool(helper.get_attribute_value(place) == helper.get_attribute_value(value))


def _constant(node: NodeProto, forms: list[tuple[Values, NodeProto]]) -> list[NodeProto]:
    """Returns nodes that compute a constant from an attribute, in the constant's dtype and
    shape.
    """
    values = forms[0][0]
    arrays = [(v, numpy_helper.to_array(n.attribute[0].t)) for v, n in forms]
    first = arrays[0][1]
    fitting = (
        n for n in values if all(_holds(a, v[n]) and a.shape == first.shape for v, a in arrays)
    )
    name = next(fitting, None)
    if name is None:
        raise _depends(values)
    type_ = values[name].type
    source = NodeProto(op_type="Constant", name=node.name, output=node.output)
    source.attribute.add(name=_KINDS[type_], ref_attr_name=name, type=type_)
    nodes, out = [source], node.output[0]
    is_integer = type_ in (AttributeProto.INT, AttributeProto.INTS)
    dtype = TensorProto.INT64 if is_integer else TensorProto.FLOAT
    if node.attribute[0].t.data_type != dtype:
        nodes[-1].output[0] = f"{out}_uncast"
        nodes.append(
            helper.make_node("Cast", [f"{out}_uncast"], [out], to=node.attribute[0].t.data_type)
        )
    if first.ndim != (0 if type_ in _SINGLE else 1):
        sizes = numpy_helper.from_array(np.array(first.shape, np.int64), f"{out}_sizes")
        nodes[-1].output[0] = f"{out}_flat"
        nodes.append(helper.make_node("Constant", [], [f"{out}_sizes"], value=sizes))
        nodes.append(helper.make_node("Reshape", [f"{out}_flat", f"{out}_sizes"], [out]))
    return nodes


def _holds(array: Any, given: AttributeProto) -> bool:
    """Whether a constant is the attribute's value, in the constant's dtype."""
    value = np.array(helper.get_attribute_value(given))
    integers = given.type in (AttributeProto.INT, AttributeProto.INTS)
    if integers and array.dtype.kind not in "iu":
        return False
    if array.size != value.size:
        return False
    source = value if integers else value.astype(np.float32)
    return bool(np.array_equal(array.reshape(-1), source.reshape(-1).astype(array.dtype)))
