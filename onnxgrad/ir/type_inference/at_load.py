"""Types for every value of a program, from onnx's shape inference and what the file declares.

The file's declared shapes can be wrong, so inference runs without them; a declaration only adds
what inference left open, and where the two contradict each other neither is believed. What a
declaration (or `refined_shapes`, which knows more about computed shapes) adds then flows on,
binding by binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference import at_emission, misinferred, whole_model
from onnxgrad.ir.type_inference.again import types_of_bodies
from onnxgrad.ir.type_inference.declarations import Declarations
from onnxgrad.ir.type_inference.refined_shapes import REFINED
from onnxgrad.ir.types import TensorType, Type, TypeMismatch, type_from_proto
from onnxgrad.ir.var import Var

# how often what is contradicted is left out of inference, before nothing is inferred but binding by
# binding
_ROUNDS = 4


def annotate(program: Program) -> None:
    """Give every Var of the program the best type that can be shown."""
    said = Declarations(program)
    hidden: set[str] = set()
    inferred = None
    for _ in range(_ROUNDS):
        inferred = whole_model.infer_model(program, said.symbols, hidden)
        if inferred is None:
            break
        _assign(program.main, _types(inferred.graph), inferred.graph.node)
        contradicted = said.compare() - hidden
        if not contradicted:
            break
        hidden |= contradicted
        inferred = None
    if inferred is None:
        _assign(program.main, {}, ())
    for function in program.functions.values():
        _assign(function, {}, ())
        _type_constants(function)
    # with nothing inferred everything is to be typed, binding by binding
    _Completion(said, None if inferred is None else set()).block(program.main)


# ---- from protobuf to Vars -----------------------------------------------------------------------


def _types(graph: GraphProto) -> dict[str, Type | None]:
    return {v.name: type_from_proto(v.type) for v in (*graph.value_info, *graph.output)}


def _assign(
    block: BindingBlock, types: Mapping[str, Type | None], nodes: Iterable[NodeProto]
) -> None:
    """Hand the inferred types to the block's results; `nodes` are the inferred ones, whose
    graphs are looked into.
    """
    graphs: dict[tuple[str, ...], NodeProto] = {}
    if any(b.blocks for b in block.bindings):
        graphs = {
            tuple(n.output): n
            for n in nodes
            if any(a.type == AttributeProto.GRAPH for a in n.attribute)
        }
    for b in block.bindings:
        for out in b.outputs:
            if out is not None:
                out.type = types.get(out.name)
        for name, nested in b.blocks.items():
            node = graphs.get(tuple(b.node.output))
            found = (
                None
                if node is None
                else next((a.g for a in node.attribute if a.name == name), None)
            )
            if found is None:
                _assign(nested, {}, ())
                continue
            for var, declared, value in zip(
                nested.inputs, nested.proto.input, found.input, strict=True
            ):
                said = declared.type.WhichOneof("value")
                if said is None or (
                    said == "tensor_type" and not declared.type.tensor_type.elem_type
                ):
                    var.type = type_from_proto(value.type)
            _assign(nested, _types(found), found.node)


def _type_constants(block: BindingBlock) -> None:
    """Nothing is inferred inside functions, whose parameters are untyped; but a constant is what
    it is.
    """
    for b in block.walk():
        if b.is_op("Constant") and b.outputs and b.outputs[0] is not None:
            value = attributes.constant_value(b.attrs)
            if isinstance(value, TensorProto):
                b.outputs[0].type = TensorType(value.data_type, tuple(value.dims))
            elif value is not None and value.dtype != object:
                b.outputs[0].type = TensorType(
                    helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
                )


def _types_of(b: Binding) -> Sequence[Type | None]:
    """The types of its results, from its operands or its bodies. Raises TypeMismatch."""
    if b.blocks:
        return types_of_bodies(b)
    return at_emission.types_of(b)


# ---- declarations, and what flows on from them ---------------------------------------------------


class _Completion:
    """In order, completes the results that are not fully known: by what the file declares about
    values between, by typing again where that is not enough and operands became better known
    (without `improved`: always), and last by what the file declares about outputs, whose sizes
    exporters like to name anew.
    """

    def __init__(self, said: Declarations, improved: set[Var] | None) -> None:
        self.said = said
        self.improved = improved

    def block(self, block: BindingBlock) -> None:
        between, returned = self.said.between[block], self.said.returned[block]
        for b in block.bindings:
            for nested in b.blocks.values():
                self.block(nested)
            unknown = self._incomplete(b.outputs)
            if not unknown:
                continue
            # where onnx said nothing, every declaration is to be held against what we find
            untyped = any(out.rank is None for out in unknown)
            if untyped:
                self._again(b)
            if misinferred.needs_types(b.node):  # declared by onnx's inference, as often as not
                unknown = self._incomplete(unknown)
            self._take(between, unknown)
            if not untyped:
                unknown = self._incomplete(unknown)
                if unknown and self._is_to_type(b):
                    self._again(b)
            self._take(returned, unknown)

    def _is_to_type(self, b: Binding) -> bool:
        if self.improved is None or (b.domain, b.op) in REFINED:
            return True
        return any(v in self.improved for v in b.inputs)

    def _incomplete(self, results: Iterable[Var | None]) -> list[Var]:
        return [out for out in results if out is not None and self.said.is_incomplete(out.type)]

    def _take(self, declared: Mapping[str, Type], results: Iterable[Var]) -> None:
        for out in results:
            if out.name in declared:
                self._improve(out, self.said.believed(declared[out.name]))

    def _again(self, b: Binding) -> None:
        try:
            types = _types_of(b)
        except TypeMismatch:
            return  # the file's own trouble: onnx said nothing about it either
        for out, found in zip(b.outputs, types):
            if out is not None and isinstance(found, TensorType):
                self._improve(out, found)

    def _improve(self, var: Var, more: Type | None) -> None:
        better = self.said.merge(var.type, more)
        if better != var.type:
            var.type = better
            if self.improved is not None:
                self.improved.add(var)
