"""Bodies of calls: of local functions, or from the schemas of operators.

`inline` and differentiation through bodies share this mechanism: find the body, check that it has
the same meaning at the call, and replace the call by copies of its bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import function_block
from onnxgrad.ir.ops import op
from onnxgrad.ir.opset_changes import changes_meaning
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.program import called as called
from onnxgrad.ir.protobufs import every_node, keep
from onnxgrad.ir.storage.outline import node_of
from onnxgrad.ir.topological_order import callees_first
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var


@frozen
class Body:
    """A function body, and the call's results in the order of the body's outputs. `key` is set for
    a local function.
    """

    block: BindingBlock
    results: tuple[Var | None, ...]
    key: FunctionKey | None = None


def has_schema_body(binding: Binding) -> bool:
    """Whether the operator's schema has a function body at this opset."""
    # onnx's type stub lags behind
    schema: Any = attributes.schema(binding.op, binding.version, binding.domain)
    return bool(
        schema is not None and (schema.has_function or schema.has_context_dependent_function)
    )


def functions_callees_first(program: Program) -> list[FunctionKey]:
    """Returns the functions, each after those that it calls; functions on a cycle are left out."""
    return callees_first({key: callees(block) for key, block in program.functions.items()})


def callees(block: BindingBlock) -> set[FunctionKey]:
    """The functions that the block calls."""
    return {key for b in block.walk() if (key := called(b)) is not None}


def expanded_sizes(program: Program, opened: Iterable[FunctionKey]) -> dict[FunctionKey, int]:
    """Returns the number of bindings of each of the `opened` functions (callees first) once every
    call of them is replaced by its body.
    """
    size: dict[FunctionKey, int] = {}
    for key in opened:
        size[key] = expanded_size(program.functions[key].walk(), size)
    return size


def expanded_size(bindings: Iterable[Binding], sizes: Mapping[FunctionKey, int]) -> int:
    """Returns the number of bindings once every call of the functions in `sizes` is replaced."""
    return sum(1 if (key := called(b)) is None else sizes.get(key, 1) for b in bindings)


def body_of(binding: Binding) -> Body:
    """Returns the body of a call: of a local function, else the schema's at the newest version not
    above the model's opset. Raises InputError if there is no body, or if the schema needs unknown
    types to build it.
    """
    key = called(binding)
    if key is not None:
        return Body(binding.block.program.functions[key], tuple(binding.outputs), key)
    schema: Any = attributes.schema(binding.op, binding.version, binding.domain)
    if schema is None or not has_schema_body(binding):
        raise InputError(f"'{binding}' calls no local function and its schema has no body")
    captured = next((v for block in binding.blocks.values() for v in block.captures()), None)
    if captured is not None:
        raise InputError(
            f"the schema's body of '{binding}' cannot be opened: its graph reads "
            f"outer '{captured.name}'"
        )
    version = binding.version
    if schema.has_function:
        chosen = _not_above(schema.function_opset_versions, version)
        data = schema.get_function_with_opset_version(chosen)
    else:
        chosen = _not_above(schema.context_dependent_function_opset_versions, version)
        types = [
            type_to_proto(None if v is None else v.type).SerializeToString() for v in binding.inputs
        ]
        node = _widened(binding).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(chosen, node, types)
    proto = FunctionProto.FromString(data)
    mend = _MENDED.get((binding.domain, binding.op))
    if mend is not None:
        mend(proto)
    if not any(domains.is_default(o.domain) for o in proto.opset_import):
        # onnx's builder forgets the default domain for operators of other domains; the body is for
        # the model's opset
        proto.opset_import.add(domain="", version=binding.block.opsets.get("", 0))
    if not proto.node:
        raise InputError(
            f"the schema's body of '{binding}' needs its operands' types, which are not known"
        )
    # a body built for a call need not define the outputs that the call omits
    defined = {name for n in proto.node for name in n.output} | set(proto.input)
    results = tuple(binding.result(i) for i, name in enumerate(proto.output) if name in defined)
    keep(proto.output, lambda name: name in defined)
    return Body(function_block(binding.block.program, proto), results)


def _widened(binding: Binding) -> NodeProto:
    """Returns the node for its schema's body. Normalizations of doubles are computed in double, as
    onnxruntime does, whatever their `stash_type`.
    """
    node = node_of(binding)
    x = binding.operand(0)
    if x is not None and x.dtype == TensorProto.DOUBLE and binding.op in _STASHING:
        keep(node.attribute, lambda a: a.name != "stash_type")
        node.attribute.append(helper.make_attribute("stash_type", TensorProto.DOUBLE))
    return node


