"""The driver of `rebase`: puts new weights into an optimised model and proves the result against
the original with these weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import (
    ModelLike,
    collector_paused,
    proto_in_place,
    proto_of,
    read_proto,
    unread,
)
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.jobs.hooks import Hooks, Proved
from onnxgrad.jobs.rebasing.adapted import alone
from onnxgrad.jobs.rebasing.constants import replacing, set_elements
from onnxgrad.jobs.rebasing.outline import Frame, constants_of, describe
from onnxgrad.jobs.rebasing.record import Record, read_record, record_path
from onnxgrad.jobs.rebasing.weights import NewWeights, new_weights
from onnxgrad.jobs.surgery.declarations import RebaseOptions
from onnxgrad.wording import option

if TYPE_CHECKING:
    from onnxgrad.verify import Report


@frozen
class Rebased(Proved):
    """The optimised model with new weights. `facts`: how many facts about weights were checked that
    rewrites rely on, `constants`: how many constants were computed anew, `prepare`: the part that
    runs once, if the model was split.
    """

    facts: int
    constants: int
    prepare: Program | None = None


def rebase(
    optimized: ModelLike, weights: Any, options: RebaseOptions, hooks: Hooks,
    write: Callable[[Rebased], None] | None = None,
) -> Rebased:  # fmt: skip
    """Returns the optimised model with new weights, proved unless `options.verify` is off, after
    `write` has written it. `weights`: an export, a file or arrays, or an export and adapters.
    Raises InputError for weights that do not fit, and PredicateFailed, which names a rewrite that
    does not hold for them.
    """
    with hooks.limits(options.timeout, options.max_memory), collector_paused():
        optimized = settled(optimized)
        named = optimized if isinstance(optimized, (str, os.PathLike)) else None
        record = _record(options.record, named)
        writes = write is not None
        model, folder = _read(optimized, in_place=writes)
        frame = Frame.of(model, record.made, record.holders)
        if frame.digest() != record.digest:
            raise InputError(
                f"{named or 'the model'}: its record belongs to another optimised model, or the "
                "model was changed since: rebase it as it was written and change the result, or "
                f"optimise again with {option('--rebasable', 'rebasable=True')}"
            )
        made = frame.complete()
        weights = alone(weights)
        where = os.fspath(weights) if isinstance(weights, (str, os.PathLike)) else "the weights"
        with (
            replacing(made, folder, apart=writes, bare=frame.made) as constants,
            new_weights(record, weights, options.map or {}, where) as new,
        ):
            values = record.values(new, new.tensors, new.sources)
            for name, step in record.made.items():
                if step.kind == "weight" and step.what in new.tensors:
                    constants.copy(name, new.tensors[step.what], new.folder)
                else:
                    constants.set(name, *values.blocks(step))
            if new.export is not None:
                describe(made, record.own, new.export)
            found = Rebased(
                constants.program(), None, notes=new.notes, facts=len(record.held),
                constants=len(record.made) + len(record.prepared),
                prepare=_preparation(record, new),
            )  # fmt: skip
            hooks.on_stage("prove")
            if options.verify:
                found = replace(found, report=_proof(record, found, new, options))
            if write is not None and found.ok:
                write(found)
            return found


def _read(model: Any, *, in_place: bool) -> tuple[ModelProto, Path | None]:
    """The model as it was written: its digest proves that it is valid."""
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return (proto_in_place(path) if in_place else read_proto(path)), path.parent
    return (model, None) if isinstance(model, ModelProto) else proto_of(model)


def _record(given: Any, model: str | os.PathLike[str] | None) -> Record:
    if isinstance(given, Record):
        return given
    if isinstance(given, (str, os.PathLike)):
        return read_record(Path(given), os.fspath(given))
    if given is not None:
        raise InputError(
            "rebase: record must be a file, or the record of `optimize(rebasable=True, "
            f"report=True)`, not {type(given).__name__}"
        )
    if model is None:
        raise InputError(
            "a model in memory has no record beside it: pass the record of "
            "`optimize(rebasable=True, report=True)` as record="
        )
    return read_record(record_path(Path(model)), os.fspath(model))


def _preparation(record: Record, weights: NewWeights) -> Program | None:
    """Returns the part that `lift` split off, with new constants."""
    if record.prepare is None:
        return None
    model = copy_of(record.prepare)
    places = dict(constants_of(model))
    for name, array in replace(record, made=record.prepared).constants(weights):
        set_elements(places[name], array)
    if weights.export is not None:
        describe(model, record.own, weights.export)
    return unread(model, None)


def _proof(record: Record, made: Rebased, weights: NewWeights, options: RebaseOptions) -> Report:
    from onnxgrad.jobs.rebasing.proof import prove  # imports all of `verify`

    return prove(record, made.program, made.prepare, weights, options)
