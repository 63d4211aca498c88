"""The record of an optimised model: the original without its weights, how each constant was
computed from them, and the facts about weights that rewrites relied on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, NotProved
from onnxgrad.grad.weights.decision import decide
from onnxgrad.ir.derivations import Held, Predicate, Step
from onnxgrad.ir.origins import record, results, weight_in, weights_of
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_fields, copy_of, elements, every_graph, model_nodes
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.ir.types import FLOAT_DTYPES, Array
from onnxgrad.jobs.rebasing.steps import Encoder, Values, decoded, filled
from onnxgrad.version import __version__
from onnxgrad.vocabulary import RECORD
from onnxgrad.wording import option

_FORMAT = 1
# constants of so many bytes may be stored in another file
_LARGE = 1 << 10
# describe an export, beside its entries of metadata; passes keep them
_ABOUT = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
# what a file begins with
_MAGIC = b"onnxgrad rebase 1\n"


class PredicateFailed(NotProved):
    """The new weights lack what a rewrite relied on. `missing` has a sentence for each fact."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.missing = [f"{h.rule} at {h.where} needs {h.predicate}" for h in held]
        first = held[0]
        others = dict.fromkeys((h.rule, h.where) for h in held[1:])
        others.pop((first.rule, first.where), None)
        more = f" (and {len(others)} more rewrites)" if others else ""
        super().__init__(
            f"the rewrite {first.rule} (pass {first.pass_name}) at {first.where} does not hold for "
            f"the new weights{more}: it needs {first.predicate}; optimise the new model instead; "
            "nothing was written"
        )


@dataclass(frozen=True)
class Record:
    """`original` has no data for the initializers that are weights. `made` are the steps of the
    optimised model's constants by name, `held` the facts. `fixed` initializers decide sizes and
    branches, so they must stay. `digest` identifies the optimised model; `rounded`: whether
    rewrites computed new floating-point constants; `halved`: whether some computations became
    float16. `own`: the metadata that `optimize` set.
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

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        """Those of the original, and tensors of its Constant nodes, by name."""
        return dict(initializers(self.original))

    @cached_property
    def weights(self) -> list[str]:
        """The initializers of the original that need new values."""
        return [name for name, t in initializers(self.original) if not _has_data(t)]

    def constants(self, weight: Callable[[str], Array]) -> Iterator[tuple[str, Array]]:
        """Yields the constants of the optimised model for new weights, by name. Raises
        PredicateFailed before the first if a rewrite does not hold.
        """
        predicates = [h.predicate for h in self.held]
        wanted = [p.step for p in predicates]
        wanted += [p.value for p in predicates if isinstance(p.value, Step)]
        values = Values(self.steps, [*wanted, *self.made.values()], weight)
        failed = [h for h in self.held if not _holds(h.predicate, values)]
        if failed:
            raise PredicateFailed(failed)
        for name, step in self.made.items():
            yield name, values.of(step)

    def identifying(self, model: ModelProto) -> Record:
        """Returns the record with the digest and the metadata of the optimised model."""
        own = _set_by_optimize(model, self.original)
        return replace(self, digest=digest_of(model, self.made), own=own)

    def followed_by(self, later: Record, between: ModelProto) -> Record:
        """Returns the record of two changes, with `later` the one of the change of `between`, the
        result of this one. Raises NotProved if sizes or branches of `between` are computed from
        weights.
        """
        for name in later.fixed:
            if name in self.made:
                raise NotProved(f"not rebasable: '{name}' decides sizes, and depends on weights")
        known = dict(constants_of(between))
        steps: dict[Step, Step] = {}
        for s in later.steps:
            if s.kind == "weight":
                steps[s] = self.made.get(s.what) or Step("literal", elements(known[s.what]))
            else:
                operands, keywords = (filled(v, steps) for v in (s.operands, s.keywords))
                steps[s] = Step(s.kind, s.what, operands, keywords)
        made = {name: steps[s] for name, s in later.made.items()}
        held = [
            replace(h, predicate=Predicate(
                steps[h.predicate.step], filled(h.predicate.value, steps), h.predicate.same
            ))
            for h in later.held
        ]  # fmt: skip
        joined = replace(
            self, made=made, held=_distinct([*self.held, *held]),
            rounded=self.rounded or later.rounded, halved=self.halved or later.halved,
        )  # fmt: skip
        return Record.of_bytes(joined.to_bytes(), "the record")

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        encoder = Encoder()
        made = {name: encoder.number(step) for name, step in self.made.items()}
        held = [
            [h.pass_name, h.rule, h.where, encoder.number(h.predicate.step), h.predicate.same,
             encoder.value(h.predicate.value)]
            for h in self.held
        ]  # fmt: skip
        data = {
            "format": _FORMAT,
            "onnxgrad": __version__,
            "digest": self.digest,
            "rounded": self.rounded,
            "halved": self.halved,
            "fixed": list(self.fixed),
            "own": list(self.own),
            "original": base64.b64encode(self.original.SerializeToString()).decode(),
            "steps": encoder.entries,
            "made": made,
            "held": held,
        }
        return _MAGIC + zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 1)

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
            raise InputError(f"{where}: not a record of `onnxgrad optimize --rebasable`")
        try:
            found = json.loads(zlib.decompress(data[len(_MAGIC) :]))
            steps = decoded([*found["steps"], *_values(found["held"])])
            values = steps[len(found["steps"]) :]
            held = [
                Held(p, rule, at, Predicate(steps[number], value.what, same))
                for (p, rule, at, number, same, _), value in zip(found["held"], values, strict=True)
            ]
            original = ModelProto.FromString(base64.b64decode(found["original"]))
            made = {name: steps[number] for name, number in found["made"].items()}
            return Record(
                original, made, held, found["fixed"], found["rounded"], found["digest"],
                steps[: len(found["steps"])], found["own"], found["halved"],
            )  # fmt: skip
        except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
            raise InputError(f"{where}: a damaged record: {error}") from None


def _values(held: Sequence[Any]) -> Iterator[Any]:
    """Entries of steps that hold the values of predicates."""
    for *_, value in held:
        yield ["literal", value, [], {"dict": {}}]


def _holds(p: Predicate, values: Values) -> bool:
    found = values.of(p.step)
    if not p.same:
        return bool(found) is bool(p.value)
    expected = values.of(p.value) if isinstance(p.value, Step) else np.asarray(p.value)
    alike = found.dtype == expected.dtype and found.shape == expected.shape
    return bool(alike and found.tobytes() == expected.tobytes())


def digest_of(model: ModelProto, made: Collection[str]) -> str:
    """Identifies an optimised model, whatever the values of the constants `made` from weights, its
    metadata, and wherever large constants are stored.
    """
    bare = ModelProto()
    copy_fields(model, bare, skip=("graph", "metadata_props", *_ABOUT))
    copy_fields(model.graph, bare.graph, skip=("initializer",))
    for tensor in model.graph.initializer:
        if tensor.name in made or (raw_bytes(tensor) or 0) >= _LARGE:
            bare.graph.initializer.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
            )
        else:
            bare.graph.initializer.add().CopyFrom(tensor)
    for name, tensor in constants_of(bare):
        if name in made or (raw_bytes(tensor) or 0) >= _LARGE:
            clear(tensor)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _set_by_optimize(model: ModelProto, original: ModelProto) -> list[str]:
    """The fields and metadata of an optimised model that differ from those of its original."""
    fields = [name for name in _ABOUT if getattr(model, name) != getattr(original, name)]
    before = {entry.key: entry.value for entry in original.metadata_props}
    return fields + [e.key for e in model.metadata_props if before.get(e.key) != e.value]


def describe(made: ModelProto, record: Record, new: ModelProto) -> None:
    """Gives an optimised model the metadata of the new export, except for what `optimize` set."""
    for name in _ABOUT:
        if name not in record.own:
            made.ClearField(name)
            if new.HasField(name):
                setattr(made, name, getattr(new, name))
    own = [copy_of(e) for e in made.metadata_props if e.key in record.own]
    made.ClearField("metadata_props")
    made.metadata_props.extend(e for e in new.metadata_props if e.key not in record.own)
    made.metadata_props.extend(own)


class Recording:
    """Records what passes compute from the initializers of a program, from the constructor to
    `finish`. `weights` are the initializers that need new values.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        formula = set(_formula_constants(program))
        self.derivations = record(program)
        values = weights_of(program)
        traced = {v.name for v in values if v.source is not None and v.source.traced}
        self.weights = traced - formula
        self._fixed = [v.name for v in values if v.name not in traced and v.use_count]

    def finish(self, *, rounded: bool, halved: bool = False) -> Record:
        """Returns the record of the rewritten program. Raises NotProved if the recorded steps do
        not compute its constants.
        """
        program = self._program
        made, held = results(program), _distinct(self.derivations.held)
        outline = _without_weights(program, self.weights)
        record = Record(outline, made, held, self._fixed, rounded, "", (), halved=halved)
        record = Record.of_bytes(record.to_bytes(), "the record")
        known = dict(initializers(program.proto))
        found = {v.name: v for block in program.blocks() for v in block.vars()}
        for name, array in record.constants(lambda n: program.array(known[n])):
            was = found[name].const
            if was is not None and array.tobytes() != was.tobytes():
                raise NotProved(f"not rebasable: the recorded steps compute another '{name}'")
        return record


