"""Makes a fixed dimension dynamic, if every number that depends on it can be determined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.load import program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, every_node, graphs_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import names_among
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.sizes.node import Readings
from onnxgrad.transform.sizes.readings import other_reading
from onnxgrad.transform.sizes.walk import EVERY, Condition, Followed, Stuck, follow_sizes, name_of
from onnxgrad.wording import first_of, option, perhaps

_PREPARE = "inline{names=*},open-if,remove-unused"
_SAMPLES = 24  # sizes at which the conditions are tried


@dataclass(frozen=True)
class OpenedSizes:
    """A program with dynamic dimensions.

    `sizes`: the sizes in the file. `steps`: the numbers of which new sizes must be multiples.
    `most`, `least`: the largest and smallest possible sizes, if bounded. `numbers`: numbers of the
    file that now depend on the sizes.
    """

    program: Program
    sizes: Mapping[str, int]
    steps: Mapping[str, int]
    most: Mapping[str, int]
    least: Mapping[str, int]
    numbers: tuple[str, ...]
    notes: tuple[str, ...] = ()


def open_dimensions(
    program: Program,
    wanted: Mapping[str, Sequence[str]],
    follow: str | Sequence[str] = (),
    compared: Mapping[str, int] | None = None,
    extend: Mapping[str, str] | None = None,
) -> OpenedSizes:
    """Makes axes of inputs dynamic. `program` is changed.

    `wanted` maps the name of each new size to its axes (INPUT.AXIS). `follow` lists nodes whose
    fixed numbers depend on the size. `compared` maps new sizes that will be compared with another
    export to the largest size there. `extend` has the readings of constants beyond the size in the
    file. Raises InputError, which names the node or constant, if a dependence is not certain.
    """
    compared = compared or {}
    places = _places(program, wanted)
    values = {name: found[0][2] for name, found in places.items()}
    Pipeline.of(passes=_PREPARE).run(program)
    follow = _known_nodes(program, follow)
    opened = _declared(program, places)
    proto = to_proto(opened)
    found = follow_sizes(opened, values, follow, extend=extend)
    steps = _steps(found, values)
    larger = {name: size for name, size in compared.items() if size > values[name]}
    for name, (size, why) in found.extensions.compared_up_to(larger).items():
        found.most[name, size, why] = None
    _beyond_the_file(found)
    if values.keys() - compared:

        def goes(picked: Mapping[str, str]) -> bool:
            trial = program_of(copy_of(proto), program.folder, digests=program.digests)
            readings = Readings(picked, sizes={**found.readings.sizes})
            _steps(follow_sizes(trial, values, follow, readings, extend), values)
            made = [{b.out.name: _made(b) for b in p.main.walk()} for p in (opened, trial)]
            return all(made[0][name] != made[1].get(name) for name in picked)

        _one_reading(opened, found.readings, other_reading(found.readings, goes))
    most, remarks = _most(found)
    least, narrow = _least(found, values, steps)
    text = {n: _limits(n, steps[n], least, most) for n in values}
    notes = [
        *(f"{t}: {_cause(found, n, narrow)}" for n, t in text.items() if t),
        *found.remarks,
        *remarks,
    ]
    final = _final(opened, {n: [v for v, _, _ in p] for n, p in places.items()}, text)
    return OpenedSizes(final, values, steps, most, least, tuple(found.numbers), tuple(notes))


def _made(b: Binding) -> object:
    """Returns what a reading of a node's numbers changes: shapes, and how often a Loop runs."""
    runs = b.inputs[0] if b.op == "Loop" and not b.domain else None
    return [v and v.shape for v in b.outputs], runs is not None and runs.is_constant


def _one_reading(program: Program, readings: Readings, doubt: tuple[str, str, str] | None) -> None:
    """Raises InputError if numbers of a node have two readings."""
    if doubt is not None:
        made, first, other = doubt
        b = next(b for b in program.main.walk() if b.out.name == made)
        name = b.node.name or made
        follow = option(f"--follow {name}", f"follow=[{name!r}]")
        every = "" if made in readings.alone else f" ({EVERY!r}: all nodes)"
        reference = option("--reference FILE", "reference=FILE")
        raise InputError(
            f"{name_of(b)}: at other sizes it has {first} or {other}, and the model works with "
            f"both: pass {follow} for {readings.follows[made]}{every}, compare "
            f"with another export ({reference}), or export with a size that no other axis has"
        )


