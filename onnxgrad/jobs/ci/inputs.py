"""The input model of a result as the lock records it, and what changed since: weights, small
constants, nodes, opset, producer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto
from onnx.helper import get_attribute_value

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import read_proto
from onnxgrad.ir.protobufs import model_nodes, operator
from onnxgrad.jobs.ci.weights import (
    Weight,
    array_of,
    lines_of,
    named,
    weight_of,
    weights_of,
)
from onnxgrad.jobs.requirements import BASELINE, MAY_CHANGE, WITHOUT_BASELINE, Facts, Held, bound_of
from onnxgrad.name_lists import names_among
from onnxgrad.results import Plain
from onnxgrad.verify import Report
from onnxgrad.wording import counted, first_of

_MOST_ELEMENTS = 1 << 26  # of weights that are compared element by element
_DIGEST = 6
_SHORT = 80  # characters of attributes that the lock has with their values
_TENSORS = (AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR)
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_VALUES = ("value_float", "value_floats", "value_int", "value_ints")


@frozen
class Change(Plain):
    """`what` (`bytes`, `operators.MatMul`, `inputs.x`) changed from `before` to `after`, each None
    if missing.
    """

    what: str
    before: Any
    after: Any


@frozen
class Input:
    """`producer`: name and version. `graph`: the digest of the connections between nodes.
    `operators`: how often each operator occurs, with a digest of its attributes, and their values
    if these are short. `weights` by name.
    `infinite`: outputs with NaN or infinite values on the inputs of the proof. `inputs`, `outputs`:
    their types.
    """

    producer: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)
    graph: str = ""
    operators: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    infinite: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of the lock."""
        return {
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "producer": self.producer,
            "opset": dict(self.opset),
            "graph": self.graph,
            "operators": dict(sorted(self.operators.items())),
            "infinite": sorted(self.infinite),
            "weights": lines_of(self.weights),
        }

    def proved_by(self, report: Report | None) -> Input:
        """Returns the record with the outputs that the proof found infinite."""
        return self if report is None else replace(self, infinite=tuple(sorted(report.infinite)))


def input_of(model: ModelProto, folder: Path | None, facts: Facts | None = None) -> Input:
    """Returns the record of a model with these facts. Raises InputError if external data cannot be
    read.
    """
    attributes: dict[str, list[Sequence[AttributeProto]]] = {}
    for node in model_nodes(model):
        attributes.setdefault(operator(node), []).append(_attributes(node))
    weights = weights_of(model, folder)
    return Input(
        " ".join(filter(None, (model.producer_name, model.producer_version))),
        {o.domain or "ai.onnx": o.version for o in model.opset_import},
        _connections(model),
        {name: _line(found) for name, found in attributes.items()},
        {name: Weight.of(line) for name, line in lines_of(weights).items()},
        inputs={} if facts is None else facts.inputs,
        outputs={} if facts is None else facts.outputs,
    )


def _attributes(node: NodeProto) -> Sequence[AttributeProto]:
    """Returns the attributes of a node by name, without weights and nested graphs."""
    others = (
        a
        for a in node.attribute
        if a.type not in (*_TENSORS, *_GRAPHS)
        and not (node.op_type == "Constant" and a.name in _VALUES)
    )
    return sorted(others, key=lambda a: a.name)


def _line(nodes: Sequence[Sequence[AttributeProto]]) -> str:
    """Returns the number of nodes, a digest of their attributes, and the different values if these
    are short.
    """
    bits = sorted(b"".join(a.SerializeToString(deterministic=True) for a in n) for n in nodes)
    texts = [", ".join(f"{a.name}={_plain(get_attribute_value(a))}" for a in n) for n in nodes]
    values = " | ".join(sorted({text for text in texts if text}))
    more = f" {values}" if 0 < len(values) <= _SHORT else ""
    return f"{len(nodes)} {_digest(*bits)}{more}"


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _connections(model: ModelProto) -> str:
    """Returns a digest of operators and connections; new names of values do not change it."""
    numbers: dict[str, int] = {"": -1}
    words = []
    for node in model_nodes(model):
        ends = (numbers.setdefault(name, len(numbers)) for name in (*node.input, *node.output))
        words.append(f"{operator(node)} {len(node.input)} {' '.join(map(str, ends))}")
    outputs = (numbers.setdefault(v.name, len(numbers)) for v in model.graph.output)
    return _digest("\n".join(words).encode(), repr([*outputs]).encode())