_STASHING = frozenset({"LayerNormalization", "RMSNormalization"})


def _squeeze_rows(proto: FunctionProto) -> None:
    """Squeezes only the axis of a row. onnx's body of AffineGrid squeezes a batch of 1 as well."""
    for node in every_node(proto.node):
        if node.op_type == "Squeeze" and len(node.input) == 1:
            node.input.append("one_1d")


def _scale_of_zeros(proto: FunctionProto) -> None:
    """Sets the scale of zeros to 1, as onnxruntime does. onnx's body of DynamicQuantizeLinear
    divides 0 by 0.
    """
    at = next(i for i, n in enumerate(proto.node) if n.output[0] == "Scale")
    proto.node[at].output[0] = "Scale_of_range"
    later = list(proto.node)[at + 1 :]
    del proto.node[at + 1 :]
    proto.node.extend(
        [
            helper.make_node("Equal", ["X_Range", "Q_Min"], ["All_Zero"]),
            helper.make_node("Constant", [], ["One"], value=helper.make_tensor("", 1, [], [1.0])),
            helper.make_node("Where", ["All_Zero", "One", "Scale_of_range"], ["Scale"]),
            *later,
        ]
    )


# schema bodies that are wrong for some operands
_MENDED: dict[tuple[str, str], Callable[[FunctionProto], None]] = {
    ("", "AffineGrid"): _squeeze_rows,
    ("", "DynamicQuantizeLinear"): _scale_of_zeros,
}


def _not_above(versions: Any, limit: int) -> int:
    return int(max((v for v in versions if v <= limit), default=min(versions)))


def conflict(binding: Binding, body: Body) -> str | None:
    """Returns why the body cannot replace the call as it is; None if it can.

    An operator of the body must mean the same at the block's opset and have its graphs in the body,
    not in an attribute of the call. The body must not return an operand that the call leaves out.
    """
    opsets, bound = binding.block.opsets, _bound(binding, body)
    for b in body.block.walk():
        if given_by_call := next(
            (
                a
                for a in b.node.attribute
                if a.type in attributes.GRAPH_KINDS and a.ref_attr_name in bound
            ),
            None,
        ):
            return (
                f"the {given_by_call.name} of its {b.op} is a graph that calls give as an attribute"
            )
        reason = changes_meaning(b, opsets.get(b.domain, b.version))
        if reason is not None:
            return reason
    given = dict(zip(body.block.inputs, binding.inputs))
    absent = {v for v in body.block.inputs if given.get(v) is None}
    returned = [inner for inner, out in zip(body.block.outputs, body.results) if out is not None]
    nested = [v for b in body.block.walk() for block in b.blocks.values() for v in block.outputs]
    lost = next((v for v in (*returned, *nested) if v in absent), None)
    return None if lost is None else f"it returns operand '{lost.name}', which the call leaves out"


def splice(
    binding: Binding,
    body: Body,
    *,
    prefix: str = "",
    fold: Callable[[Binding], Var | None] | None = None,
) -> tuple[list[Binding], dict[Var, Var]]:
    """Replaces the call by copies of the body's bindings. Returns the copies and the new value of
    each result.

    Attribute references become the call's values, the function's defaults, or the schema's. The
    copies are at the end of the block, so schedule the block afterwards. Call `conflict` first.
    Raises InputError if the call has more results than the body, or if the types of a schema's body
    do not fit the operands (as in LayerNormalization, whose scale must have all normalised axes).
    Raises InternalError if a result has no value.
    """
    block = binding.block
    if len(body.results) > len(body.block.outputs):
        raise InputError(
            f"'{binding}' has {len(body.results)} results, its function {len(body.block.outputs)}"
        )
    for domain, version in body.block.opsets.items():
        import_opset(block, domain, version)
    mapping: dict[Var, Var | None] = dict.fromkeys(body.block.inputs) | dict(
        zip(body.block.inputs, binding.inputs)
    )
    body.block.schedule()  # a rewrite may have left a reader before what it reads
    bound = _bound(binding, body)
    before = set(block.bindings)
    try:
        opened = clone_bindings(
            body.block.bindings, block, mapping, bound=bound, prefix=prefix, fold=fold
        )
    except InternalError as e:
        raise _for_others(binding, body, e, before) from e
    if body.key is None:
        opened += _with_scalars(opened)
    stands: dict[Var, Var] = {}
    for inner, out in zip(body.block.outputs, body.results):
        if out is None:
            continue
        new = mapping[inner]
        if new is None:
            raise InternalError(f"'{binding}' returns an operand that the call leaves out")
        block.replace(out, new)
        stands[out] = new
    block.remove(binding)
    return opened, stands


