"""The record of an optimised model: the original without its weights, how each constant was
computed from them, and the facts about weights that rewrites relied on.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.derivations import Held, Predicate, Step, operands_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.ir.types import Array
from onnxgrad.jobs.rebasing.by_blocks import Source
from onnxgrad.jobs.rebasing.constants import set_elements
from onnxgrad.jobs.rebasing.functions import fact_of, substituted
from onnxgrad.jobs.rebasing.outline import (
    constants_of,
    digest_of,
    has_data,
    holders,
    initializers,
    set_by_optimize,
    weight_holders,
)
from onnxgrad.jobs.rebasing.steps import Decoder, Encoder
from onnxgrad.jobs.rebasing.values import Values
from onnxgrad.version import __version__
from onnxgrad.vocabulary import RECORD
from onnxgrad.wording import counted, option

# what a file begins with; the number changes with the format
_OURS = b"onnxgrad rebase "
_MAGIC = _OURS + b"2\n"
# what remains of data that is worth compressing
_SAVED = 0.5


class PredicateFailed(NotProved):
    """The new weights lack what a rewrite relied on. `missing` has a sentence for each fact."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.missing = [f"{h.rule} at {h.where} needs {h.predicate}" for h in held]
        first = held[0]
        others = dict.fromkeys((h.rule, h.where) for h in held[1:])
        others.pop((first.rule, first.where), None)
        more = f" (and {counted(len(others), 'more rewrite')})" if others else ""
        super().__init__(
            f"the rewrite {first.rule} (pass {first.pass_name}) at {first.where} does not hold for "
            f"the new weights{more}: it needs {first.predicate}; optimise the new model instead; "
            "nothing was written"
        )


