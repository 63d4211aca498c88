"""Operators that onnx infers wrongly, among them pools with ceil_mode. onnx receives them in a form
that it infers correctly, or not at all.
"""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, helper

from onnxgrad.ir import domains
from onnxgrad.ir.attributes import values_of
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import Dim, Shape

POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def rounds_up(node: NodeProto) -> bool:
    """Whether `node` is a pool in ceil_mode, or may be because a call sets the attribute."""
    return (
        node.op_type in POOLS
        and domains.is_default(node.domain)
        and any(a.name == "ceil_mode" and (a.ref_attr_name or a.i) for a in node.attribute[:])
    )


def without_late_windows(node: NodeProto, x: Shape | None, y: Shape | None) -> Shape | None:
    """Returns the shape `y` inferred for a pool of `x`, without windows that would start after `x`
    and its first pads.
    """
    if x is None or y is None or len(x) != len(y):
        return y
    a, n = values_of(node), len(x) - 2
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return y
    strides, begin = a.get("strides") or [1] * n, (a.get("pads") or [0] * n)[:n]
    sizes: list[Dim] = [
        out - 1
        if isinstance(size, int) and isinstance(out, int) and (out - 1) * s >= size + b
        else out
        for size, out, s, b in zip(x[2:], y[2:], strides, begin)
    ]
    return (*y[:2], *sizes)


# operator: attributes whose default onnx's inference forgets
_FORGOTTEN = {"STFT": {"onesided": 1}, "LinearClassifier": dict[str, int]()}

# onnx 1.23 reads the first operand's type of these without knowing that there is one, which ends
# the process
_WITHOUT_A_LOOK = frozenset({"TreeEnsemble"})
OPERATORS = frozenset({*_FORGOTTEN, *POOLS, *_WITHOUT_A_LOOK, "Split"})
# onnx creates as many sizes as the attribute says, however many results the node has, and reads
# beyond the end of the results
_MOST_PARTS = 1 << 20


def spell_out(node: NodeProto) -> None:
    """Writes the defaults that onnx forgets."""
    if domains.is_default(node.domain):
        written = {a.name for a in node.attribute}
        for name, value in _FORGOTTEN.get(node.op_type, {}).items():
            if name not in written:
                node.attribute.append(helper.make_attribute(name, value))
    elif node.op_type == "LinearClassifier":
        given = {a.name: a.ints or a.strings for a in node.attribute}
        labels = given.get("classlabels_ints") or given.get("classlabels_strings") or ()
        if "intercepts" not in given:  # onnx counts scores by these
            node.attribute.append(
                helper.make_attribute(
                    "intercepts", [0.0] * len(labels), attr_type=AttributeProto.FLOATS
                )
            )


def spelled_out(node: NodeProto) -> NodeProto:
    """The node, or a copy of it with the defaults that onnx forgets."""
    if node.op_type not in _FORGOTTEN:
        return node
    copy = copy_of(node)
    spell_out(copy)
    return copy


def needs_types(node: NodeProto) -> bool:
    """Whether the right type depends on the operands' types, so that writing defaults does not
    help.
    """
    forgotten = _FORGOTTEN.get(node.op_type, ())
    return (
        rounds_up(node)
        or ends_the_process(node)
        or any(a.ref_attr_name and a.name in forgotten for a in node.attribute[:])
    )


def ends_the_process(node: NodeProto) -> bool:
    """Whether onnx's inference of a model with this node may take any amount of memory or end the
    process.
    """
    return node.op_type in _WITHOUT_A_LOOK or is_unbounded(node)


def is_unbounded(node: NodeProto) -> bool:
    """Whether onnx's inference of this node would take any amount of memory."""
    if node.op_type != "Split":
        return False
    parts = [a for a in node.attribute if a.name == "num_outputs"]
    return any(a.ref_attr_name or not len(node.output) <= a.i <= _MOST_PARTS for a in parts)


def sizes_of_resize(node: NodeProto, x: Shape | None, sizes: Shape | None) -> Shape | None:
    """Returns the shape of a Resize's operand `sizes` if it follows from `x` alone: onnx takes an
    unknown length for 0.
    """
    open_length = sizes is None or (len(sizes) == 1 and not isinstance(sizes[0], int))
    if node.op_type != "Resize" or x is None or not open_length:
        return None
    return (len(values_of(node).get("axes") or x),)


def corrected(node: NodeProto, x: Shape | None, y: Shape | None) -> Shape | None:
    """Returns the correct shape of the first result if onnx infers `y` from a first operand of
    shape `x`.
    """
    return without_late_windows(node, x, y) if rounds_up(node) else y
