"""Parts of values as targets: `logits[:, 7]` is cut out of `logits`, in numpy's words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.opset import raise_opset
from onnxgrad.grad.request import Target, target_value
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.names import rename
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var

# of a Slice: as far as it goes
_END, _BEGINNING = (1 << 63) - 1, -(1 << 63)

_PART = re.compile(r"(?P<value>.+?)\[(?P<places>[^\[\]]*)\]", re.DOTALL)
# more digits than any axis has elements, and few enough for int64
_NUMBER = r"\s*(-?[0-9]{1,18})?\s*"
_RANGE = re.compile(f"{_NUMBER}:{_NUMBER}(?::{_NUMBER})?")
_INDEX = re.compile(r"\s*-?[0-9]{1,18}\s*")

Place: TypeAlias = "int | slice"


class Cut(NamedTuple):
    """Targets of which parts are values now; labels: what the request called them, by their
    names.
    """

    target: Target
    labels: Mapping[str, str]
    notes: Sequence[str]


def cut(block: BindingBlock, target: Target, *, summed: bool) -> Cut:
    """The parts among the targets emitted behind their values; `summed`: down to a scalar, the
    others stay as they are.

    Raises InputError for a part that is not spelled as one, has too many places or none within the
    value, or is of a value that is unknown, no floating-point tensor, or of unknown rank.
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
        rename(found, block.program.names.fresh(f"{v.name}_slice"))
        labels[found.name] = entry
        names.append(found.name)
    return Cut(None if target is None else names, labels, notes)


def with_parts(model: ModelProto, target: Target) -> tuple[ModelProto, Target, list[str]]:
    """The model with the parts among the targets as outputs, the targets, and the names of these
    parts, if any.
    """
    program = load(model)
    known = {v.name for v in program.main.vars()}
    entries = [target] if isinstance(target, (str, int)) or target is None else list(target)
    if not any(isinstance(e, str) and e not in known and _PART.fullmatch(e) for e in entries):
        return model, target, []
    program, _ = raise_opset(program)
    found = cut(program.main, target, summed=False)
    made = [v for v in program.main.vars() if v.name not in known]
    for v in [v for v in made if v.name in found.labels]:
        program.main.add_output(v)
    return to_proto(program, weights=True), found.target, [v.name for v in made]


def _emit(block: BindingBlock, v: Var, places: Sequence[Place], entry: str) -> Var:
    sliced = [(axis, p) for axis, p in enumerate(places) if p != slice(None)]
    if not sliced:
        with emitting(block, made_by="gradient"):
            whole: Var = op.Identity(v)
        return whole
    ranges = [_range(p) for _, p in sliced]
    starts, ends, steps = ([r[i] for r in ranges] for i in range(3))
    indexed = [axis for axis, p in sliced if isinstance(p, int)]
    with emitting(block, made_by="gradient"):
        found: Var = op.Slice(v, starts, ends, [axis for axis, _ in sliced], steps)
        return op.Squeeze(found, indexed) if indexed else found


def _range(place: Place) -> tuple[int, int, int]:
    """Start, end and step as Slice takes them."""
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
    """One for each axis. InputError as `cut` says."""
    if v.dtype not in FLOAT_DTYPES:
        raise InputError(
            f"target '{entry}' is of {v.type or 'unknown type'}, not of a floating-point tensor"
        )
    if v.shape is None:
        raise InputError(
            f"target '{entry}': the rank of '{v.name}' is unknown, so no part of it can be taken"
        )
    words = text.split(",")
    given = [None if w.strip() == "..." else _place(entry, w) for w in words]
    missing = len(v.shape) - sum(p is not None for p in given)
    if missing < 0:
        raise InputError(f"target '{entry}' has {len(given)} places, and '{v.name}' is {v.type}")
    if given.count(None) > 1:
        raise InputError(f"target '{entry}' has more than one '...'")
    dots = given.index(None) if None in given else len(given)
    places = [
        p for p in [*given[:dots], *[slice(None)] * missing, *given[dots + 1 :]] if p is not None
    ]
    for axis, (place, size) in enumerate(zip(places, v.shape, strict=True)):
        if isinstance(size, int) and not _within(place, size):
            raise InputError(
                f"target '{entry}': axis {axis} of '{v.name}: {v.type}' has no such element"
            )
    return places


def _place(entry: str, word: str) -> Place:
    if _INDEX.fullmatch(word):
        return int(word)
    found = _RANGE.fullmatch(word)
    if found is None:
        raise InputError(
            f"target '{entry}': '{word.strip()}' is no place along an axis; these are 7, -1, 2:5, "
            "::2, : and ..."
        )
    start, stop, step = (None if n is None else int(n) for n in found.groups())
    if step == 0:
        raise InputError(f"target '{entry}': the step of '{word.strip()}' is 0")
    return slice(start, stop, step)


def _within(place: Place, size: int) -> bool:
    return -size <= place < size if isinstance(place, int) else len(range(*place.indices(size))) > 0