def _digest(*parts: bytes) -> str:
    found = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


# ---- what changed -------------------------------------------------------------------------------


@frozen
class Changed:
    """The changes of an input, in one line (`summary`) and one by one (`changes`). `errors` are
    those that make a result useless: weights that became NaN, infinite or zero.
    """

    summary: str = ""
    changes: tuple[Change, ...] = ()
    errors: tuple[str, ...] = ()


def changed(before: Input, after: Input, now: tuple[ModelProto, Path | None], old: str) -> Changed:
    """Returns what changed between two records. `now` is the new model with the folder of its
    external data, `old` the file of the former result: where it holds the former weights, they are
    compared element by element.
    """
    same_graph = before.graph == after.graph and before.operators == after.operators
    pairs, gone, new = _paired(before.weights, after.weights)
    moved = [_Moved(*pair) for pair in pairs if pair[1].digest != pair[2].digest]
    moved.sort(key=lambda m: -m.size)
    former = _Former.of(old) if moved else None
    current = dict(named(now[0])) if former is not None else {}
    useless = {m.name: [*m.errors(same_graph)] for m in moved}
    first = [m for m in moved if useless[m.name]]
    others = [m for m in moved if not useless[m.name]]

    def change(m: _Moved) -> Change:
        found = former is not None and not m.small
        more = former.against(m.name, m.before, current, now[1]) if former and found else ""
        after_text = f"{_text(m.after, m.before, since=m.before)}{more}"
        return Change(f"weights.{m.name}", _text(m.before, m.after), after_text)

    described = list(_described(before, after))
    small, large = [m for m in moved if m.small], [m for m in moved if not m.small]
    total = sum(not _Moved(*pair).small for pair in pairs)
    names = first_of([m.name for m in sorted(large, key=first.__contains__, reverse=True)], _NAMED)
    words = [
        f"{len(large)} of {counted(total, 'weight')} ({names})" if large else "",
        *(f"{m.name} {m.before.values} → {m.after.values}" for m in small[:_NAMED]),
        f"{len(small) - _NAMED} more small constants" if len(small) > _NAMED else "",
        f"{counted(len(gone), 'weight')} gone" if gone else "",
        f"{counted(len(new), 'weight')} new" if new else "",
        *_headings(described),
    ]
    summary = ", ".join(filter(None, words)) or "only names, metadata or descriptions"
    return Changed(
        f"the input changed: {summary}",
        (
            *map(change, first),
            *(change(m) for m in others if m.small),
            *described,
            *(change(m) for m in others if not m.small),
            *(Change(f"weights.{name}", _text(w, w), None) for name, w in gone.items()),
            *(Change(f"weights.{name}", None, _text(w, w)) for name, w in new.items()),
        ),
        tuple(error for m in first for error in useless[m.name]),
    )


@frozen
class _Moved:
    """A weight of both models, by its name in the new one."""

    name: str
    before: Weight
    after: Weight

    @property
    def small(self) -> bool:
        """Whether both values are short enough to be shown."""
        return bool(self.before.values and self.after.values)

    @property
    def size(self) -> float:
        """How far the norm moved, relative to the former."""
        a, b = self.before.norm, self.after.norm
        return 0.0 if a == b else abs(b - a) / a if a else math.inf

    def errors(self, same_graph: bool) -> Iterator[str]:
        """Yields how the weight became useless. Few integers are no weight; a number of a graph
        with other nodes may be another constant of the same name.
        """
        a, b = self.before, self.after
        if b.bad > a.bad:
            yield f"{self.name}: {counted(b.bad - a.bad, 'value')} became NaN or infinite"
        if a.kind != b.kind or (not b.is_float and b.values):
            return
        if b.is_zero and not a.is_zero:
            if same_graph or not (b.values and "[]" in b.kind):
                yield f"{self.name} became all zero"
        elif b.zero_rows > a.zero_rows:
            rows = counted(b.zero_rows - a.zero_rows, "row or column", "rows or columns")
            yield f"{self.name}: {rows} became all zero"


