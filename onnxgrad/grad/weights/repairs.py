"""Restores parameters that an exporter tied, merged or left out.

PyTorch's exporters write a network for inference: parameters that start equal become one
initializer, a tied matrix becomes two, biases of zeros are left out (see `grad.weights.sharing`). A
training step is made from a repaired program; its manifest records the repairs, so that trained
values can be written back into the file.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.paths import edges, has_gradient, reaching
from onnxgrad.grad.stops import Stop, find_stops
from onnxgrad.grad.weights.copies import compare, find_copies, weights_of
from onnxgrad.grad.weights.evidence import CONSTANT
from onnxgrad.grad.weights.kept import note_of_decisive
from onnxgrad.grad.weights.sharing import Findings, Place, find_merged
from onnxgrad.grad.wrt import Wrt, find_wrt
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.origins import forget_values
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import fits, names_among
from onnxgrad.wording import counted, option, perhaps, some_of

AUTO, OFF = "auto", "off"
_SHOWN = 4


@frozen
class Ties:
    """Which weights become one parameter, and which weight becomes several: `auto`,
    `off`, names.
    """

    tie: Sequence[str] = (AUTO,)
    untie: Sequence[str] = (AUTO,)


@frozen
class Tied:
    """A weight of the file, `copy`, that is the parameter `name`, reshaped or `transposed`."""

    name: str
    copy: str
    transposed: bool

    def of(self, value: Array, shape: Sequence[int]) -> Array:
        """Returns the copy's elements for a value of the parameter."""
        matrix = np.squeeze(value).T if self.transposed else value
        return matrix.reshape(shape)


@frozen
class Untied:
    """A parameter that the file lacks.

    of: the initializer with its first elements, None for zeros. places: the nodes that read the
    parameter, each named by its first result, with the operand; the readers of an Identity read the
    parameter instead of it.
    """

    name: str
    of: str | None
    places: tuple[tuple[str, int], ...]
    shape: tuple[int, ...] = ()


@frozen
class Note:
    """A message about some weights."""

    about: frozenset[str]
    text: str


@frozen
class Repairs:
    """The changes of the parameters of a file."""

    tied: tuple[Tied, ...] = ()
    untied: tuple[Untied, ...] = ()

    def of(self, trained: Collection[str]) -> Repairs:
        """Returns the repairs that the values of these weights need: all parameters of one
        initializer.
        """
        origins = {u.of for u in self.untied if u.name in trained} | set(trained)
        untied = (u for u in self.untied if u.name in trained or (u.of or u.name) in origins)
        return Repairs(tuple(t for t in self.tied if t.name in trained), tuple(untied))


NONE = Repairs()


# ---- one initializer for several parameters: each gets its own -----------------------------------


def untie(
    program: Program, choice: Sequence[str]
) -> tuple[tuple[Untied, ...], Findings, list[Note]]:
    """Gives parameters that share an initializer one each, and adds biases of zeros that were left
    out: those that are certain (`auto`), and those that `choice` names.

    Returns the repairs, the findings, and notes on both. Raises InputError for a name that no two
    layers read.
    """
    found = find_merged(program)
    shared = [s.weight.name for s in found.shared]
    auto, named = _chosen(names_among(choice, shared, "untie"))
    for name in named:
        if not any(fits(weight, name) for weight in shared):
            near = perhaps(name, shared)
            raise InputError(
                f"untie '{name}': no weight of this name is read by several layers{near}"
            )
    untied: list[Untied] = []
    notes = list(_notes_on_lost(found, program))
    doubtful = []
    for s in found.shared:
        is_named = any(fits(s.weight.name, name) for name in named)
        parts = [p for p in s.parts if p.certain] if auto else []
        if is_named:
            parts = list(s.uses if s.unknown or not s.parts else s.parts)
        own = [_untied(program, p.name, s.weight.name, p.places) for p in parts]
        untied += own
        if new := [u.name for u in own if not u.name.endswith(f".{CONSTANT}")]:
            notes.append(_untied_note(s.weight.name, new))
        if auto and not is_named and (s.unknown or len(parts) < len(s.parts)):
            doubtful.append(s.weight.name)
    if doubtful:
        notes.append(_doubtful_note(doubtful))
    if auto and found.missing:
        back = [
            _untied(program, m.name, None, [(b, 2) for b in m.layers], m.size)
            for m in found.missing
        ]
        untied += back
        notes.append(_missing_note([u.name for u in back]))
    apply_untied(program, untied)
    forget_values(program, {u.of for u in untied if u.of is not None})
    return tuple(untied), found, notes


