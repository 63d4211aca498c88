"""The driver of `open_batch`: a fixed batch becomes one of any size, proved row by row."""

from __future__ import annotations

from dataclasses import dataclass

from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.jobs.proving import Proved, write_if_proved
from onnxgrad.jobs.surgery_declarations import OpenBatchOptions
from onnxgrad.options import providers_of, several
from onnxgrad.transform.open_batch import Opened, open_rows
from onnxgrad.verify.rows.proof import RowProof


@dataclass(frozen=True)
class OpenedModel(Proved):
    """An opened model, the report of its proof, and what it took."""

    opened: Opened


def open_batch(model: ModelLike, options: OpenBatchOptions, hooks: Hooks) -> OpenedModel:
    """Open the batch, prove every row, and let the hooks write the result. Raises InputError that
    names the node if rows depend on each other or no rule applies.
    """
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        program = load_own(model)
        hooks.on_read(program)
        names = None if options.inputs is None else several(options.inputs, "inputs")
        opened = open_rows(
            program, names, batch=options.batch, symbol=options.symbol, along=options.along
        )
        report = None
        if options.verify:
            hooks.on_stage("prove")
            report = RowProof(
                to_proto(load(model), weights=True), to_proto(opened.program, weights=True),
                opened.rows, providers_of(options.provider), options.dims, options.seed,
                options.feeds, several(options.allow_same, "allow_same"),
            ).report()  # fmt: skip
        remarks = (*opened.warnings, *opened.notes)
        found = OpenedModel(opened.program, report, opened, notes=remarks)
        return write_if_proved(found, hooks)
