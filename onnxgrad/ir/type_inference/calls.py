"""Types of the results of calls: the body of a local function, typed for the operands of a call."""

from __future__ import annotations

from collections.abc import Hashable

from onnx import FunctionProto, GraphProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.program import called
from onnxgrad.ir.type_inference.per_binding import retype_bodies
from onnxgrad.ir.type_inference.shape_arithmetic import Elements, KnownElements, sizes
from onnxgrad.ir.types import Type, TypeMismatch, element_count
from onnxgrad.ir.var import Var

# bindings of bodies that are typed for calls; onnx infers through more of them, without sizes
_MOST = 5_000
_DEEPEST = 32  # calls in calls
# constants of more elements compute no shape
_FEW = 64


class CallTypes:
    """Infers types of calls. A body is typed once for operands of the same types and elements.
    `known` learns the elements of results.
    """

    def __init__(self, known: KnownElements) -> None:
        self._known = known
        self._found: dict[Hashable, list[tuple[Type | None, Elements | None]]] = {}
        self._depth = 0  # bodies being typed
        self._left = _MOST

    def of(self, call: Binding) -> list[Type | None]:
        """Returns the types of the call's results, an empty list if it calls no local function."""
        key = called(call)
        if key is None:
            return []
        function = call.block.program.functions[key]
        attributes = [a.SerializeToString(deterministic=True) for a in call.node.attribute]
        known = (function, *map(_known, call.inputs), *sorted(attributes))
        if known not in self._found:
            self._left -= len(function.bindings)
            if self._left < 0 or self._depth == _DEEPEST:
                return []
            self._depth += 1
            self._found[known] = self._typed(call, function)
            self._depth -= 1
        found = self._found[known]
        for out, (_, elements) in zip(call.outputs, found):
            if out is not None and elements is not None and self._depth == 0:
                self._known.learn(out, elements)
        return [type_ for type_, _ in found]

    def _typed(
        self, call: Binding, function: BindingBlock
    ) -> list[tuple[Type | None, Elements | None]]:
        """Returns the types and elements of the body's outputs, from a copy that reads the call's
        operands.
        """
        program = call.block.program
        copy = BindingBlock(program, GraphProto(name=function.name), function.opsets)
        mapping: dict[Var, Var | None] = dict.fromkeys(function.inputs) | dict(
            zip(function.inputs, call.inputs)
        )
        bound = {a.name: a for a in call.node.attribute}
        if isinstance(function.proto, FunctionProto):
            bound = {a.name: a for a in function.proto.attribute_proto} | bound
        function.schedule()
        outermost = self._depth == 1
        if outermost:
            program.names.mark()
        try:
            for b in function.bindings:
                (inner,) = clone_bindings([b], copy, mapping, bound=bound)
                if inner.blocks:
                    retype_bodies(inner)
                for out, found in zip(inner.outputs, self.of(inner)):
                    if out is not None:
                        out.type = found
            results = [mapping.get(v) for v in function.outputs]
            known = KnownElements()
            return [(None, None) if v is None else (v.type, known.of(v)) for v in results]
        except (InternalError, TypeMismatch):
            return []  # the model is invalid: the body does not fit the operands
        finally:
            if outermost:
                program.names.forget()
            _release(call, copy)


def _release(call: Binding, copy: BindingBlock) -> None:
    """Forgets that the copy reads the operands of the call."""
    for v in call.inputs:
        if v is not None:
            for user in [b for b in v.users if b.block.root is copy]:
                del v.users[user]


def _known(v: Var | None) -> Hashable:
    """The properties of an operand that the shapes of results may depend on."""
    if v is None:
        return None
    count = element_count(v.shape)
    if v.is_constant and count is not None and count <= _FEW:
        return v
    return v.type, sizes(v)