@frozen
class Record:
    """`original` has no data for the initializers that are weights. `made` are the steps of the
    optimised model's constants by name, `held` the facts. `fixed` initializers decide sizes and
    branches, so they must stay. `digest` identifies the optimised model; `rounded`: whether
    rewrites computed new floating-point constants; `halved`: whether some computations became
    float16. `own`: the metadata that `optimize` set. `reference`: the original with the changes
    around the passes, without its weights, whose names in the original are `sources`; None if
    there are no changes. `prepare`: the preparation that `lift` split off, with the steps of its
    constants, `prepared`. `holders`: the places of the optimised model's nodes that hold constants.
    """

    original: ModelProto = field(repr=False)
    made: Mapping[str, Step] = field(repr=False)
    held: Sequence[Held] = field(repr=False)
    fixed: Sequence[str]
    rounded: bool
    digest: str
    steps: Sequence[Step] = field(repr=False)
    own: Sequence[str] = ()
    halved: bool = False
    reference: ModelProto | None = field(default=None, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    prepare: ModelProto | None = field(default=None, repr=False)
    prepared: Mapping[str, Step] = field(default_factory=dict, repr=False)
    holders: Sequence[int] = ()

    @cached_property
    def inside(self) -> list[int]:
        """The places of the nodes of the original that may hold weights."""
        return weight_holders(self.original)

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        """Those of the original, and tensors of its Constant nodes, by name."""
        return dict(initializers(self.original, self.inside))

    @cached_property
    def stored(self) -> list[str]:
        """The initializers of the original that have values."""
        return [name for name, t in self.initializers.items() if has_data(t)]

    @cached_property
    def weights(self) -> frozenset[str]:
        """The initializers of the original that need new values."""
        return frozenset(self.initializers).difference(self.stored)

    def constants(self, weight: Callable[[str], Array]) -> Iterator[tuple[str, Array]]:
        """Yields the constants of the optimised model for new weights, by name. Raises
        PredicateFailed before the first if a rewrite does not hold.
        """
        values = self.values(weight)
        for name, step in self.made.items():
            yield name, values.of(step)

    def values(
        self, weight: Callable[[str], Array], copied: Container[str] = (),
        sources: Mapping[str, Source] = MappingProxyType({}),
    ) -> Values:  # fmt: skip
        """Returns the values of `made` for new weights, except for weights that are `copied` as
        they are. `sources`: weights that are read in ranges. Raises PredicateFailed if a rewrite
        does not hold.
        """
        facts = [fact_of(h.predicate) for h in self.held]
        made = [s for s in self.made.values() if s.kind != "weight" or s.what not in copied]
        own = [s for s in facts if s.kind == "own"]
        values = Values([*self.steps, *own], [*facts, *made], weight, sources)
        if failed := values.failed(zip(self.held, facts, strict=True)):
            raise PredicateFailed(failed)
        return values

    def identifying(self, model: ModelProto) -> Record:
        """Returns the record with the digest and the metadata of the optimised model."""
        own = set_by_optimize(model, self.original)
        return replace(self, digest=digest_of(model, self.made), own=own, holders=holders(model))

    def renamed(self, names: Mapping[str, str]) -> Record:
        """Returns the record of the model in which constants have other names. `names`: those of
        this model by the new ones.
        """
        return replace(self, made={n: self.made[o] for n, o in names.items() if o in self.made})

    def holding(self, values: Mapping[str, Array]) -> Record:
        """Returns the record in which these initializers decide sizes, so they must stay."""
        fixed = dict.fromkeys((*self.fixed, *values))
        found = replace(self, original=copy_of(self.original), fixed=list(fixed))
        for name, array in values.items():
            set_elements(found.initializers[name], array)
        return found

    def followed_by(self, later: Record, between: Program) -> Record:
        """Returns the record of two changes, with `later` the one of the change of `between`, the
        result of this one. Raises NotProved if sizes or branches of `between` are computed from
        weights.
        """
        for name in later.fixed:
            if name in self.made:
                raise NotProved(f"not rebasable: '{name}' decides sizes, and depends on weights")
        known = dict(constants_of(to_proto(between)))
        steps: dict[Step, Step] = {}
        varying = set[Step]()
        for s in later.steps:
            if s.kind == "weight":
                steps[s] = self.made.get(s.what) or Step("literal", between.array(known[s.what]))
            else:
                operands, keywords = (substituted(v, steps) for v in (s.operands, s.keywords))
                steps[s] = Step(s.kind, s.what, operands, keywords)
            if (
                s.what in self.made
                if s.kind == "weight"
                else not varying.isdisjoint(operands_of(s))
            ):
                varying.add(s)
        made = {name: steps[s] for name, s in later.made.items() if s in varying}
        held = [
            replace(h, predicate=Predicate(
                steps[h.predicate.step], substituted(h.predicate.value, steps), h.predicate.same
            ))
            for h in later.held
            if not varying.isdisjoint(_steps_in(h.predicate))
        ]  # fmt: skip
        joined = replace(
            self, made=made, held=distinct([*self.held, *held]),
            rounded=self.rounded or later.rounded, halved=self.halved or later.halved,
        )  # fmt: skip
        return Record.of_bytes(joined.to_bytes(), "the record")

    def to_bytes(self) -> bytes:
        """Returns the file's content: the sizes of JSON, the JSON, and the models."""
        encoder, models = Encoder(), list[bytes]()
        made, prepared = (
            {name: encoder.number(step) for name, step in steps.items()}
            for steps in (self.made, self.prepared)
        )
        held: list[Any] = []
        for (pass_name, rule, where), of_one in groupby(
            self.held, lambda h: (h.pass_name, h.rule, h.where)
        ):
            facts = [(h.predicate, encoder.number(h.predicate.step)) for h in of_one]
            listed = [[number, p.same, encoder.value(p.value)] for p, number in facts]
            held.append([pass_name, rule, where, listed])
        data = {
            "onnxgrad": __version__,
            "digest": self.digest,
            "rounded": self.rounded,
            "halved": self.halved,
            "fixed": list(self.fixed),
            "own": list(self.own),
            "original": _added(self.original, models),
            "reference": _added(self.reference, models),
            "sources": self.sources,
            "prepare": _added(self.prepare, models),
            "prepared": prepared,
            "steps": encoder.entries,
            "constants": encoder.constants,
            "made": made,
            "held": held,
            "holders": list(self.holders),
            "inside": self.inside,
            "stored": self.stored,
        }
        line = json.dumps(data, separators=(",", ":")).encode()
        packed = _packed(line)
        return b"".join((_MAGIC, b"%d %d\n" % (len(packed), len(line)), packed, *models))

    def save_beside(self, optimized: Path) -> Path:
        """Writes the record beside its model. Returns the path. Raises InputError."""
        path = record_path(optimized)
        try:
            write_whole(path, self.to_bytes())
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
        return path

    @staticmethod
    def of_bytes(data: bytes, where: str) -> Record:
        """Returns the record of a file. Raises InputError if it is damaged, or another file."""
        if not data.startswith(_MAGIC):
            if data.startswith(_OURS):
                raise InputError(
                    f"{where}: a record of another version of onnxgrad: optimise again with "
                    f"{option('--rebasable', 'rebasable=True')}"
                )
            raise InputError(f"{where}: not a record of `onnxgrad optimize --rebasable`")
        try:
            begin = data.index(b"\n", len(_MAGIC)) + 1
            length, size = map(int, data[len(_MAGIC) : begin].split())
            found = json.loads(zlib.decompress(data[begin : begin + length], bufsize=size))
            models = memoryview(data)[begin + length :]
            decoder = Decoder(found["steps"], found["constants"])
            steps = decoder.steps
            held = [
                Held(p, rule, at, Predicate(steps[number], decoder.value(value), same))
                for p, rule, at, listed in found["held"]
                for number, same, value in listed
            ]
            made, prepared = (
                {name: steps[number] for name, number in found[key].items()}
                for key in ("made", "prepared")
            )
            original = _model(models, *found["original"])
            reference, prepare = (
                None if found[key] is None else _model(models, *found[key])
                for key in ("reference", "prepare")
            )
            record = Record(
                original, made, held, found["fixed"], found["rounded"], found["digest"], steps,
                found["own"], found["halved"], reference, found["sources"], prepare, prepared,
                found["holders"],
            )  # fmt: skip
            # the file has these, so that no node is looked at
            vars(record).update({key: found[key] for key in ("inside", "stored")})
            return record
        except (zlib.error, ValueError, KeyError, IndexError, TypeError, DecodeError) as error:
            raise InputError(f"{where}: a damaged record: {error}") from None


def _added(model: ModelProto | None, models: list[bytes]) -> list[int] | None:
    """Adds a model to others. Returns where it begins and ends among them, and its size."""
    if model is None:
        return None
    begin, data = sum(map(len, models)), model.SerializeToString()
    models.append(_packed(data))
    return [begin, begin + len(models[-1]), len(data)]


def _packed(data: bytes) -> bytes:
    """Compresses data, unless little is gained: numbers take as long as a thousand nodes then."""
    found = zlib.compress(data, 1)
    return found if len(found) < _SAVED * len(data) else zlib.compress(data, 0)


def _model(models: memoryview, begin: int, end: int, size: int) -> ModelProto:
    data = zlib.decompress(models[begin:end], bufsize=size)
    model: ModelProto = ModelProto.FromString(data)
    return model


def _steps_in(p: Predicate) -> list[Step]:
    return [p.step, p.value] if isinstance(p.value, Step) else [p.step]


def distinct(held: Sequence[Held]) -> list[Held]:
    """Each fact once, with the first rewrite that relied on it."""
    found: dict[Any, Held] = {}
    encoder = Encoder()
    for h in held:
        p = h.predicate
        key = (encoder.number(p.step), p.same, json.dumps(encoder.value(p.value)))
        if not (isinstance(p.value, Step) and encoder.number(p.value) == key[0]):
            found.setdefault(key, h)
    return list(found.values())


def record_path(optimized: Path) -> Path:
    """Returns the path of the record, beside the optimised model."""
    return optimized.with_name(optimized.name + RECORD)


def read_record(path: Path, model: str) -> Record:
    """Returns the record beside a model. Raises InputError."""
    try:
        data = path.read_bytes()
    except OSError:
        flag = option("--rebasable", "rebasable=True")
        raise InputError(
            f"{model}: has no record {path.name} beside it: write both with `optimize` and {flag}"
        ) from None
    return Record.of_bytes(data, str(path))
