"""Forms of float32 computations in float16: the numbers of constants, and the operands and results
of an operator that may be float16 according to its schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.defs import OpSchema

from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission import signature
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.storage import external_data
from onnxgrad.ir.storage.external_data import narrowed
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.traced_arrays import Traced, predicate, recorded
from onnxgrad.ir.type_inference import per_binding
from onnxgrad.ir.types import Array, SequenceType, TensorType, TypeMismatch
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted

LARGEST, SMALLEST = 65504.0, 2.0**-24
# larger numbers are no quantities: they mean infinity, in masks and as bounds
FAR = 1e8
# the IR version from which an initializer need not be a graph input
_OLDEST = 4


@frozen
class Halved:
    """A constant in float16: its array, or a tensor whose data is converted when it is read.

    `size`: the number of elements. `far`: how many meant infinity and are now the largest number.
    `lost`: how many became 0. `raised`: the array was one number that would have become 0.
    """

    array: Array | TensorProto
    size: int = 1
    far: int = 0
    lost: int = 0
    raised: bool = False

    @property
    def notes(self) -> list[str]:
        """Describes the changes of numbers that float16 cannot represent."""
        size, found = self.size, []
        if self.far:
            found.append(
                f"{self.far:,} of {counted(size, 'number')} stood for infinity and became ±65504"
            )
        if self.raised:
            found.append("became the smallest number, 6e-08, instead of 0")
        if self.lost:
            found.append(f"{self.lost:,} of {counted(size, 'number')} are below 3e-08 and became 0")
        return found


def halved(array: Array, *, masking: bool) -> Halved | str:
    """Converts a float32 array to float16, or returns the reason why it must not be converted.

    `masking`: the operator adds the numbers, or chooses or bounds by them, and never divides. Then
    numbers beyond FAR become the largest float16 number. A single small number (such as an epsilon)
    never becomes 0. In an array, numbers may become 0 if others do not.
    """
    made = in_half(array)
    if array.size == 1 and made.any() and not narrowed(array).any():
        return Halved(made, raised=True)
    return _judged(made, [array], masking)


@recorded
def in_half(array: Array) -> Array:
    """Returns float32 numbers in float16; a single number never becomes 0."""
    made = narrowed(array)
    if array.size == 1 and not made.any() and array.any():
        return np.copysign(np.float16(SMALLEST), array).astype(np.float16)
    return made


@predicate
def fits_float16(array: Array, masking: bool) -> bool:
    """Whether a float32 array may be converted, see `halved`."""
    return isinstance(halved(array, masking=masking), Halved)


def fits_in_parts(parts: Iterable[Array], masking: bool) -> bool:
    """As `fits_float16`, for the parts of a float32 array of several elements."""
    return isinstance(_judged(np.zeros((), np.float16), parts, masking), Halved)


def halved_constant(v: Var, *, masking: bool) -> Halved | str | None:
    """Converts a constant as `halved` does; None if its value is no array. A large one in an
    external file is read in pieces, and converted when it is written.
    """
    tensor, program = v.initializer, v.block.program
    const: Any = v.const if program.derivations is not None else None
    if isinstance(const, Traced):
        made = halved(const.array, masking=masking)
        if isinstance(made, Halved) and fits_float16(const, masking):
            return replace(made, array=in_half(const))
        return made
    at_top = v.block is program.main and program.ir_version >= _OLDEST
    if tensor is not None and at_top and tensor.data_location == TensorProto.EXTERNAL:
        if (raw_bytes(tensor) or 0) < LARGE:
            return halved(program.array(tensor), masking=masking)
        pieces = external_data.arrays(tensor, program.folder)
        return _judged(external_data.halved(tensor), pieces, masking)
    # not by `const`: its new value takes its place
    array = v.const if tensor is None else program.array(tensor)
    return None if array is None else halved(array, masking=masking)


def _judged(made: Array | TensorProto, parts: Iterable[Array], masking: bool) -> Halved | str:
    """Returns `made`, the numbers of these parts in float16, or the reason against it."""
    size = lost = far = beyond = kept = 0
    most = 0.0
    for part in parts:
        with np.errstate(over="ignore", under="ignore"):
            half = part.astype(np.float16)
        over = np.abs(part[np.isinf(half) & np.isfinite(part)])
        most = max(most, float(over.max(initial=0)))
        far += int((over >= FAR).sum())
        beyond += int((over < FAR).sum())
        kept += bool(half.any())
        lost += int(((half == 0) & (part != 0)).sum())
        size += part.size
    if beyond or (far and not masking):
        return f"{most:g} of its constants is beyond 65504"
    if lost and not kept:
        return f"all of its {size:,} weights are below 3e-08, which would be 0"
    return Halved(made, size, far, lost)


def tensor_of(array: Array | TensorProto, like: TensorProto | None, name: str) -> TensorProto:
    """The array as a tensor, with the doc string and metadata of `like`. A tensor is renamed."""
    if isinstance(array, TensorProto):
        array.name = name
        return array
    made = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    if like is not None:
        if like.HasField("doc_string"):
            made.doc_string = like.doc_string
        made.metadata_props.extend(like.metadata_props)
    return made


_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
# operators whose result type depends on an attribute: a dtype, or a tensor of that dtype
_BY_ATTRIBUTE = {"Cast": "to", "EyeLike": "dtype", "ConstantOfShape": "value"}


@frozen
class Form:
    """The positions of the operands and results that become float16, and the attribute that
    determines the dtype if no operand does.
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]
    attribute: str = ""