_USABLE = "no value became NaN or infinite, nothing all zero"
_NAMED = 4  # weights in one line
_ACCEPT = f'; weights = "{MAY_CHANGE}" accepts that'


def hold_weights(
    required: Mapping[str, Any], seen: Changed, known: bool, updating: bool
) -> tuple[Held, ...]:
    """Returns the requirement on weights and its result: of the recipe, else that they are usable
    if they changed. `known`: whether there is a baseline.
    """
    if "weights" not in required:
        why = f"{first_of(seen.errors, _NAMED)}{_ACCEPT}"
        return (Held("weights", _USABLE, None, None, False, why),) if seen.errors else ()
    bound = bound_of("weights", required["weights"])
    held = Held("weights", str(bound), None, None, True)
    if bound.sign == MAY_CHANGE or updating:
        return (held,)
    if not known:
        return (replace(held, held=False, why=WITHOUT_BASELINE),)
    names = [c.what.partition(".")[2] for c in seen.changes if c.what.startswith("weights.")]
    why = f"weights changed: {first_of(names, _NAMED)}" if names else ""
    return (replace(held, held=not why, why=why),)


def hold_nodes(required: Mapping[str, Any], seen: Changed, updating: bool) -> tuple[Held, ...]:
    """Returns the requirement that nodes, attributes and connections of the input stay, if they did
    not. The number of nodes in the result is another.
    """
    bound = bound_of("nodes", required.get("nodes", 0))
    if updating or (bound.sign, bound.base, bound.number) != ("==", BASELINE, 0):
        return ()
    nodes = [change for change in seen.changes if change.what.startswith("nodes")]
    why = f"the input changed: {next(_headings(nodes))}" if nodes else ""
    return (Held("nodes", str(bound), None, None, False, why),) if why else ()


def may_change(required: Mapping[str, Any]) -> bool:
    """Whether a recipe accepts every change of weights, also to NaN and zero."""
    text = required.get("weights")
    return text is not None and bound_of("weights", text).sign == MAY_CHANGE


def hold_outputs(
    required: Mapping[str, Any], before: Input, after: Input, allowed: Collection[str]
) -> list[Held]:
    """Returns the outputs that became NaN or infinite, as a missed requirement, unless the recipe
    accepts that.
    """
    if may_change(required):
        return []
    allowed = names_among([*allowed], after.infinite, "allow_empty")
    names = [n for n in after.infinite if n not in (*before.infinite, *allowed)]
    why = f"on the inputs of the proof, {first_of(names, _NAMED)} became NaN or infinite{_ACCEPT}"
    return [Held("outputs", _USABLE, None, None, False, why)] if names else []


def _paired(
    before: Mapping[str, Weight], after: Mapping[str, Weight]
) -> tuple[list[tuple[str, Weight, Weight]], dict[str, Weight], dict[str, Weight]]:
    """Returns the weights of both, by the new name, and those of one side only. A weight with
    another name is the one with the same data, else the next one of its kind.
    """
    pairs = [(name, before[name], w) for name, w in after.items() if name in before]
    gone = {name: w for name, w in before.items() if name not in after}
    new = {name: w for name, w in after.items() if name not in before}
    for key in (lambda w: (w.kind, w.digest), lambda w: w.kind):
        waiting: dict[Any, list[str]] = {}
        for name, w in gone.items():
            waiting.setdefault(key(w), []).append(name)
        for name, w in list(new.items()):
            if names := waiting.get(key(w)):
                pairs.append((name, gone.pop(names.pop(0)), new.pop(name)))
    return pairs, gone, new


