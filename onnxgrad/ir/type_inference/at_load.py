"""Types for every value of a program, from onnx's shape inference and the types in the file.

The file's declared shapes can be wrong, so inference runs without them. A declaration adds a dtype
or a rank that inference left open, but never a size: exporters declare the sizes of their trace,
and verification sees only the sizes of its own runs. A size that contradicts a declared one is
unknown. Added types, and computed shapes that `refine` knows, are then propagated binding by
binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import zip_longest

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program, called
from onnxgrad.ir.sizes import is_name, symbols
from onnxgrad.ir.type_inference import misinferred, per_binding, whole_model
from onnxgrad.ir.type_inference.calls import CallTypes
from onnxgrad.ir.type_inference.per_binding import types_of_bodies
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements
from onnxgrad.ir.type_inference.symbolic_shapes import REFINED
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import (
    Dim,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    TypeMismatch,
    are_two_numbers,
    contradicts,
    type_from_proto,
)
from onnxgrad.ir.var import Var


class Declarations:
    """The declared types of the main block's results and of those in blocks nested in it.

    `symbols` are all names of sizes that the file gives.
    """

    def __init__(self, program: Program) -> None:
        self.between: dict[BindingBlock, dict[str, Type]] = {}
        self.returned: dict[BindingBlock, dict[str, Type]] = {}
        seen: set[Type | None] = set()
        # a model has many values and few types: results are cached by type, and by pair of types
        self._incomplete: dict[Type | None, bool] = {}
        self._open: dict[Dim, bool] = {None: True}
        self._merged: dict[tuple[Type | None, Type | None], Type | None] = {}
        work = [program.main]
        for block in work:  # grows while it is walked
            self.between[block], self.returned[block] = block.file_types
            for types in block.file_types:
                seen.update(types.values())
            seen.update(v.type for v in block.inputs)
            work.extend(nested for b in block.bindings for nested in b.blocks.values())
        self.symbols = {s for type_ in seen for s in _symbols(type_)}

    def contradicted(self) -> set[str]:
        """Returns the results whose declaration contradicts the inferred type, without those that
        were inferred from such results.
        """
        found = {
            var
            for block in self.between
            for var, said in self._declared(block)
            if _contradict(var.type, said)
        }
        return _roots(next(iter(self.between)), found) if found else set()

    def _declared(self, block: BindingBlock) -> Iterable[tuple[Var, Type]]:
        between, returned = self.between[block], self.returned[block]
        if not between and not returned:
            return
        for b in block.bindings:
            for out in b.outputs:
                if out is None:
                    continue
                for declared in (between, returned):
                    if out.name in declared:
                        yield out, declared[out.name]

    def is_open(self, dim: Dim) -> bool:
        """Whether a size is unknown, or has only a name that onnx invents for each size that it
        cannot compute.
        """
        found = self._open.get(dim)
        if found is None:
            found = self._open[dim] = (
                isinstance(dim, str)
                and "unk__" in dim
                and any(is_invented(s) and s not in self.symbols for s in symbols(dim))
            )
        return found

    def is_incomplete(self, type_: Type | None) -> bool:
        """Whether a declaration could add something."""
        known = self._incomplete.get(type_)
        if known is None:
            known = type_ is None
            if isinstance(type_, TensorType):
                known = (
                    not type_.dtype or type_.shape is None or any(map(self.is_open, type_.shape))
                )
            self._incomplete[type_] = known
        return known

    def merge(self, inferred: Type | None, said: Type | None) -> Type | None:
        """Returns what both types know. Sizes that contradict each other become unknown, because
        either may be wrong.
        """
        pair = inferred, said
        if pair not in self._merged:
            self._merged[pair] = self._together(inferred, said)
        return self._merged[pair]

    def _together(self, inferred: Type | None, said: Type | None) -> Type | None:
        if inferred is None or said is None:
            return inferred or said
        if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
            return inferred
        if inferred.dtype and said.dtype != inferred.dtype:
            return inferred
        if said.shape is None or inferred.shape is None:
            return TensorType(said.dtype, said.shape if inferred.shape is None else inferred.shape)
        if len(inferred.shape) != len(said.shape):
            return TensorType(said.dtype, None)
        pairs = list(zip(inferred.shape, said.shape, strict=True))
        # a declaration that is wrong in one size is not believed in another
        if contradicts(inferred.shape, said.shape):
            return TensorType(
                said.dtype, tuple(None if are_two_numbers(i, s) else i for i, s in pairs)
            )
        return TensorType(
            said.dtype, tuple([s if s is not None and self.is_open(i) else i for i, s in pairs])
        )


def believed(said: Type | None, inferred: Type | None = None) -> Type | None:
    """Returns a declared type without its sizes, except those that contradict the inferred ones."""
    if isinstance(said, SequenceType | OptionalType):
        return type(said)(believed(said.elem))
    if not isinstance(said, TensorType) or said.shape is None:
        return said
    known = (inferred.shape if isinstance(inferred, TensorType) else None) or ()
    pairs = [*zip_longest(said.shape, known)][: len(said.shape)]
    return TensorType(said.dtype, tuple(d if are_two_numbers(d, i) else None for d, i in pairs))


def _is_known(inferred: Type | None, said: Type) -> bool:
    """Whether a declaration adds neither dtype nor rank, and contradicts nothing."""
    return (
        isinstance(inferred, TensorType)
        and inferred.dtype > 0
        and inferred.shape is not None
        and isinstance(said, TensorType)
        and said.shape is not None
        and not contradicts(inferred.shape, said.shape)
    )


def _contradict(inferred: Type | None, said: Type) -> bool:
    if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
        return False
    return (
        said.shape is not None
        and inferred.shape is not None
        and contradicts(inferred.shape, said.shape)
    )


def _symbols(type_: Type | None) -> list[str]:
    shape = type_.shape if isinstance(type_, TensorType) else None
    return [d for d in shape if isinstance(d, str)] if shape else []


def _roots(main: BindingBlock, contradicted: set[Var]) -> set[str]:
    """Returns the names of contradicted values that depend on no other contradicted value."""
    tainted: set[Var] = set()
    roots: set[str] = set()

    def visit(block: BindingBlock) -> bool:
        found = False
        for b in block.bindings:
            reached = any(v in tainted for v in b.inputs)
            for nested in b.blocks.values():
                reached = visit(nested) or reached
            wrong = [v.name for v in b.outputs if v is not None and v in contradicted]
            if wrong and not reached:
                roots.update(wrong)
            if wrong or reached:
                tainted.update(v for v in b.outputs if v is not None)
                found = True
        return found

    visit(main)
    return roots


# rounds of inference without contradicted values; after them, types are inferred binding by binding
# only
_ROUNDS = 4


def annotate(program: Program) -> None:
    """Sets the type of every Var of the program as precisely as can be inferred."""
    said = Declarations(program)
    _name_sizes(program.main.inputs, said.symbols)
    hidden: set[str] = set()
    inferred = None
    for _ in range(_ROUNDS):
        inferred = whole_model.infer_model(program, said.symbols, hidden)
        if inferred is None:
            break
        _assign(program.main, _types(inferred.graph), inferred.graph.node)
        _forget_sizes_of_elements(program.main)
        contradicted = said.contradicted() - hidden
        if not contradicted:
            break
        hidden |= contradicted
        inferred = None
    if inferred is None:
        _assign(program.main, {}, ())
    for function in program.functions.values():
        _assign(function, {}, ())
        _type_constants(function)
    # if onnx inferred nothing, everything is typed binding by binding
    _Completion(said, None if inferred is None else set()).block(program.main)


def _name_sizes(inputs: Iterable[Var], taken: Set[str]) -> None:
    """Names each unnamed size of an input as the options of the command line do: `x.0`. A size that
    the file names like a formula ("N+M") is a symbol as well: no input has to obey the formula.
    """
    named: dict[Dim, str] = {}
    for v in inputs:
        if v.shape is None:
            continue
        names = [f"{v.name}.{axis}" for axis in range(len(v.shape))]
        shape = list(v.shape)
        for axis, (n, d) in enumerate(zip(names, v.shape, strict=True)):
            if isinstance(d, int) or is_name(d):
                continue
            new = n if n not in taken and is_name(n) else None
            shape[axis] = new if d is None or new is None else named.setdefault(d, new)
        if shape != list(v.shape):
            v.type = TensorType(v.dtype, tuple(shape))


# ---- from protobuf to Vars -----------------------------------------------------------------------


def _types(graph: GraphProto) -> dict[str, Type | None]:
    return {v.name: type_from_proto(v.type) for v in (*graph.value_info, *graph.output)}


def _assign(
    block: BindingBlock, types: Mapping[str, Type | None], nodes: Iterable[NodeProto]
) -> None:
    """Sets the types of the block's results to the inferred ones. `nodes` are the inferred nodes,
    whose graphs hold the types of nested blocks.
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