def has_floats(b: Binding) -> bool:
    """Whether `b` reads or computes float32 values, including sequences of them."""
    return any(v is not None and _is_float(v) for v in (*b.inputs, *b.outputs))


def form_of(b: Binding) -> Form | str:
    """The float16 form of a binding with floats, or the reason why it has none."""
    schema = attributes.schema(b.op, b.version, b.domain)
    if schema is None:
        return "no schema says whether it accepts float16"
    if any(v is not None and not isinstance(v.type, TensorType) for v in (*b.inputs, *b.outputs)):
        return "not all that it reads and computes is known to be a tensor"
    formals = signature.formals(b.op, b.domain, schema.since_version)
    by_variable: dict[str, list[int]] = {}
    for i, v in enumerate(b.inputs):
        if v is not None and v.dtype == _FLOAT:
            formal = formals[min(i, len(formals) - 1)]
            if _FLOAT16 in formal.dtypes and _FLOAT in formal.dtypes:
                by_variable.setdefault(formal.variable, []).append(i)
    named = _BY_ATTRIBUTE.get(b.op, "") if b.domain == "" else ""
    made = list(schema.outputs)
    last = len(made) - 1
    results = tuple(
        i
        for i, v in enumerate(b.outputs)
        if v is not None
        and v.dtype == _FLOAT
        and (named or str(made[min(i, last)].type_str) in by_variable)
        and "tensor(float16)" in made[min(i, last)].types
    )
    operands = tuple(sorted(i for places in by_variable.values() for i in places))
    if not operands and not results:
        return "it has no form in float16"
    form = Form(operands, results, named if results else "")
    return (
        form if form.attribute or _types(b, schema, form) else "its results would be of other types"
    )


def _types(b: Binding, schema: OpSchema, form: Form) -> bool:
    """Whether the operator, fed float16, returns the types of the form and keeps all others."""
    half = set(form.operands)
    read = [
        Var(v.name, v.block, TensorType(_FLOAT16, v.shape)) if v and i in half else v
        for i, v in enumerate(b.inputs)
    ]
    try:
        made = per_binding.result_types(schema, b.to_node(), read, b.block)
    except TypeMismatch:
        return False
    return all(
        new is None
        or v is None
        or not isinstance(new, TensorType)
        or new.dtype == (_FLOAT16 if i in form.results else v.dtype)
        for i, (v, new) in enumerate(zip(b.outputs, made, strict=True))
    )


def _is_float(v: Var) -> bool:
    kind = v.type
    while isinstance(kind, SequenceType):
        kind = kind.elem
    return isinstance(kind, TensorType) and kind.dtype == _FLOAT