def _text(weight: Weight, other: Weight, since: Weight | None = None) -> str:
    """Returns a weight as a report shows it; `since` is the former one."""
    kind = weight.kind if weight.kind != other.kind or weight is other else ""
    if weight.values and (other.values or weight is other):
        return f"{kind} {weight.values}".strip()
    kind = kind or (counted(weight.count, "weight") if weight.count > 1 else "")
    words = [f"norm {weight.norm:.4g}"]
    if since is not None and since.norm and math.isfinite(since.norm):
        share = 100 * (weight.norm - since.norm) / since.norm
        words[0] += f" ({share:+{'.2g' if abs(share) < 99.5 else ',.0f'}} %)" if share else ""
    words += [f"{weight.bad:,} not finite"] if weight.bad else []
    words += ["all zero"] if weight.is_zero else []
    if weight.zero_rows and not weight.is_zero:
        words.append(counted(weight.zero_rows, "zero row or column", "zero rows or columns"))
    return f"{kind} {', '.join(words)}".strip()


def _described(before: Input, after: Input) -> Iterator[Change]:
    """Yields the changes of the interface, nodes, opsets and producer."""
    yield from _interface(before, after)
    counts = [
        {name: int(line.split(" ", 1)[0]) for name, line in i.operators.items()}
        for i in (before, after)
    ]
    for name in sorted({*before.operators, *after.operators}):
        old, new = (found.get(name) for found in counts)
        if old != new:
            yield Change(f"nodes.{name}", old, new)
        elif before.operators[name] != after.operators[name]:
            lines = (i.operators[name].split(" ", 2)[2:] for i in (before, after))
            was, now = ("".join(line) for line in lines)
            told = was != now
            yield Change(
                f"nodes.{name}", (told and was) or "as locked", (told and now) or "other attributes"
            )
    if counts[0] == counts[1] and before.graph != after.graph:
        yield Change("nodes", "as locked", "other connections")
    for domain in {**before.opset, **after.opset}:
        if before.opset.get(domain) != after.opset.get(domain):
            yield Change(f"opset.{domain}", before.opset.get(domain), after.opset.get(domain))
    if before.producer != after.producer:
        yield Change("producer", before.producer or None, after.producer or None)


def _interface(before: Input, after: Input) -> Iterator[Change]:
    for kind in ("inputs", "outputs"):
        types, later = getattr(before, kind), getattr(after, kind)
        for name in {**types, **later}:
            if types.get(name) != later.get(name):
                yield Change(f"{kind}.{name}", types.get(name), later.get(name))
        if list(types) != list(later) and types.keys() == later.keys():
            yield Change(f"order of {kind}", ", ".join(types), ", ".join(later))


def _headings(found: Sequence[Change]) -> Iterator[str]:
    """Yields the changes for the summary, those of nodes together."""
    nodes = [c.what.partition(".")[2] or str(c.after) for c in found if c.what.startswith("nodes")]
    if nodes:
        yield f"nodes ({first_of(nodes, _NAMED)})"
    for change in found:
        if not change.what.startswith("nodes"):
            what = change.what.replace("opset.ai.onnx", "opset")
            yield f"{what} {change.before or 'none'} → {change.after or 'none'}"


@frozen
class _Former:
    """The constants of the former result."""

    constants: Mapping[str, Any]
    folder: Path

    @staticmethod
    def of(path: str) -> _Former | None:
        """Returns those of a file; None if there is no model."""
        try:
            return _Former(dict(named(read_proto(Path(path)))), Path(path).parent)
        except InputError:
            return None

    def against(
        self, name: str, locked: Weight, current: Mapping[str, Any], folder: Path | None
    ) -> str:
        """Returns how many elements differ and by how much; empty if the former weight is not at
        hand.
        """
        old, new = self.constants.get(name), current.get(name)
        if old is None or new is None or old.dims != new.dims:
            return ""
        if old.data_type != new.data_type or math.prod(new.dims) > _MOST_ELEMENTS:
            return ""
        try:
            if weight_of(old, self.folder).digest != locked.digest:
                return ""
            a, b = array_of(old, self.folder), array_of(new, folder)
        except InputError:
            return ""
        if a.dtype.kind not in "fiu":
            return ""
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
        most = gap.max(where=np.isfinite(gap), initial=0.0)
        by = f", by at most {most:.2g}" if most else ""  # the others became NaN or infinite
        return f"; {int((a != b).sum()):,} of {a.size:,} values differ{by}"