def _chosen(choice: Sequence[str]) -> tuple[bool, list[str]]:
    """Returns whether the choice requests the certain repairs, and the names in it."""
    return OFF not in choice, [name for name in choice if name not in (AUTO, OFF)]


def _untied(
    program: Program, name: str, of: str | None, places: Sequence[Place], *shape: int
) -> Untied:
    """Returns the parameter at these places, under a free name, or that of an Identity there."""
    taken = any(b.is_op("Identity") and b.out.name == name for b, _ in places)
    name = name if taken else program.names.fresh(name)
    at = tuple((next(v.name for v in b.outputs if v is not None), slot) for b, slot in places)
    return Untied(name, of, at, shape)


def apply_untied(program: Program, untied: Iterable[Untied]) -> None:
    """Adds the parameters to the program, unless it has them. Raises InputError for another program
    than the one in which they were found.
    """
    new = [u for u in untied if u.name not in program.main.initializers]
    if not new:
        return
    results = {
        v.name: b for block in program.blocks() for b in block.walk() for v in b.outputs if v
    }
    for u in new:
        places = [(results[name], slot) for name, slot in u.places if name in results]
        if len(places) < len(u.places):
            absent = next(name for name, _ in u.places if name not in results)
            raise InputError(
                f"the model has no '{absent}', which reads the weight '{u.name}': was "
                "the step made from another file?"
            )
        tensor = _first_value(program, u, places)
        tensor.name = program.names.fresh(u.name)
        v = program.main.add_initializer(tensor)
        for b, slot in places:
            if b.is_op("Identity"):
                b.block.replace(b.out, v)
                b.block.remove(b)
            elif slot < len(b.inputs):
                b.block.set_operand(b, slot, v)
            else:
                b.block.set_operands(b, [*b.inputs, *[None] * (slot - len(b.inputs)), v])
        v.rename(u.name)


def _first_value(program: Program, u: Untied, places: Sequence[Place]) -> TensorProto:
    """Returns a copy of the initializer that the parameter shares, or zeros."""
    tensor = TensorProto()
    if u.of is not None:
        shared = program.main.initializers.get(u.of)
        if shared is None or shared.initializer is None:
            raise InputError(
                f"the model has no weight '{u.of}': was the step made from another file?"
            )
        tensor.CopyFrom(shared.initializer)
        return tensor
    weight = places[0][0].inputs[1]
    return tensor_of(np.zeros(u.shape, numpy_dtype(weight.dtype if weight is not None else 1)), "")


# ---- several initializers for one parameter: they become one -------------------------------------


def tie(
    program: Program, choice: Sequence[str], wrt: Wrt, stop: Stop, found: Findings
) -> tuple[Wrt, tuple[Tied, ...], list[Note]]:
    """Makes trained weights with equal elements one parameter: those that certainly are one
    (`auto`), by their readers or as `found`, and the pairs NAME=NAME of `choice`.

    Returns `wrt` for the changed program, the repairs and notes. Raises InputError for a pair that
    is not trained, or whose elements differ.
    """
    weights = {v.name: v for v in weights_of(program)}
    auto, named = _chosen(_pairs_among(choice, weights))
    certain = {(c.weight.name, c.copy.name) for c in found.copies if c.certain}
    copies = [
        c
        for c in (find_copies(list(weights.values())) if auto else [])
        if c.certain or (c.weight.name, c.copy.name) in certain
    ]
    if not copies and not named:
        return wrt, (), []
    trained = _trained(program, wrt, stop)
    tied = {
        c.copy.name: Tied(c.weight.name, c.copy.name, c.transposed)
        for c in copies
        if c.weight.name in trained and c.copy.name in trained
    }
    notes = _tied_notes(tied.values())
    for pair in named:
        t = _pair(pair, weights, trained)
        tied.setdefault(t.copy, t)
    apply_tied(program, tied.values())
    several = [name for name in trained if all(name != t.name for t in tied.values())]
    notes += [Note(frozenset(several), text) for text in note_of_decisive(program, several)]
    forget_values(program, trained)
    return [name for name in trained if name not in tied], tuple(tied.values()), notes


