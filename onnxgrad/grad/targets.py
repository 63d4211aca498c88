"""The targets of a gradient: values by name, outputs by index, and parts of values such as
`logits[:, 7]`, in numpy's notation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted, option, perhaps

Target: TypeAlias = "str | int | Sequence[str | int] | None"

# more digits than any model has outputs, and few enough for `int`
_INDEX = re.compile(r"-?[0-9]{1,99}")


def find_targets(block: BindingBlock, target: Target, *, scalar: bool) -> list[Var]:
    """Returns the target values. With `scalar`, each must have rank 0.

    Raises InputError for an unknown name, an index out of range, a target given twice, a value that
    is not a floating-point tensor or not a scalar, and if no target is named although the model has
    several outputs.
    """
    outputs = _outputs(block)
    if target is None:
        if len(block.outputs) != 1:
            name = next((v.name for v in block.outputs if v.dtype in FLOAT_DTYPES), None)
            such = f", such as {option(f'--target {name}', f'target={name!r}')}" if name else ""
            raise InputError(
                f"the model has {counted(len(block.outputs), 'output')} ({outputs}): choose the "
                f"target by name or index{such}"
            )
        target = 0
    entries = [target] if isinstance(target, (str, int)) else list(target)
    if not entries:
        raise InputError(f"no target given; the model's outputs are {outputs}")
    values = {v.name: v for v in block.vars()}
    found: dict[Var, None] = {}
    for entry in entries:
        v = target_value(block, entry, values)
        if v in found:
            raise InputError(f"target '{v.name}' is given twice")
        if not isinstance(v.type, TensorType) or v.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"target '{v.name}' is {v.type or 'of unknown type'}, not a floating-point tensor"
            )
        if scalar and v.shape != ():
            seed = option("--adjoint input", 'adjoint="input"')
            raise InputError(
                f"target '{v.name}' is {v.type}, not a scalar: {part_of(v)}, or give its "
                f"adjoint as an input with {seed}"
            )
        found[v] = None
    return list(found)


def part_of(v: Var) -> str:
    """Returns the advice for a target with several elements."""
    part = f"name a part, such as '{v.name}[{':,' if (v.rank or 0) > 1 else ''}0]', which is summed"
    return part if v.rank else "reduce it to one"


def _outputs(block: BindingBlock) -> str:
    return ", ".join(f"{v.name}: {v.type or '?'}" for v in block.outputs)


def target_value(block: BindingBlock, entry: str | int, values: Mapping[str, Var]) -> Var:
    """Returns the value of that name, or the output of that index. Raises InputError if there is
    none.
    """
    outputs = _outputs(block)
    if isinstance(entry, str) and entry not in values and _INDEX.fullmatch(entry):
        entry = int(entry)
    if isinstance(entry, str):
        if entry not in values:
            raise InputError(
                f"target '{entry}' is not a value of the model{perhaps(entry, values, 3)}; its "
                f"outputs are {outputs}"
            )
        return values[entry]
    if not -len(block.outputs) <= entry < len(block.outputs):
        raise InputError(
            f"target index {entry} is out of range: the model has "
            f"{counted(len(block.outputs), 'output')} ({outputs})"
        )
    return block.outputs[entry]


# ---- parts of values -----------------------------------------------------------------------------

# ends of a Slice that reach to the border of the axis
_END, _BEGINNING = (1 << 63) - 1, -(1 << 63)

_PART = re.compile(r"(?P<value>.+?)\[(?P<places>[^\[\]]*)\]", re.DOTALL)
# more digits than any axis has elements, and few enough for int64
_NUMBER = r"\s*(-?[0-9]{1,18})?\s*"
_RANGE = re.compile(f"{_NUMBER}:{_NUMBER}(?::{_NUMBER})?")
_PLACE_INDEX = re.compile(r"\s*-?[0-9]{1,18}\s*")

Place: TypeAlias = "int | slice"


class Cut(NamedTuple):
    """Targets whose parts have become values; labels: the names in the request, by new names."""

    target: Target
    labels: Mapping[str, str]
    notes: Sequence[str]


def cut(block: BindingBlock, target: Target, *, summed: bool) -> Cut:
    """Emits the parts among the targets after their values; other targets stay unchanged. If
    `summed`, each part is summed to a scalar.

    Raises InputError for a part with a syntax error, with too many places, or without an element,
    and for a part of a value that is unknown, no floating-point tensor, or of unknown rank.
    """
    entries = [target] if isinstance(target, (str, int)) or target is None else list(target)
    values = {v.name: v for v in block.vars()}
    labels: dict[str, str] = {}
    notes: list[str] = []
    names: list[str | int] = []
    for entry in entries:
        part = _PART.fullmatch(entry) if isinstance(entry, str) and entry not in values else None
        if entry is None or part is None or not isinstance(entry, str):
            names += [] if entry is None else [entry]
            continue
        v = target_value(block, part["value"], values)
        found = _emit(block, v, _places(entry, v, part["places"]), entry)
        if summed and found.shape != ():
            notes.append(f"target '{entry}' is {found.type}: the gradient is that of its sum")
            with emitting(block, made_by="gradient"):
                found = op.ReduceSum(found, keepdims=0)
        found.rename(block.program.names.fresh(f"{v.name}_slice"))
        labels[found.name] = entry
        names.append(found.name)
    return Cut(None if target is None else names, labels, notes)


def with_parts(
    model: ModelProto, target: Target, folder: Path | None = None
) -> tuple[ModelProto, Target, list[str]]:
    """Returns the model with the parts among the targets as outputs, the targets, and the names of
    the new values, if any. `folder`: that of its external data, which stays there.
    """
    program = program_of(model, folder)
    known = {v.name for v in program.main.vars()}
    entries = [target] if isinstance(target, (str, int)) or target is None else list(target)
    if not any(isinstance(e, str) and e not in known and _PART.fullmatch(e) for e in entries):
        return model, target, []
    program, _ = raise_opset(program)
    found = cut(program.main, target, summed=False)
    made = [v for v in program.main.vars() if v.name not in known]
    for v in [v for v in made if v.name in found.labels]:
        program.main.add_output(v)
    return to_proto(program, weights=folder is None), found.target, [v.name for v in made]


def _emit(block: BindingBlock, v: Var, places: Sequence[Place], entry: str) -> Var:
    sliced = [(axis, p) for axis, p in enumerate(places) if p != slice(None)]
    ranges = [_range(p) for _, p in sliced]
    starts, ends, steps = ([r[i] for r in ranges] for i in range(3))
    indexed = [axis for axis, p in sliced if isinstance(p, int)]
    with emitting(block, made_by="gradient"):
        if not sliced:
            return op.Identity(v)
        found: Var = op.Slice(v, starts, ends, [axis for axis, _ in sliced], steps)
        return op.Squeeze(found, indexed) if indexed else found


def _range(place: Place) -> tuple[int, int, int]:
    """Returns start, end and step of a Slice."""
    if isinstance(place, int):
        return place, _END if place == -1 else place + 1, 1
    step = 1 if place.step is None else place.step
    first, last = (0, _END) if step > 0 else (_END, _BEGINNING)
    return (
        first if place.start is None else place.start,
        last if place.stop is None else place.stop,
        step,
    )


def _places(entry: str, v: Var, text: str) -> list[Place]:
    """Returns one place for each axis. Raises InputError as `cut` does."""
    if v.dtype not in FLOAT_DTYPES:
        raise InputError(
            f"target '{entry}' is of {v.type or 'unknown type'}, not of a floating-point tensor"
        )
    if v.shape is None:
        raise InputError(
            f"target '{entry}': the rank of '{v.name}' is unknown, so no part of it can be taken"
        )
    given = [None if w.strip() == "..." else _place(entry, w) for w in text.split(",")]
    missing = len(v.shape) - sum(p is not None for p in given)
    if missing < 0:
        raise InputError(
            f"target '{entry}' has {counted(len(given), 'place')}, and '{v.name}' is {v.type}"
        )
    if given.count(None) > 1:
        raise InputError(f"target '{entry}' has more than one '...'")
    dots = given.index(None) if None in given else len(given)
    places = [
        p for p in [*given[:dots], *[slice(None)] * missing, *given[dots + 1 :]] if p is not None
    ]
    for axis, (place, size) in enumerate(zip(places, v.shape, strict=True)):
        if isinstance(size, int) and not (
            len(range(*place.indices(size))) if isinstance(place, slice) else -size <= place < size
        ):
            raise InputError(
                f"target '{entry}': axis {axis} of '{v.name}: {v.type}' has no such element"
            )
    return places


def _place(entry: str, word: str) -> Place:
    if _PLACE_INDEX.fullmatch(word):
        return int(word)
    found = _RANGE.fullmatch(word)
    if found is None:
        raise InputError(
            f"target '{entry}': '{word.strip()}' is not a place along an axis; examples are 7, -1, "
            "2:5, ::2, : and ..."
        )
    start, stop, step = (None if n is None else int(n) for n in found.groups())
    if step == 0:
        raise InputError(f"target '{entry}': the step of '{word.strip()}' is 0")
    return slice(start, stop, step)