def _for_others(
    binding: Binding, body: Body, error: InternalError, before: Collection[Binding]
) -> OnnxgradError:
    """Returns the error for a body whose types do not fit the call. Removes the copies of a
    schema's body.
    """
    if body.key is not None:
        return error
    for copy in [b for b in binding.block.bindings if b not in before][::-1]:
        binding.block.remove(copy)
    return InputError(f"the schema's body of '{binding}' does not fit its operands: {error}")


def _with_scalars(opened: Iterable[Binding]) -> list[Binding]:
    """Makes the operands of each Range scalars, as ONNX requires. Returns the new bindings. onnx's
    bodies (AffineGrid) pass tensors of one element, which onnxruntime refuses if it knows their
    shape.
    """
    added: list[Binding] = []
    for b in [b for b in opened if b.is_op("Range")]:
        for i, v in enumerate(b.inputs):
            if v is not None and v.rank != 0:
                with emitting(b.block, share=True) as at:
                    b.block.set_operand(b, i, op.Squeeze(v))
                added += at.emitted
    return added


def open_in_place(
    binding: Binding,
    body: Body,
    *,
    prefix: str = "",
    fold: Callable[[Binding], Var | None] | None = None,
    without: Collection[str] = (),
) -> tuple[list[Binding], set[Var]]:
    """Like `splice`, but the results keep their names and the copies get the call's metadata,
    except the keys in `without`. Returns the copies and the values that replace the results.
    """
    metadata = [(e.key, e.value) for e in binding.node.metadata_props if e.key not in without]
    names = {out: out.name for out in binding.outputs if out is not None}
    opened, stands = splice(binding, body, prefix=prefix, fold=fold)
    take_names(stands, names, opened)
    for copy in opened:
        known = {e.key for e in copy.node.metadata_props}
        for key, value in metadata:
            if key not in known:
                copy.node.metadata_props.add(key=key, value=value)
    return opened, set(stands.values())


def take_names(
    stands: Mapping[Var, Var], names: Mapping[Var, str], opened: Collection[Binding]
) -> None:
    """Gives the values of a body that replaced a call's results the names, and types that they
    lack, of these. An operand that the body returns keeps its name.
    """
    copies = set(opened)
    for out, new in stands.items():
        if new.type is None:
            new.type = out.type
        if new.definition in copies and not new.returned:
            out.rename(new.name)
            new.rename(names[out])


def wrong_shape(binding: Binding, body: Body) -> str | None:
    """Returns why a schema's body does not fit the ranks of the call's operands, or the shape of a
    scale; None if it fits.

    A body with nested graphs needs operands of the schema's ranks. onnxruntime's kernels may accept
    others: Range takes one element for a scalar, which onnx's own body of AffineGrid relies on. The
    body of LayerNormalization flattens its scale, which may not broadcast therefore.
    """
    if body.key is None and binding.is_op("LayerNormalization"):
        x, *scales = (None if v is None else v.shape for v in binding.inputs)
        axis = binding.attr("axis", -1)
        fits = x is not None and all(s is None or s == x[axis:] for s in scales)
        return (
            None
            if fits
            else "its body does not fit its operands: it needs a scale of all normalised axes"
        )
    if body.key is not None or not any(inner.blocks for inner in body.block.bindings):
        return None
    tensors = [v for v in binding.inputs if v is not None and isinstance(v.type, TensorType | None)]
    unknown = next((v for v in tensors if v.rank is None), None)
    if unknown is not None:
        return f"its body has nested graphs, and the rank of operand '{unknown.name}' is unknown"
    if binding.is_op("Range") and any(v is not None and v.rank for v in binding.inputs):
        return "its body is for scalars, and an operand has an axis"
    return None


def _bound(binding: Binding, body: Body) -> dict[str, AttributeProto]:
    bound = {a.name: a for a in binding.node.attribute}
    if isinstance(body.block.proto, FunctionProto):
        for default in body.block.proto.attribute_proto:
            bound.setdefault(default.name, default)
    schema = (
        attributes.schema(binding.op, binding.version, binding.domain) if body.key is None else None
    )
    if schema is not None:
        for name, a in schema.attributes.items():
            if a.default_value.name:
                bound.setdefault(name, a.default_value)
    return bound


def import_opset(block: BindingBlock, domain: str, version: int) -> None:
    """Imports `domain` in the program, or in the function that `block` belongs to, unless it is
    imported already.
    """
    root = block.root
    if domain in root.opsets:
        return
    root.opsets[domain] = version
    if isinstance(root.proto, FunctionProto):
        root.proto = deepcopy(root.proto)
        root.proto.opset_import.add(domain=domain, version=version)
    root.touch()
