"""The driver of `rebase`: puts new weights into an optimised model and proves the result against
the original with these weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, collector_paused, proto_in_place, proto_of, read_proto
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.rebasing.constants import replacing
from onnxgrad.jobs.rebasing.outline import describe, digest_of
from onnxgrad.jobs.rebasing.record import Record, read_record, record_path
from onnxgrad.jobs.rebasing.weights import NewWeights, new_weights
from onnxgrad.jobs.surgery.declarations import RebaseOptions
from onnxgrad.wording import option

if TYPE_CHECKING:
    from onnxgrad.verify import Report


@dataclass(frozen=True)
class Rebased(Proved):
    """The optimised model with new weights. `facts`: how many facts about weights were checked that
    rewrites rely on, `constants`: how many constants were computed anew.
    """

    facts: int
    constants: int


def rebase(optimized: ModelLike, weights: Any, options: RebaseOptions, hooks: Hooks) -> Rebased:
    """Returns the optimised model with new weights, proved unless `options.verify` is off, and lets
    the hooks write it. Raises InputError for weights that do not fit, and PredicateFailed, which
    names a rewrite that does not hold for them.
    """
    with hooks.limits(options.timeout, options.max_memory), collector_paused():
        optimized = settled(optimized)
        named = optimized if isinstance(optimized, (str, os.PathLike)) else None
        record = _record(options.record, named)
        writes = hooks.write is not None
        model, folder = _read(optimized, in_place=writes)
        if digest_of(model, record.made) != record.digest:
            raise InputError(
                f"{named or 'the model'}: its record belongs to another optimised model: optimise "
                f"again with {option('--rebasable', 'rebasable=True')}"
            )
        made = copy_of(model) if model is optimized else model
        where = os.fspath(weights) if isinstance(weights, (str, os.PathLike)) else "the weights"
        with (
            replacing(made, folder, apart=writes) as constants,
            new_weights(record, weights, options.map or {}, where) as new,
        ):
            for name, array in record.constants(new):
                constants.set(name, array)
                del array  # before the next is computed
            if new.export is not None:
                describe(made, record.own, new.export)
            program = constants.program()
            hooks.on_stage("prove")
            report = _proof(record, program, new, options) if options.verify else None
            found = Rebased(
                program, report, notes=new.notes, facts=len(record.held),
                constants=len(record.made),
            )  # fmt: skip
            return write_if_proved(found, hooks)


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


def _proof(record: Record, made: Program, weights: NewWeights, options: RebaseOptions) -> Report:
    from onnxgrad.jobs.rebasing.proof import prove  # imports all of `verify`

    return prove(record, made, weights, options)