def _forget_sizes_of_elements(main: BindingBlock) -> None:
    """Forgets the symbolic sizes of the elements of sequences, except sizes of inputs: onnx has one
    name for all elements, but each element has a size of its own.
    """
    values = [v for block in blocks_in(main) for v in block.vars()]
    types = {v.type for v in values}
    known = {s for v in main.inputs for d in _element(v.type) for s in symbols(d)}
    each = {d for t in types if isinstance(t, SequenceType) for d in _element(t)}
    each = {d for d in each if isinstance(d, str) and not known.issuperset(symbols(d))}
    if each:
        without = {t: _without(t, each) for t in types}
        for v in values:
            v.type = without[v.type]


def _element(type_: Type | None) -> Shape:
    """Returns the shape of a tensor, or of the elements of a sequence; () if unknown."""
    if isinstance(type_, SequenceType | OptionalType):
        return _element(type_.elem)
    return (type_.shape if isinstance(type_, TensorType) else None) or ()


def _without(type_: Type | None, sizes: Set[Dim]) -> Type | None:
    if isinstance(type_, SequenceType | OptionalType):
        return type(type_)(_without(type_.elem, sizes))
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple([None if d in sizes else d for d in type_.shape]))


def _type_constants(block: BindingBlock) -> None:
    """Types the Constants of a function body. Nothing else is inferred there, because parameters
    are untyped.
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


# ---- declarations, and what follows from them ----------------------------------------------------


class _Completion:
    """Completes results that are not fully known, in order. Declarations of intermediate values
    come first. If they are not enough and an operand became better known (always, if `improved` is
    None), the binding is typed again. Declarations of outputs come last, because exporters like to
    rename their sizes.
    """

    def __init__(self, said: Declarations, improved: set[Var] | None) -> None:
        self.said = said
        self.improved = improved
        self.known = KnownElements()
        self.calls = CallTypes(self.known)

    def block(self, block: BindingBlock) -> None:
        between, returned = self.said.between[block], self.said.returned[block]
        for b in block.bindings:
            for nested in b.blocks.values():
                self.block(nested)
            unknown = self._incomplete(b.outputs)
            if not unknown:
                continue
            # if onnx inferred nothing, every declaration is compared with our own result
            untyped = any(out.rank is None for out in unknown)
            if untyped:
                self._again(b)
            # such declarations often come from onnx's inference
            if b.op in misinferred.OPERATORS and misinferred.needs_types(b.node):
                unknown = self._incomplete(unknown)
            self._take(between, unknown)
            if not untyped:
                unknown = self._incomplete(unknown)
                if unknown and self._is_to_type(b):
                    self._again(b)
            self._take(returned, unknown)

    def _is_to_type(self, b: Binding) -> bool:
        if self.improved is None or b.blocks or (b.domain, b.op) in REFINED or called(b):
            return True
        return any(v in self.improved for v in b.inputs)

    def _incomplete(self, results: Iterable[Var | None]) -> list[Var]:
        return [out for out in results if out is not None and self.said.is_incomplete(out.type)]

    def _take(self, declared: Mapping[str, Type], results: Iterable[Var]) -> None:
        for out in results:
            said = declared.get(out.name)
            if said is not None and not _is_known(out.type, said):
                self._improve(out, believed(said, out.type))

    def _again(self, b: Binding) -> None:
        try:
            types = self._types_of(b)
        except TypeMismatch:
            return  # the model is invalid, and onnx does not report it either
        for out, found in zip(b.outputs, types):
            if out is not None and isinstance(found, TensorType):
                self._improve(out, found)

    def _types_of(self, b: Binding) -> Sequence[Type | None]:
        """Returns the types of a binding's results, from its operands or its bodies. Raises
        TypeMismatch.
        """
        if b.blocks:
            return types_of_bodies(b)
        return self.calls.of(b) if called(b) else per_binding.types_of(b, self.known)

    def _improve(self, var: Var, more: Type | None) -> None:
        better = self.said.merge(var.type, more)
        if better != var.type:
            var.type = better
            if self.improved is not None:
                self.improved.add(var)