def _distinct(held: Sequence[Held]) -> list[Held]:
    """Each fact once, with the first rewrite that relied on it."""
    found: dict[Any, Held] = {}
    encoder = Encoder()
    for h in held:
        p = h.predicate
        key = (encoder.number(p.step), p.same, json.dumps(encoder.value(p.value)))
        if not (isinstance(p.value, Step) and encoder.number(p.value) == key[0]):
            found.setdefault(key, h)
    return list(found.values())


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


def _without_weights(program: Program, weights: Collection[str]) -> ModelProto:
    """The model that was read, without metadata of nodes and data of weights. Raises NotProved if
    two initializers have one name.
    """
    made = copy_of(program.proto)
    names: set[str] = set()
    for node in model_nodes(made):
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for name, tensor in initializers(made):
        if name in names:
            raise NotProved(f"not rebasable: two initializers are called '{name}'")
        names.add(name)
        if name in weights:
            clear(tensor)
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(internalize(tensor, program.folder))
    return made


_DATA = (
    "raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data",
    "string_data", "external_data", "data_location",
)  # fmt: skip


def clear(tensor: TensorProto) -> None:
    """Removes the data of a tensor; name, dtype and shape stay."""
    for name in _DATA:
        tensor.ClearField(name)


def _has_data(tensor: TensorProto) -> bool:
    return any(entry.name in _DATA for entry, _ in tensor.ListFields()) or 0 in tensor.dims


def constants_of(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """The values of Constant nodes, and the initializers of all graphs, by name."""
    for node in model_nodes(model):
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
    yield from ((t.name, t) for graph in every_graph(model.graph) for t in graph.initializer)


def initializers(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """The initializers of all graphs, and the Constant nodes in graphs that may hold weights, by
    name.
    """
    for graph in every_graph(model.graph):
        yield from ((t.name, t) for t in graph.initializer)
        for node in graph.node:
            tensor = weight_in(node)
            if tensor is not None:
                yield node.output[0], tensor


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
