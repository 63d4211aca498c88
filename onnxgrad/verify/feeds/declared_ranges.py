"""The ranges of values that a model declares for its inputs, in their own metadata, so that they
follow an input through renaming, cutting and joining.

They narrow the values with which a proof runs the model. They are the user's promise about real
use, and no rewrite relies on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxgrad.errors import InputError
from onnxgrad.limits import Interval, interval_text, read_interval
from onnxgrad.verify.feeds.dims import tensor_types
from onnxgrad.wording import did_you_mean

KEY = "onnxgrad.range"
_NO_NUMBERS = {
    onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, onnx.TensorProto.BOOL,
    onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128,
}  # fmt: skip


def ranges_of(model: onnx.ModelProto) -> dict[str, Interval]:
    """Returns the declared ranges by the names of inputs. Raises InputError for an entry that is no
    range, and for an input that holds no numbers.
    """
    texts = {v.name: e.value for v in model.graph.input for e in v.metadata_props if e.key == KEY}
    ranges = {name: read_interval(text, f"{KEY} of {name!r}:") for name, text in texts.items()}
    check_inputs(ranges, {v.name: v for v in model.graph.input})
    return ranges


def declare(value: onnx.ValueInfoProto, interval: Interval | None) -> None:
    """Writes the range of an input into its declaration; None removes it."""
    others = [e for e in value.metadata_props if e.key != KEY]
    del value.metadata_props[:]
    value.metadata_props.extend(others)
    if interval is not None:
        value.metadata_props.add(key=KEY, value=interval_text(interval))


def check_inputs(
    ranges: Mapping[str, Interval | None], known: Mapping[str, onnx.ValueInfoProto]
) -> None:
    """Raises InputError if a range belongs to an input that does not exist or holds no numbers."""
    for name in ranges:
        if name not in known:
            hint = did_you_mean(name, known, f"inputs: {', '.join(known) or 'none'}")
            raise InputError(f"range of {name!r}: the model has no such input; {hint}")
        types = {kind.elem_type for kind in tensor_types(known[name].type)}
        if not types or types & _NO_NUMBERS:
            raise InputError(f"range of {name!r}: the input holds no real numbers")


def notes_on_ranges(model: onnx.ModelProto) -> list[str]:
    """Returns a note for the report of a proof whose values lie in declared ranges."""
    declared = ", ".join(f"{name} {interval_text(ends)}" for name, ends in ranges_of(model).items())
    return [f"inputs lie in the ranges that the model declares: {declared}"] if declared else []