def _halves(text: str, weights: Container[str]) -> tuple[str, str]:
    """Returns the names in NAME=NAME, which may contain an equals sign; empty if there is no such
    pair of weights.
    """
    for i in (i for i, c in enumerate(text) if c == "="):
        a, b = text[:i], text[i + 1 :]
        if a in weights and b in weights and a != b:
            return a, b
    return "", ""


@frozen
class _PairsOf:
    """The texts NAME=NAME of two weights."""

    weights: Container[str]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and any(_halves(text, self.weights))


def _pairs_among(choice: str | Sequence[str], weights: Container[str]) -> tuple[str, ...]:
    return names_among(choice, _PairsOf(weights), "tie")


def _pair(text: str, weights: Mapping[str, Var], trained: Collection[str]) -> Tied:
    """Returns a pair NAME=NAME. Raises InputError."""
    a, b = _halves(text, weights)
    if not a:
        raise InputError(f"tie '{text}': write auto, off or NAME=NAME, with names of two weights")
    for name in (a, b):
        if name not in trained:
            raise InputError(f"tie '{text}': '{name}' is not trained")
    transposed = compare(weights[a], weights[b], uniform=True)
    if transposed is None:
        raise InputError(f"tie '{text}': their elements differ")
    return Tied(a, b, transposed)


def _trained(program: Program, wrt: Wrt, stop: Stop) -> list[str]:
    """Returns the names that match `wrt`, without those that reach outputs only through `stop`."""
    block = program.main
    values = {v.name: v for v in block.vars()}
    stops = set(find_stops(block, stop, values))
    targets = [v for v in block.outputs if has_gradient(v.type) and v not in stops]
    found = find_wrt(block, wrt, targets, values)
    if stops:
        paths = {b: [v for v in edges(b) if v not in stops] for b in block.bindings}
        reached = reaching(block, targets, paths)
        found = [v for v in found if v in reached]
    return [v.name for v in found]


def apply_tied(program: Program, tied: Iterable[Tied]) -> None:
    """Replaces each copy by its parameter at every reader."""
    weights = program.main.initializers
    for t in tied:
        _replace(weights[t.name], weights[t.copy], t.transposed)


def _replace(kept: Var, copy: Var, transposed: bool) -> None:
    """Replaces the copy by the parameter at every reader."""
    block, shape = kept.block, copy.shape or ()
    v = kept
    with emitting(block, made_by="tie"):
        if transposed:
            matrix = [n for n in kept.shape or () if n != 1]
            v = v if len(matrix) == kept.rank else op.Reshape(v, np.array(matrix, np.int64))
            v = op.Transpose(v, perm=[1, 0])
        if v.shape != shape:
            v = op.Reshape(v, np.array(shape, np.int64))
    block.replace(copy, v)
    block.remove_initializer(copy)


# ---- notes ---------------------------------------------------------------------------------------


def find_notes(program: Program) -> list[str]:
    """Returns the notes that a training step of these weights would print by default. Changes the
    program.
    """
    _, found, notes = untie(program, (AUTO,))
    notes += tie(program, (AUTO,), "params", None, found)[2] if found.copies else []
    notes += doubtful_copies(found, ())
    return [note.text for note in notes]


