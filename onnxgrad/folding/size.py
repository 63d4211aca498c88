"""How many bytes a program takes as a file, and its constants in it."""

from __future__ import annotations

from onnx import TensorProto

from onnxgrad.ir.attributes import constant_value
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import element_count, numpy_dtype


def constant_bytes(program: Program) -> int:
    """The bytes of all constants that something reads: initializers and Constants, wherever
    their data lies.
    """
    total = 0
    for block in program.blocks():
        read = [v.initializer for v in block.initializers.values() if v.use_count]
        total += sum(_tensor_bytes(tensor) for tensor in read if tensor is not None)
        for b in block.bindings:
            if b.is_op("Constant") and not b.has_refs and b.out.use_count:
                value = constant_value(b.attrs)
                total += (
                    _tensor_bytes(value)
                    if isinstance(value, TensorProto)
                    else getattr(value, "nbytes", 0)
                )
    return total


def file_bytes(program: Program) -> int:
    """The bytes of the file that was read, with what it has outside."""
    return program.proto_bytes + outside_bytes(program)


def outside_bytes(program: Program) -> int:
    """The bytes of the constants whose data lies outside of the file."""
    outside = [
        t
        for block in program.blocks()
        for v in block.initializers.values()
        if (t := v.initializer) is not None and t.data_location == TensorProto.EXTERNAL
    ]
    return sum(map(_tensor_bytes, outside))


def _tensor_bytes(tensor: TensorProto) -> int:
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return sum(map(len, tensor.string_data))
    return (element_count(tuple(tensor.dims)) or 0) * numpy_dtype(tensor.data_type).itemsize
