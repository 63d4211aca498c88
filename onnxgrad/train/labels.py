"""Labels of a batch in the type and shape that the loss reads.

Data sets store labels as they come: in bytes, as booleans, without the last axis of a model with
one output. Inputs of the model are not touched: an image of integers has a scale, a label has none.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.types import Array, Shape
from onnxgrad.train.data import Rows
from onnxgrad.train.losses.place import fits, is_float
from onnxgrad.train.losses.sums import summed
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep
from onnxgrad.wording import option, shape_text


def read_by_model(step: TrainingStep) -> set[str]:
    """Returns the values on which an output other than the loss depends; all inputs if the loss is
    the only output.
    """
    block = step.evaluation.main
    of_loss = {step.manifest.loss, *summed(step.manifest.sums)}
    needed = {v for v in block.outputs if v.name not in of_loss} or set(block.outputs)
    block.schedule()
    for b in reversed(block.bindings):
        if not needed.isdisjoint(v for v in b.outputs if v is not None):
            needed.update(b.reads())
    return {v.name for v in needed}


def weighs_examples(name: str, objective: str) -> bool:
    """Whether an input holds the weights of examples in a loss with this text."""
    return re.search(rf"sample_weight={re.escape(name)}[,}}]", objective) is not None


def positive_weight(name: str, objective: str) -> str:
    """Returns pos_weight of the labels in a loss with this text; empty if there is none."""
    for options in re.findall(r"\bbce_with_logits\{([^{}]*)\}", objective):
        target = re.search(r"\btarget=([^,]+)", options)
        found = re.search(r"\bpos_weight=(\[.*\]|[^,]+)", options)
        if found and name == (target[1] if target else "labels"):
            return found[1]
    return ""


def labels_of(step: TrainingStep) -> list[Fed]:
    """Returns the inputs of a batch that are labels: those with classes, and those that only the
    loss reads. Weights of examples are among them.
    """
    read = read_by_model(step)
    batch = [fed for fed in step.manifest.of_role("batch") if fed.of is None]
    return [fed for fed in batch if fed.classes is not None or fed.name not in read]


class Labels:
    """Brings the labels of batches into the form that a step reads, and warns once about each
    change that is not obvious. quiet: without warnings.

    targets: the inputs with labels, without the weights of examples. outputs: the shapes of the
    model's floating-point outputs. objective: the text of the loss.
    """

    def __init__(self, step: TrainingStep, *, quiet: bool = False) -> None:
        of_loss = {step.manifest.loss, *summed(step.manifest.sums)}
        self._inputs = set(step.manifest.batch)
        self.objective = step.manifest.objective
        self._feds = {fed.name: fed for fed in labels_of(step)}
        self.targets = [
            f for f in self._feds.values() if not weighs_examples(f.name, self.objective)
        ]
        outputs = step.evaluation.main.outputs
        floats = [v for v in outputs if is_float(v) and v.name not in of_loss]
        self.outputs = {v.name: v.shape for v in floats if v.shape != ()}
        self._quiet = quiet
        self._noted: set[tuple[str, str]] = set()

    def fitted(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a batch in which integers and booleans have become the floats of a loss, and
        labels have an axis of size 1 if the loss reads them with one, or lack the last axis if the
        loss reads them without. Raises InputError if the labels belong to scores along another
        axis. Labels that do not fit otherwise are returned unchanged.
        """
        self._check_name(batch)
        changed = {}
        for name, fed in self._feds.items():
            if name in batch:
                array = np.asarray(batch[name])
                found = self._cast(self._shaped(array, fed), fed)
                if found is not array:
                    changed[name] = found
        if not changed:
            return batch
        rows = getattr(batch, "rows", None)
        return {**batch, **changed} if rows is None else Rows({**batch, **changed}, rows)

    def look_for_classes(self, data: Any) -> None:
        """Warns if all labels of arrays by name are of one class of several."""
        for fed in self.targets if isinstance(data, Mapping) else ():
            if fed.name not in data or (fed.classes or 0) < 2:
                continue
            labels = np.asarray(data[fed.name])
            if labels.dtype.kind not in "biu":  # which the step refuses
                continue
            counted = labels if fed.ignored is None else labels[labels != fed.ignored]
            only = counted.reshape(-1)[0] if counted.size > 1 else -1
            if 0 <= only < (fed.classes or 0) and (counted == only).all():
                words = f"all labels '{fed.name}' of the data are {only}"
                self._note(f"{words}, one of {fed.classes} classes", (fed.name, "classes"))

    def _cast(self, array: Array, fed: Fed) -> Array:
        if array.dtype.kind not in "biu" or "float" not in fed.dtype:
            return array
        wanted = fed.shape
        if wanted is None or _fits(array.shape, wanted):
            words = f"'{fed.name}' of the data is {array.dtype}, and is cast to {fed.dtype}"
            self._note(words, (fed.name, "dtype"))
        elif len(wanted) > 1 and _fits(array.shape, wanted[:-1]):
            raise InputError(
                f"'{fed.name}' of the batch has shape {shape_text(array.shape)}, but the step "
                f"requires {shape_text(wanted)}: indices of classes need the loss "
                + option("cross_entropy", "train.CrossEntropy()")
            )
        return array.astype(fed.dtype)

    def _check_name(self, batch: Mapping[str, Any]) -> None:
        """Raises InputError if the labels have another name in the data than in the loss."""
        lacking = [fed.name for fed in self.targets if fed.name not in batch]
        others = [name for name in batch if name not in self._inputs]
        if len(lacking) == len(others) == 1:
            raise InputError(
                f"the batch lacks '{lacking[0]}', the labels of the loss, and has '{others[0]}', "
                f"which nothing reads: rename it, or set the option target={others[0]} of the loss"
            )

    def _shaped(self, array: Array, fed: Fed) -> Array:
        wanted = fed.shape
        if wanted is None or array.ndim == len(wanted):
            self._check_axis(array, fed)
            return array
        single = [i for i, d in enumerate(wanted) if i and d == 1]
        if array.ndim + len(single) == len(wanted):
            found: Array = np.expand_dims(array, tuple(single))
        elif array.ndim == len(wanted) + 1 and array.ndim > 1 and array.shape[-1] == 1:
            found = array[..., 0]
        else:
            return array
        if not _fits(found.shape, wanted):
            return array
        self._note(
            f"'{fed.name}' of the data is of shape {_listed(array.shape)}, and is read as "
            f"{_listed(wanted)}",
            (fed.name, "shape"),
        )
        return found

    def _check_axis(self, array: Array, fed: Fed) -> None:
        """Raises InputError for labels of classes that lie along the last axis of the scores, if
        the loss reads them along the axis 1.
        """
        wanted = fed.shape
        if fed.ignored is None or wanted is None or _fits(array.shape, wanted):
            return
        for scores in filter(None, self.outputs.values()):
            along_1 = len(scores) > 2 and _alike(wanted, (scores[0], *scores[2:]))
            if along_1 and _fits(array.shape, scores[:-1]):
                raise InputError(
                    f"'{fed.name}' of the batch has shape {shape_text(array.shape)}, but the step "
                    f"requires {shape_text(wanted)}: if the classes are the last axis of the "
                    f"scores {_listed(scores)}, pass "
                    + option("--loss 'cross_entropy{axis=-1}'", "train.CrossEntropy(axis=-1)")
                )

    def _note(self, words: str, change: tuple[str, str]) -> None:
        """Warns about a change of labels, the first time that it occurs."""
        if change not in self._noted and not self._quiet:
            self._noted.add(change)
            warnings.warn(words, RunWarning, stacklevel=2)


def _fits(sizes: Sequence[int], wanted: Shape) -> bool:
    return fits(tuple(sizes), wanted)


def _alike(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x == y for x, y in zip(a, b))


def _listed(shape: Sequence[Any]) -> str:
    """Returns a shape without the number of examples, which differs between batches."""
    return shape_text(["N", *shape[1:]])