def _places(
    program: Program, wanted: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[str, int, int]]]:
    """Returns inputs, axes and sizes in the file, by the name of the new size. Raises
    InputError.
    """
    inputs = {v.name: v for v in program.main.inputs if v.initializer is None}
    taken = {s for v in inputs.values() for d in v.shape or () for s in algebra.symbols(d)}
    found: dict[str, list[tuple[str, int, int]]] = {}
    for symbol, names in wanted.items():
        where = option(f"--open {symbol}={','.join(names)}", f"open: {{{symbol!r}: ...}}")
        if not algebra.is_name(symbol) or symbol in taken:
            raise InputError(f"{where}: '{symbol}' is not a name for a new size")
        found[symbol] = [_place(inputs, name, where) for name in names]
        if len({size for *_, size in found[symbol]}) > 1:
            text = ", ".join(f"{size} in {name}.{axis}" for name, axis, size in found[symbol])
            raise InputError(f"{where}: the axes have several sizes: {text}")
    return found


def _place(inputs: Mapping[str, Var], name: str, where: str) -> tuple[str, int, int]:
    base, _, number = name.rpartition(".")
    if base not in inputs or not number.isdecimal():
        known = [f"{n}.{axis}" for n, v in inputs.items() for axis in range(v.rank or 0)]
        raise InputError(f"{where}: '{name}' is not an axis of an input{perhaps(name, known)}")
    shape, axis = inputs[base].shape, int(number[:4])
    size = None if shape is None or axis >= len(shape) else shape[axis]
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{where}: axis {axis} of {inputs[base].type} has no fixed size")
    return base, axis, size


def _known_nodes(program: Program, follow: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of nodes. Raises InputError."""
    nodes = {name for b in program.main.walk() for name in (b.node.name, b.out.name)}
    names = names_among(follow, nodes, "follow")
    for name in names:
        if name not in nodes and name != EVERY:
            where = option(f"--follow {name}", f"follow={name!r}")
            raise InputError(f"{where}: no such node{perhaps(name, nodes)}")
    return names


def _declared(program: Program, places: Mapping[str, list[tuple[str, int, int]]]) -> Program:
    """Returns the program, read again with open inputs and without other declared shapes."""
    made = copy_of(to_proto(program))
    del made.graph.value_info[:]
    axes = {(name, axis): s for s, found in places.items() for name, axis, _ in found}
    for value in made.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in axes:
                dim.dim_param = axes[value.name, axis]
    _without_sizes(made.graph.output)
    for node in every_node(made.graph.node):
        for body in graphs_of(node):
            del body.value_info[:]
            counters = 2 if node.op_type == "Loop" else 0
            _without_sizes((*body.input[counters:], *body.output))
    return program_of(made, program.folder, digests=program.digests)


def _without_sizes(values: Iterable[ValueInfoProto]) -> None:
    for value in values:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _steps(found: Followed, values: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of which each size must be a multiple.

    Raises Stuck if no size other than the file's meets the conditions.
    """
    steps = {}
    for name, size in values.items():
        about = [c for c in found.conditions if name in _symbols(c)]
        good = (
            step
            for step in range(1, size + 1)
            if size % step == 0 and all(_holds(found, c, name, size, step) for c in about)
        )
        steps[name] = next(good, 0)
        if not steps[name]:
            c = next(c for c in about if not _holds(found, c, name, size, size))
            raise Stuck(
                f"{c.node}: the size cannot be opened here: {c.left} and {c.right} must be equal, "
                f"and are not at other sizes '{name}'",
                certain=True,
                doubts=found.readings.offered,
            )
    return steps


def _symbols(c: Condition) -> frozenset[str]:
    return algebra.symbols(c.left) | algebra.symbols(c.right)


def _holds(found: Followed, c: Condition, name: str, size: int, step: int) -> bool:
    most = min((most for bounded, most, _ in found.most if bounded == name), default=1 << 31)
    tried = [size + step * i for i in range(_SAMPLES)]
    sizes = ({name: n} for n in tried if n <= max(most, size))
    return all(found.expressions.at(c.left, s) == found.expressions.at(c.right, s) for s in sizes)


def _beyond_the_file(found: Followed) -> None:
    """Raises InputError if a table has no more rows than the file reads."""
    for size, number, why in found.most:
        if found.expressions.at(size) == number:
            raise InputError(
                f"{why}, as many as {size} is in the file, and nothing says what comes behind: "
                "export with a dynamic axis, or with a smaller size"
            )


def _most(found: Followed) -> tuple[dict[str, int], list[str]]:
    """Returns the largest sizes for which tables have rows, and remarks on limits of
    expressions.
    """
    most: dict[str, int] = {}
    remarks = []
    for size, number, why in found.most:
        if isinstance(size, str) and algebra.is_name(size):
            most[size] = min(number, most.get(size, number))
        else:
            remarks.append(f"{size} is at most {number}: {why}")
    return most, remarks


def _least(
    found: Followed, values: Mapping[str, int], steps: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, str]]:
    """Returns the smallest sizes at which every window has room, and the nodes that need them. Each
    size is bounded while the others have their values in the file.
    """
    least, why = dict[str, int](), dict[str, str]()
    for name, size in values.items():
        about = [need for need in found.least if name in algebra.symbols(need[0])]
        first, enough, narrow = 0, size // steps[name], ""
        while first + 1 < enough:  # more room at every larger size
            middle = (first + enough) // 2
            at = {name: middle * steps[name]}
            short = [n for d, room, n in about if (found.expressions.at(d, at) or 0) < room]
            first, enough = (middle, enough) if short else (first, middle)
            narrow = short[0] if short else narrow
        if enough > 1 and narrow:
            least[name], why[name] = enough * steps[name], narrow
    return least, why