def doubtful_copies(found: Findings, choice: Sequence[str]) -> list[Note]:
    """Returns the notes on weights that may be one parameter, except the pairs of `choice`."""
    known = {name for c in found.copies for name in (c.weight.name, c.copy.name)}
    auto, named = _chosen(_pairs_among(choice, known))
    pairs = [(c.weight.name, c.copy.name) for c in found.copies if not c.certain]
    left = [(a, b) for a, b in pairs if f"{a}={b}" not in named]
    if not left or not auto:
        return []
    a, b = left[0]
    more = f" ({len(left) - 1} more pairs: {_listed([f'{a}={b}' for a, b in left[1:]])})"
    about = frozenset(name for pair in left for name in pair)
    command = option(f"--tie {a}={b}", f"tie=['{a}={b}']")
    return [Note(about, f"'{a}' and '{b}' have equal elements{more if left[1:] else ''}: if they "
                 f"are one parameter, train them as one with {command}")]  # fmt: skip


def _tied_notes(tied: Iterable[Tied]) -> list[Note]:
    """Returns a note on each parameter that has copies."""
    copies: dict[tuple[str, bool], list[str]] = {}
    for t in tied:
        copies.setdefault((t.name, t.transposed), []).append(t.copy)
    off, notes = option("--tie off", 'tie="off"'), []
    for (name, transposed), names in copies.items():
        text = (
            f"{_listed(names)} {'is' if len(names) == 1 else 'are'} '{name}'"
            f"{' transposed' * transposed}: the exporter split a tied weight, which trains as one "
            f"parameter; {off} trains {'two' if len(names) == 1 else 'each'}"
        )
        notes.append(Note(frozenset({name}), text))
    return notes


def _untied_note(of: str, names: Sequence[str]) -> Note:
    off = option("--untie off", 'untie="off"')
    text = (
        f"'{of}' stands for {len(names) + 1} parameters that start equal: each trains by itself "
        f"(also {_listed(names)}); {off} trains one"
    )
    return Note(frozenset({of, *names}), text)


def _doubtful_note(names: Sequence[str]) -> Note:
    own = option(f"--untie {names[0]}", f"untie=['{names[0]}']")
    every = option("--untie '*'", "untie=['*']")
    own += f", or all theirs with {every}" if len(names) > 1 else ""
    text = (
        f"several layers read {_listed(names)}: if the exporter merged equal parameters, give each "
        f"its own with {own}"
    )
    return Note(frozenset(names), text)


def _missing_note(names: Sequence[str]) -> Note:
    off = option("--untie off", 'untie="off"')
    many = counted(len(names), "bias", "biases")
    text = (
        f"the exporter left out {many} of zeros ({_listed(names)}): they train too; {off} leaves "
        "them out"
    )
    return Note(frozenset(names), text)


def _notes_on_lost(found: Findings, program: Program) -> Iterable[Note]:
    """Yields the notes on what cannot be restored: folded layers, and missing ones, which concern
    all weights that are no matrices.
    """
    page = option("onnxgrad help training", "the page `training`")
    if found.folded:
        about = frozenset(v.name for b in found.folded for v in b.inputs[1:] if v is not None)
        names = [b.node.name or b.out.name for b in found.folded]
        text = (
            f"BatchNormalization is folded into the weights of {counted(len(names), 'layer')} "
            f"({_listed(names)}), which train instead: to train it, export the model in training "
            f"mode ({page})"
        )
        yield Note(about, text)
    if found.lost:
        about = frozenset(v.name for v in weights_of(program) if (v.rank or 0) < 2)
        text = (
            f"the file lacks the layer of {counted(len(found.lost), 'parameter')} of the network "
            f"({_listed(found.lost)}): nothing uses them, or the exporter merged equal layers or "
            f"folded them; an export with optimize=False keeps used ones ({page})"
        )
        yield Note(about, text)


def _listed(names: Sequence[str]) -> str:
    return some_of([f"'{name}'" for name in names], _SHOWN)
