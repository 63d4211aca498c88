"""The recording of a record, while `optimize` rewrites a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxgrad.errors import NotProved
from onnxgrad.grad.weights.decision import decide
from onnxgrad.ir.derivations import LITERAL
from onnxgrad.ir.origins import record, results, weights_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, Array
from onnxgrad.jobs.rebasing.inside_steps import Inside
from onnxgrad.jobs.rebasing.outline import initializers, without_weights
from onnxgrad.jobs.rebasing.record import Record, distinct


class Recording:
    """Records what passes compute from the initializers of a program, from the constructor to
    `finish`. `weights` are the initializers that need new values.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._inside = Inside.of(program)
        steps = set[str]() if self._inside is None else self._inside.constants
        formula = set(_formula_constants(program))
        self.derivations = record(program)
        values = [v for v in weights_of(program) if v.name not in steps]
        for v in weights_of(program):
            v.source = LITERAL if v.name in steps else v.source
        traced = {v.name for v in values if v.source is not None and v.source.traced}
        self.weights, self._traced = traced - formula, sorted(traced)
        self._fixed = [v.name for v in values if v.name not in traced and v.use_count]

    def finish(self, *, rounded: bool, halved: bool = False) -> Record:
        """Returns the record of the rewritten program. Raises NotProved if the recorded steps do
        not compute its constants.
        """
        program = self._program
        made, held = results(program), distinct(self.derivations.held)
        outline = without_weights(program, self.weights)
        record = Record(outline, made, held, self._fixed, rounded, "", (), halved=halved)
        if self._inside is not None:
            record = replace(
                record,
                original=self._inside.outline(outline),
                reference=outline,
                sources={v: v for v in self._traced},
            )
        record = Record.of_bytes(record.to_bytes(), "the record")
        known = dict(initializers(program.proto))
        check_values(record, lambda name: program.array(known[name]), program)
        return record


def check_values(record: Record, weight: Callable[[str], Array], program: Program) -> None:
    """Raises NotProved if the recorded steps do not compute the constants of a program."""
    found = {v.name: v for block in program.blocks() for v in block.vars()}
    for name, array in record.constants(weight):
        was = found[name].const
        if was is not None and array.tobytes() != was.tobytes():
            raise NotProved(f"not rebasable: the recorded steps compute another '{name}'")


def _formula_constants(program: Program) -> list[str]:
    """The initializers that are no weights of a network: numbers of formulas, masks, tables. A file
    of weights need not have them. Running statistics count as weights.
    """
    candidates = [
        v
        for v in weights_of(program)
        if v.block is program.main
        and v.dtype in FLOAT_DTYPES
        and v.is_constant
        and not any(b.is_op("BatchNormalization") for b in v.users)
    ]
    return [v.name for v, found in decide(program, candidates).items() if not found.is_weight]
