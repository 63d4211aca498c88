"""Converts bindings to float16, one at a time and in place: names, metadata and order stay.

The program is valid after each step. Readers that are still in float32 read `Cast(y, float)`; once
a reader is converted, it reads y itself. A Cast is in the block of its reader, because onnxruntime
1.31 loses a Cast whose result only a nested graph reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.derivations import LITERAL
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.traced_arrays import Traced, plain, tracing
from onnxgrad.ir.types import Array, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import filling
from onnxgrad.laws.float16.forms import LARGEST, Halved, halved, tensor_of
from onnxgrad.laws.float16.keeping import Float16Plan

LAW = "in_float16"
_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


class Conversion:
    """Carries out a plan. `widened` has the Casts to float32 that replace float16 values."""

    def __init__(self, plan: Float16Plan) -> None:
        self.plan = plan
        self.widened: dict[Var, Var] = {}  # by the Cast's result: its operand
        # a value of float32 and the block that reads it: its Cast to float16
        self.narrowed: dict[tuple[Var, BindingBlock], Var] = {}
        self.copies: dict[Var, Var] = {}  # a constant that others read in float32: its copy
        self.declared: dict[BindingBlock, dict[str, ValueInfoProto]] = {}
        self.only = {v for v in plan.constants if self._is_only_half(v)}

    def in_float16(self, b: Binding) -> None:
        """f(x) = float32(f16(float16(x))), f16 the same operator in float16"""
        form = self.plan.forms[b]
        before: dict[Var, None] = {}
        for i in form.operands:
            v = b.inputs[i]
            if v is None:
                continue
            new = self._half(v, b.block, (b,))
            before |= dict.fromkeys(x for x in (v, b.inputs[i]) if x is not None)
            b.block.set_operand(b, i, new)
        if form.attribute:
            _name_the_type(b, form.attribute)
        for i in form.results:
            v = b.outputs[i]
            if v is not None:
                self._widen(v, (b,))
        self._forget(before)

    def _forget(self, values: Iterable[Var]) -> None:
        """Removes Casts and constants that have no readers left."""
        for v in values:
            if v in self.widened and v.definition is not None:
                v.block.remove_unused([v.definition])
            elif v in self.copies and not v.use_count and v.definition is not None:
                v.block.remove(v.definition)
            elif v in self.copies and not v.use_count and not v.is_input:
                v.block.remove_initializer(v)

    def input(self, x: Var) -> None:
        """Converts a graph input to float16."""
        if x.initializer is not None:
            _write(x, _default(x).astype(np.float16))
        wide = self._widen(x, ())
        for narrow in [n for (v, _), n in self.narrowed.items() if v is x]:
            narrow.block.replace(narrow, x)
            narrow.block.remove_unused([narrow.definition] if narrow.definition else [])
        for v in wide:
            v.block.remove_unused([v.definition] if v.definition else [])

    def output(self, v: Var, block: BindingBlock) -> None:
        """Converts a graph output to float16."""
        name = v.name
        block.return_instead(v, self._half(v, block, ()))
        self._declare(block, name, next(o for o in block.outputs if o.name == name))
        if v.definition is not None:
            block.remove_unused([v.definition])

    def _half(self, v: Var, block: BindingBlock, sources: Sequence[Binding]) -> Var:
        """The value in float16, to be read in `block`."""
        if v in self.widened:
            return self.widened[v]
        if v in self.plan.constants:
            return self._constant(v, self.plan.constants[v])
        if (v, block) not in self.narrowed:
            with emitting(block, sources=sources, made_by=LAW):
                bounds = (np.float32(-LARGEST), np.float32(LARGEST))
                x = op.Clip(v, *bounds) if v in self.plan.far else v
                self.narrowed[v, block] = op.Cast(x, to=_FLOAT16)
        return self.narrowed[v, block]

    def _constant(self, v: Var, made: Halved) -> Var:
        if v in self.only:
            _write(v, made.array)
            self._widen(v, ())
            return v
        if v not in self.copies:
            name = f"{v.name}_float16"
            if isinstance(made.array, TensorProto):
                for field in ("doc_string", "metadata_props"):
                    made.array.ClearField(field)
                made.array.name = v.block.program.names.fresh(name)
                self.copies[v] = v.block.add_initializer(made.array)
                return self.copies[v]
            with emitting(v.block, made_by=LAW):
                self.copies[v] = constant(made.array, name=name)
        return self.copies[v]

    def _is_only_half(self, v: Var) -> bool:
        """Whether no reader of this constant stays in float32."""
        forms = self.plan.forms
        return not v.returned and all(
            user in forms and set(user.places(v)) <= set(forms[user].operands) for user in v.users
        )

    def _widen(self, v: Var, sources: Sequence[Binding]) -> list[Var]:
        """Changes the value to float16 and lets its readers read Casts to float32. Returns
        these.
        """
        self._retype(v)
        made: dict[BindingBlock, Var] = {}

        def wide(block: BindingBlock) -> Var:
            if block not in made:
                with emitting(block, sources=sources, made_by=LAW):
                    made[block] = op.Cast(v, to=_FLOAT)
                self.widened[made[block]] = v
            return made[block]

        for user in list(v.users):
            for place in user.places(v):
                user.block.set_operand(user, place, wide(user.block))
        for block in v.blocks_returning() if v.returned else ():
            name = v.name
            block.return_instead(v, wide(block))
            if v.name != name:
                v.rename(v.block.program.names.fresh(f"{name}_float16"))
        return list(made.values())

    def _retype(self, v: Var) -> None:
        """Changes the type of the value to float16, and its declaration in the file as well."""
        v.type = TensorType(_FLOAT16, v.shape)
        self._declare(v.block, v.name, v)
        v.block.touch()

    def _declare(self, block: BindingBlock, name: str, v: Var) -> None:
        """Declares `v` in float16 if the file declared `name`."""
        if block not in self.declared:
            proto = block.proto
            graph = proto if isinstance(proto, GraphProto) else GraphProto()
            values = (*graph.value_info, *graph.input, *graph.output)
            self.declared[block] = {value.name: value for value in values}
        info_before = self.declared[block].get(name)
        if info_before is not None:
            info = copy_of(info_before)
            info.type.tensor_type.elem_type = _FLOAT16
            block.declared[v] = info


def _default(x: Var) -> Array:
    """The default value of an input."""
    tensor, program = x.initializer, x.block.program
    found = None if tensor is None else program.array(tensor)
    default = tracing(found, x.source, program.derivations)
    if default is None:
        raise InternalError(f"an input without a default: {x!r}")
    return default


def _write(v: Var, array: Array | TensorProto) -> None:
    """Sets the value of a constant."""
    name = v.name if v.definition is None else ""
    v.set_constant(tensor_of(plain(array), v.initializer, name))
    if v.block.program.derivations is not None:
        v.source = array.step if isinstance(array, Traced) else LITERAL


def _name_the_type(b: Binding, attribute: str) -> None:
    """Sets the attribute that determines the type of the result to float16."""
    if attribute != "value":
        b.set_attribute(attribute, _FLOAT16)
        return
    made = halved(filling(b), masking=True)
    if isinstance(made, str):
        raise InternalError(f"{b} was to be float16, but {made}")
    b.set_attribute("value", tensor_of(made.array, None, ""))
