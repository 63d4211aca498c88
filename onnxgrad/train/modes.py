"""The modes of BatchNormalization, Dropout and products in a training step, set by the options or
the file.

In the training graph, running statistics are states and Dropout has a seed; the evaluation graph is
in inference mode. The original file, into which trained values are written, is not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from onnxgrad.errors import InputError
from onnxgrad.grad.autocast import PRODUCTS, Narrow, autocast
from onnxgrad.grad.inlining import open_call
from onnxgrad.grad.opset.raising import OPSET, raise_opset
from onnxgrad.grad.registry import Form
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.train import batch_normalization, dropout
from onnxgrad.train.batch_normalization import Running


@dataclass(frozen=True)
class Applied:
    """Inputs that the modes add to a step (states and the seed), and notes for the user."""

    statistics: Sequence[Running] = ()
    seed: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> set[str]:
        """The inputs that are not part of a batch."""
        return {s.name for s in self.statistics} | ({self.seed} if self.seed else set())


@dataclass(frozen=True)
class Modes:
    """The modes of BatchNormalization and Dropout in a training step.

    batch_norm: "frozen" (normalise by running statistics, which do not change), "train" (normalise
    by the batch and update the running statistics), None (as each node in the file). dropout:
    "off", "train" with the ratios of the file, a ratio for all, None (as in the file). autocast:
    the dtype of products, None for that of the file. form: the formulas of the gradient. ste: pass
    it straight through quantisations.
    """

    batch_norm: Literal["frozen", "train"] | None = None
    dropout: Literal["off", "train"] | float | None = None
    autocast: Narrow | None = None
    form: Form = "fast"
    ste: bool = False

    def prepare(self, program: Program) -> Program:
        """Returns the program at an opset that has the training forms, with BatchNormalization and
        Dropout moved out of functions.

        Raises InputError for nodes in training mode inside of If, Loop and Scan.
        """
        changing = [
            b
            for block in (program.main, *program.functions.values())
            for b in block.walk()
            if self._trains(b) or _in_training(b)
        ]
        if changing and program.opset < OPSET:
            program, _ = raise_opset(program)
        self._open_calls(program)
        hidden = [b for b in program.main.walk() if b.block is not program.main]
        for b in [b for b in hidden if self._trains(b)]:
            raise InputError(
                f"'{b}' is inside of {b.block.owner.op if b.block.owner else 'a function'}, where "
                'it cannot train: choose batch_norm="frozen" and dropout="off"'
            )
        return program

    def infer(self, program: Program) -> Program:
        """Switches everything to inference for evaluation; returns the same program."""
        _each(program, "BatchNormalization", batch_normalization.freeze)
        _each(program, "Dropout", dropout.turn_off)
        return program

    def apply(self, program: Program) -> Applied:
        """Switches a prepared program to training mode. Raises InputError if a node cannot
        train.
        """
        block = program.main
        block.schedule()
        norms = [b for b in block.bindings if b.is_op("BatchNormalization") and self._trains(b)]
        drops = [b for b in block.bindings if b.is_op("Dropout") and self._trains(b)]
        if self.batch_norm == "frozen":
            _each(program, "BatchNormalization", batch_normalization.freeze)
        if self.dropout == "off":
            _each(program, "Dropout", dropout.turn_off)
        left = [b for b in block.walk() if b.is_op("Dropout") and dropout.decided_by_caller(b)]
        unseeded = len(set(left).difference(drops))
        narrow = [autocast(program, self.autocast)] if self.autocast else []
        statistics = batch_normalization.train(program, norms) if norms else []
        ratio = self.dropout if isinstance(self.dropout, (int, float)) else None
        seed = dropout.turn_on(block, drops, ratio).name if drops else None
        notes = (*narrow, *self._notes(norms, drops, unseeded), *_note_of_draws(program))
        return Applied(statistics, seed, notes)

    def _notes(
        self, norms: Sequence[Binding], drops: Sequence[Binding], unseeded: int
    ) -> tuple[str, ...]:
        found = [
            f"{len(trained)} {trained[0].op}{'s' * (len(trained) > 1)} in training"
            for trained in (norms, drops)
            if trained
        ]
        if self.batch_norm == "train" and not norms:
            found.append(
                "there is no BatchNormalization to train: the exporter folded them into weights "
                "(torch.onnx.export with optimize=False, or in training mode, does not), or the "
                "model never had one"
            )
        if self.dropout not in (None, "off") and not drops:
            found.append(
                "there is no Dropout to turn on: files exported for inference have none left; "
                "export the model in training mode"
            )
        if unseeded:
            found.append(
                f"{unseeded} Dropout{'s' * (unseeded > 1)} drop{'s' * (unseeded == 1)} when an "
                "input of the model says so, by draws of the runtime that no seed repeats: choose "
                'dropout="train" or "off"'
            )
        return tuple(found)

    def _trains(self, b: Binding) -> bool:
        if b.is_op("BatchNormalization"):
            return self.batch_norm == "train" or (
                self.batch_norm is None and batch_normalization.in_training(b)
            )
        if not b.is_op("Dropout") or self.dropout == "off":
            return False
        return self.dropout is not None or dropout.in_training(b)

    def _changes(self, b: Binding) -> bool:
        product = self.autocast is not None and b.op in PRODUCTS
        return product or self._trains(b) or _in_training(b)

    def _open_calls(self, program: Program) -> None:
        """Inlines calls of functions that contain nodes in training mode, or products to cast."""
        while True:
            with_modes = {
                key
                for key, body in program.functions.items()
                if any(map(self._changes, body.walk()))
            }
            _add_callers(program, with_modes)
            calls = [b for b in program.main.walk() if called(b) in with_modes]
            if not calls:
                return
            for b in calls:
                open_call(b)


def _note_of_draws(program: Program) -> tuple[str, ...]:
    """Returns a note about random numbers that the model draws in inference as well."""
    each = (b for block in program.blocks() for b in block.bindings)
    count = sum(draws(b) and b.op != "Dropout" and b.is_read for b in each)
    if not count:
        return ()
    return (
        f"{count} node{'s' * (count > 1)} of the model draw{'s' * (count == 1)} random numbers, in "
        "evaluation and in the trained model, too: PyTorch's exporter writes Dropout1d, Dropout2d, "
        "Dropout3d, AlphaDropout and RReLU as draws, and an export of net.eval() has none",
    )


def _each(program: Program, operator: str, change: Callable[[Binding], None]) -> None:
    for block in program.blocks():
        for b in [b for b in block.bindings if b.is_op(operator)]:
            change(b)


def _add_callers(program: Program, found: set[FunctionKey]) -> None:
    """Adds the functions that call one of these, directly or indirectly."""
    size = -1
    while size != len(found):
        size = len(found)
        found |= {
            key
            for key, body in program.functions.items()
            if any(called(b) in found for b in body.walk())
        }


def _in_training(b: Binding) -> bool:
    if b.is_op("BatchNormalization"):
        return batch_normalization.in_training(b)
    return b.is_op("Dropout") and dropout.in_training(b)
