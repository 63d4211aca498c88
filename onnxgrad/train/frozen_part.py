"""Cuts a model in two at some values: the frozen part runs once per example, the rest is
trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.wrt import Wrt, entries_of
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import names_among
from onnxgrad.options import known_keywords
from onnxgrad.train.array_files import as_array, read_npz
from onnxgrad.train.data import Arrays, scaled
from onnxgrad.train.engines.session import checked, open_session, refusing
from onnxgrad.train.manifest import one_size
from onnxgrad.train.update.emission import fed_of, prune
from onnxgrad.wording import counted, perhaps, shape_text

At: TypeAlias = "str | Sequence[str]"


def cut(program: Program, at: At) -> set[str]:
    """Makes the values `at` inputs of the program, and removes everything that does not depend on
    them. Returns the names of the removed values.

    Outputs that depend on none of these values are removed. Raises InputError if one of `at` is not
    a computed tensor of the main graph, or if nothing depends on it.
    """
    block = program.main
    values = _computed(block, at)
    before = {name for v in _ancestors(values) for name in _names(v)}
    fed = [_fed_in(block, v) for v in values]
    for v in dict.fromkeys(block.outputs):
        if not _ancestors([v]) & set(fed):
            block.remove_output(v)
    if not block.outputs:
        raise InputError(f"no node of the model comes after {_listed(at)}, so there is no loss")
    prune(block, lambda v: v.use_count or v.returned)
    if unread := [v.name for v in fed if not v.use_count and not v.returned]:
        raise InputError(f"'{unread[0]}' is read only before the others: leave it out")
    return before


def check_behind(program: Program, wrt: Wrt, before: set[str], at: At) -> None:
    """Raises InputError for a weight of `wrt` that the cut removed."""
    left = {v.name for v in program.main.vars()}
    for name in entries_of(wrt, before | left):
        if name in before and name not in left:
            raise InputError(
                f"wrt '{name}' comes before {_listed(at)} and is not part of the step: it is frozen"
            )


def check_apart(trained: Iterable[str], before: set[str], at: At) -> None:
    """Raises InputError for a trained weight that the frozen part reads, too."""
    for name in trained:
        if name in before:
            raise InputError(
                f"'{name}' is read before {_listed(at)} too, whose stored values would not follow "
                f"its updates: exclude it from wrt (!{name})"
            )


def first_part(program: Program, at: At) -> None:
    """Makes the values `at` the outputs of the program, and removes everything else. Raises
    InputError as `cut` does.
    """
    block = program.main
    values = _computed(block, at)
    for v in dict.fromkeys(block.outputs):
        block.remove_output(v)
    for v in values:
        block.add_output(v)
    prune(block, lambda v: v.use_count or v.returned)


def _computed(block: BindingBlock, at: At) -> list[Var]:
    own = {v.name: v for v in block.vars()}
    found: dict[Var, None] = {}
    for name in names_among(at, own, "inputs_at"):
        v = own.get(name)
        if v is None:
            raise InputError(f"inputs_at '{name}' is not a value of the model{perhaps(name, own)}")
        if v.definition is None or v.is_constant or not isinstance(v.type, TensorType):
            raise InputError(
                f"inputs_at '{name}' is {'an input or weight' if v.definition is None else v.type}"
                ": name a tensor that the model computes"
            )
        found[v] = None
    if not found:
        raise InputError("inputs_at names no value")
    return list(found)


def _fed_in(block: BindingBlock, v: Var) -> Var:
    """Replaces the value by an input with its name."""
    name = v.name
    if any(out is v for out in block.outputs):
        block.remove_output(v)
    v.rename(block.program.names.fresh(f"{name}.before"))
    fed = block.add_input(name, v.type)
    block.replace(v, fed)
    return fed


def _ancestors(values: Iterable[Var]) -> set[Var]:
    """Returns the values, and all values from which they are computed."""
    found: set[Var] = set()
    work = list(values)
    while work:
        v = work.pop()
        if v in found:
            continue
        found.add(v)
        if (b := v.definition) is not None:
            work += [x for x in b.inputs if x is not None]
            work += [x for nested in b.blocks.values() for x in nested.captures()]
    return found


def _names(v: Var) -> list[str]:
    """Returns the names of a value and of all values in the nested blocks of its node."""
    nested = [] if v.definition is None else list(v.definition.blocks.values())
    inner = [b for block in nested for b in [block, *(x.block for x in block.walk())]]
    return [v.name, *(x.name for block in inner for x in block.vars())]


def _listed(at: At) -> str:
    return ", ".join(f"'{name}'" for name in ([at] if isinstance(at, str) else at))


@known_keywords
def features(
    model: ModelLike,
    at: At,
    data: Mapping[str, Array] | str | PathLike[str],
    *,
    batch_size: int | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    scale: Mapping[str, float] | None = None,
) -> dict[str, Array]:
    """Returns the values `at` of a model for each example of the data, to train with
    `training_step(model, ..., inputs_at=at)`.

    data: arrays by name, or an .npz of them, with one row per example. Arrays that only the frozen
    part reads are left out of the result; the others, such as labels, are returned with the values.
    batch_size: examples per run; defaults to the size that the model fixes, or 32. scale: factors
    of integer inputs, by name. Raises InputError as `cut` does, for data that does not fit, and for
    a value without one row per example.
    """
    rest, first = (load_own(model, in_place=True) for _ in range(2))
    cut(rest, at)
    first_part(first, at)
    block = first.main
    arrays = read_npz(Path(data)) if isinstance(data, (str, PathLike)) else dict(data)
    taken = [fed_of(v, "batch") for v in block.inputs if v.initializer is None]
    read, names = {fed.name for fed in taken}, [v.name for v in block.outputs]
    own = {k: as_array(a) for k, a in arrays.items() if k in read}
    if not own:
        checked(own, taken)  # raises for the missing input
    session, parts = open_session(first, provider, threads), []
    size = (one_size(taken) or 32) if batch_size is None else batch_size
    before = {name: by for name, by in (scale or {}).items() if name in read}
    for batch in scaled(Arrays(own, size), before, taken).epoch(0):
        count = len(next(iter(batch.values())))
        feeds = checked(batch, taken)
        with refusing(feeds, getattr(batch, "rows", None)):
            found = session.run(names, feeds)
        for name, a in zip(names, found, strict=True):
            if not a.ndim or len(a) != count:
                raise InputError(
                    f"'{name}' has shape {shape_text(a.shape)} for {counted(count, 'example')}: it "
                    "needs one row for each"
                )
        parts.append(found)
    inputs = {v.name for v in rest.main.inputs}
    kept = {k: a for k, a in arrays.items() if k not in read or k in inputs}
    return {**kept, **{n: np.concatenate(each) for n, each in zip(names, zip(*parts))}}
