"""The record of a model that also changes around the passes: it is joined, edited, opened,
preprocessed, and split.

A change computes nothing from weights. Each constant carries its name through a change, in the
metadata of its tensor. A constant without such a mark is new and stays as it is, such as the
weights of the other model of `join`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnxgrad.errors import NotProved
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, keep, model_nodes
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.rebasing.architecture import listed
from onnxgrad.jobs.rebasing.outline import constants_of, initializers, without_weights
from onnxgrad.jobs.rebasing.record import Record
from onnxgrad.jobs.rebasing.recording import Recording, check_values

_KEY = "onnxgrad.name_before"


class Followed:
    """The constants of one model on their way through its changes. `reference`: the model with the
    changes, but without the passes. Its constants, and those of `given`, have marks.
    """

    def __init__(self, model: ModelLike) -> None:
        self._model = load_own(model)
        self._base = Recording(load_own(model)).finish(rounded=False)
        self._given = dict(initializers(to_proto(self._model)))
        self._names = dict[str, str]()  # in the file, by those before the passes
        self.given = self.reference = self.marked(self._model)

    @staticmethod
    def marked(program: Program) -> Program:
        """Returns a copy whose constants carry their names."""
        proto = copy_of(to_proto(program))
        for name, tensor in constants_of(proto):
            tensor.metadata_props.add(key=_KEY, value=name)
        return program_of(proto, program.folder, None, program.digests)

    def opened(self, before: Program, after: Program, record: Record | None) -> None:
        """Holds the constants by whose elements the sizes of a model were opened. `record`: the one
        of the passes, if they came first. Raises NotProved if weights are among them then.
        """
        left = _reads(after)
        read = [name for name, count in _reads(before).items() if left[name] < count]
        if record is None:
            self._base = self._base.holding(
                {name: self._model.array(self._given[name]) for name in read if name in self._given}
            )
        elif read := [name for name in read if name in record.made]:
            raise NotProved(
                f"not rebasable: open_batch reads elements of {listed(read)}, which depend on "
                "weights; open the sizes before the passes"
            )

    def changed(self, program: Program) -> Program:
        """Returns the model for the passes, which `program` is with marks."""
        before, self._names = _unmarked(program)
        return before

    def through(self, passes: Record, before: Program) -> Record:
        """Returns the record of the changes and of the passes of `before`. Raises NotProved."""
        return self._base.renamed(self._names).followed_by(passes, before)

    def finish(
        self, record: Record, program: Program, prepare: Program | None
    ) -> tuple[Program, Program | None, Record]:
        """Returns the result of the changes after the passes, and its preparation, without their
        marks, and the record. Raises NotProved if the record does not compute their constants.
        """
        made, names = _unmarked(program)
        stated, sources = _unmarked(self.reference)
        weights = set(self._base.weights)
        found = replace(
            record.renamed(names),
            reference=without_weights(stated, {n for n, o in sources.items() if o in weights}),
            sources={n: old for n, old in sources.items() if old in self._base.made},
        )
        self._check(found, made)
        if prepare is not None:
            prepare, names = _unmarked(prepare)
            prepared = record.renamed(names)
            self._check(prepared, prepare)
            outline = without_weights(prepare, prepared.made, described=True)
            found = replace(found, prepare=outline, prepared=prepared.made)
        return made, prepare, found

    def _check(self, record: Record, program: Program) -> None:
        check_values(record, lambda name: self._model.array(self._given[name]), program)


def _unmarked(program: Program) -> tuple[Program, dict[str, str]]:
    """Returns a copy without marks, and the former names of its constants by those of now."""
    proto, names = copy_of(to_proto(program)), dict[str, str]()
    for name, tensor in constants_of(proto):
        names.update((name, e.value) for e in tensor.metadata_props if e.key == _KEY)
        keep(tensor.metadata_props, lambda e: e.key != _KEY)
    return program_of(proto, program.folder, None, program.digests), names


def _reads(program: Program) -> Counter[str]:
    """Returns how often constants are read, by their former names."""
    stripped, names = _unmarked(program)
    nodes = model_nodes(to_proto(stripped))
    return Counter(names[value] for n in nodes for value in n.input if value in names)