def _limits(name: str, step: int, least: Mapping[str, int], most: Mapping[str, int]) -> str:
    limits = [f"a multiple of {step}"] if step > 1 else []
    limits += [f"at least {least[name]}"] if name in least else []
    limits += [f"at most {most[name]}"] if name in most else []
    return f"{name} is {' and '.join(limits)}" if limits else ""


def _cause(found: Followed, name: str, narrow: Mapping[str, str]) -> str:
    """Returns the nodes and tables that limit a size."""
    nodes = dict.fromkeys(c.node for c in found.conditions if name in _symbols(c))
    tables = dict.fromkeys(why for size, _, why in found.most if size == name)
    windows = {narrow[name]: None} if name in narrow else {}
    return first_of([*{**nodes, **windows, **tables}], 3)


def _final(program: Program, inputs: Mapping[str, list[str]], text: Mapping[str, str]) -> Program:
    """Returns the program with declared sizes of its outputs, and with the limits in the
    documentation of its inputs.
    """
    types = {v.name: v.type for v in program.main.outputs}
    made = copy_of(to_proto(program))
    del made.graph.value_info[:]
    for value in made.graph.output:
        type_ = types[value.name]
        if isinstance(type_, TensorType):
            value.type.CopyFrom(type_to_proto(type_))
    for value in made.graph.input:
        limits = [text[s] for s, names in inputs.items() if value.name in names and text[s]]
        if limits:
            value.doc_string = "\n".join(filter(None, [value.doc_string, *limits]))
    return program_of(made, program.folder, digests=program.digests)


def other_sizes(opened: OpenedSizes) -> Iterator[dict[str, int]]:
    """Yields sizes at which an opened model should run: larger ones, then smaller ones."""
    larger, smaller = {}, {}
    for i, (name, size) in enumerate(opened.sizes.items()):
        step, most = opened.steps[name], opened.most.get(name, 1 << 31)
        more = size + step * max(1, (3 + i) * size // (8 * step))
        larger[name] = more if more <= most else most // step * step
        smaller[name] = max(size // (2 * step) * step, step, opened.least.get(name, 0))
    yield larger
    if len(larger) > 1:
        yield {**larger, **{n: opened.sizes[n] for n in [*larger][1:]}}
    yield smaller
