"""The driver of `lift`: splits off the part of a model that depends on weights alone, which then
runs once, at load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.domains import VIEWS
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program, cut
from onnxgrad.ir.storage.shared_weights import Files, sharing
from onnxgrad.ir.types import TensorType, element_count
from onnxgrad.ir.var import Var
from onnxgrad.jobs.groups import Proof
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.inspection.operator_costs import flops
from onnxgrad.jobs.proving import Run, proved, running
from onnxgrad.jobs.surgery.declarations import LiftOptions
from onnxgrad.jobs.surgery.extract import extracted, remove_what_served
from onnxgrad.name_lists import fits, matching, names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.wording import first_of, option

# operators of other domains may draw random numbers or keep a state
_DOMAINS = ("", "ai.onnx.ml")
# computed constants of these types are sizes, axes and masks
_SIZES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING)


class Lifted(NamedTuple):
    """The two parts that `lift` returns, each in the type of the model."""

    prepare: Any
    rest: Any


@frozen
class LiftedModel(Proved):
    """The rest of a model as `program`, the part that runs once, and the report of their joint
    proof.
    """

    prepare: Program


def lift(
    model: ModelLike, options: LiftOptions, hooks: Hooks, *, paying: bool = False
) -> LiftedModel:
    """Splits a model, proves preparation and rest together, and lets the hooks write the rest.
    `paying`: leave nodes that take no longer than one more input does. Raises InputError for a name
    that matches nothing, and if nothing can be lifted.
    """
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        original, prepare, rest = (load_own(model) for _ in range(3))
        hooks.on_read(original)
        names = _weights(original, options.weights)
        ends = lifted(original, names, paying=paying)
        if not ends:
            raise InputError(_nothing(paying and bool(lifted(original, names)), names))
        values = _values(original, names)
        for part in (prepare, rest):
            _ask(part, names)
        read = _sources(prepare, ends)
        extracted(prepare, [n for n in names if n in read] or None, ends)
        _cut(rest, ends)
        report = None
        if options.verify:
            with sharing() as files:
                expected = in_parts(prepare, rest, values, options, files)
                report = proved(original, expected, options, files)
        return write_if_proved(LiftedModel(rest, report, prepare), hooks)


def in_parts(
    prepare: Program, rest: Program, values: Mapping[str, Any], options: Proof, files: Files
) -> Run:
    """Returns a function that runs a preparation and then the rest. `values`: those of the weights
    that are inputs of the parts alone. `files`: where large weights lie.
    """
    first, second = (running(files.of(part), options) for part in (prepare, rest))

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = {**values, **feeds}
        made = first({v.name: given[v.name] for v in prepare.main.inputs})
        taken = {**given, **made}
        needed = [v.name for v in rest.main.inputs if v.name in taken]
        return second({n: taken[n] for n in needed})

    return run


def prepare_path(rest: Path) -> Path:
    """Returns the default path of the preparation, beside the rest."""
    return rest.with_name(f"{rest.stem}.prepare.onnx")


def _nothing(is_little: bool, names: Sequence[str]) -> str:
    if is_little:
        return (
            "values that depend on weights alone are computed as fast as inputs are passed: "
            "`onnxgrad lift` splits the model anyway"
        )
    if names:
        only = f"{first_of(names, 3)} and constants alone"
        return f"no computed value depends on {only}, so nothing would run once, at load"
    more = option("--weights NAME", "weights=NAME")
    return f"nothing depends on weights alone: {more} names the values that are set at load"


def lifted(program: Program, names: Sequence[str], *, paying: bool = False) -> list[str]:
    """Returns the values that the rest of a program reads and that depend on these weights and
    constants alone; with `paying`, of nodes that take longer than passing these values as inputs.
    """
    block = program.main
    block.schedule()
    weights = {v for v in block.vars() if v.name in names}
    outputs = {*block.outputs, *block.pinned}
    made: dict[Binding, bool] = {}  # whether the binding depends on a named weight
    for b in block.bindings:
        free = b.domain in _DOMAINS and not (b.blocks or draws(b) or called(b) is not None)
        if free and _typed(b) and outputs.isdisjoint(_results(b)) and _ready(b, weights, made):
            made[b] = any(
                v in weights or (v.definition is not None and made.get(v.definition))
                for v in b.reads()
            )
    if paying:
        made = what_pays(made, weights)
    # constants cost nothing, and sizes of a Reshape must be computed in the part that reads them
    return [
        v.name
        for b, named in made.items()
        if b.op != "Constant"
        for v in _results(b)
        if (named or v.dtype not in _SIZES) and any(user not in made for user in v.users)
    ]


# microseconds, measured with onnxruntime 1.32 on one thread (scripts/bench_lift.py): an array that
# Python passes as one more input of a run, an input that loses its default, a node, and its
# elements and operations
_INPUT, _DEFAULT = 3.0, 0.6
_NODE, _ELEMENT, _DEQUANTISED, _FLOP = 1.0, 1 / 4000, 1 / 1000, 1 / 50_000
_VIEWS = frozenset((*VIEWS, "Constant"))
_PRODUCTS = frozenset({"MatMul", "Gemm"})


def what_pays(made: dict[Binding, bool], weights: set[Var]) -> dict[Binding, bool]:
    """Returns the part of a preparation that takes longer in each run than passing its results as
    inputs.

    Inputs that only the preparation reads are saved. Views of a weight, and a Transpose that
    onnxruntime makes part of a product, take no time.
    """
    left = dict(made)
    for b in reversed(made):
        from_file = all(v is None or v in weights or v.is_constant for v in b.inputs)
        if from_file and _is_free(b) and not any(user in left for user in b.out.users):
            del left[b]
    pays, gain = dict.fromkeys(left, False), 0.0
    for part in _parts(left):
        ends = {v for b in part for v in _results(b) if any(u not in left for u in v.users)}
        read = {v for b in part for v in b.reads() if v in weights}
        saved = {v for v in read if not v.returned and all(u in left for u in v.users)}
        won = sum(map(_microseconds, part)) - _INPUT * (len(ends) - len(saved))
        if won > 0:
            pays.update(dict.fromkeys(part, True))
            gain += won
    if gain <= _DEFAULT * sum(v.initializer is not None for v in weights):
        return {}
    return {b: named for b, named in left.items() if pays[b]}


def _is_free(b: Binding) -> bool:
    """Whether a binding takes no time where it is: a view, or the Transpose of a factor."""
    if b.op in _VIEWS:
        return True
    rank = b.out.rank or 0
    turned = [*range(rank - 2), rank - 1, rank - 2]
    return (
        b.is_op("Transpose")
        and rank >= 2
        and list(b.attr("perm") or range(rank)[::-1]) == turned
        and all(user.domain == "" and user.op in _PRODUCTS for user in b.out.users)
    )


def _microseconds(b: Binding) -> float:
    """Returns an estimate of the time of a binding; infinite if its sizes are unknown."""
    if b.op in _VIEWS:
        return 0.0
    sizes = [element_count(v.shape) for v in (*_results(b), *b.inputs) if v is not None]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes):
        return inf
    each = _DEQUANTISED if b.is_op("DequantizeLinear") else _ELEMENT
    products = _FLOP * (flops(b) or 0) if b.op in _PRODUCTS else 0.0
    return _NODE + each * max(known, default=0) + products


def _parts(made: Mapping[Binding, bool]) -> Iterator[list[Binding]]:
    """Yields the connected parts of the bindings: within a part, results connect them."""
    left = dict.fromkeys(made)
    while left:
        part = [next(iter(left))]
        del left[part[0]]
        for b in part:  # which grows
            near = [v.definition for v in b.reads()]
            near += [user for v in _results(b) for user in v.users]
            for other in near:
                if other is not None and other in left:
                    del left[other]
                    part.append(other)
        yield part


def _results(b: Binding) -> list[Var]:
    return [v for v in b.outputs if v is not None]


def _typed(b: Binding) -> bool:
    """Whether the results of a binding can be inputs: tensors of known type."""
    return all(isinstance(v.type, TensorType) and v.dtype for v in _results(b))


def _ready(b: Binding, weights: set[Var], made: Mapping[Binding, bool]) -> bool:
    """Whether a binding reads only weights, constants and results of `made`, and at least one
    value.
    """
    values = [v for v in b.inputs if v is not None]
    if b.op == "Constant":
        return True
    return bool(values) and all(
        v in weights or v.is_constant or v.definition in made for v in values
    )


def _weights(program: Program, given: Sequence[str]) -> list[str]:
    """Returns the inputs and initializers that match names or globs. Raises InputError if a name
    matches nothing.
    """
    block = program.main
    known = [v.name for v in block.inputs]
    known += [n for n in block.initializers if n not in set(known)]
    found = matching(known, given, "weights", "the model has no input or initializer")
    return [n for n in known if n in found]


def with_inputs(program: Program, weights: Sequence[str]) -> Program:
    """Returns a program in which initializers of these names or globs are inputs with a default, so
    that passes do not treat them as constants. Raises InputError.
    """
    made = load_own(program)
    hide_weight_inputs(made)
    held = [made.main.initializers.get(name) for name in _weights(made, weights)]
    for v in held:
        if v is not None:
            made.main.let_override(v)
    return program if all(v is None for v in held) else load_own(made)


def named_inputs(program: Program, weights: bool | str | Sequence[str]) -> list[str]:
    """Returns the inputs that match names or globs, after `with_inputs`."""
    inputs = [v.name for v in program.main.inputs]
    globs = () if isinstance(weights, bool) else names_among(weights, inputs, "weights")
    return [name for name in inputs if any(fits(name, g) for g in globs)]


def _values(program: Program, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of these names in the file."""
    tensors = {n: v.initializer for n, v in program.main.initializers.items()}
    return {n: program.array(t) for n in names if (t := tensors.get(n)) is not None}


def _ask(program: Program, names: Iterable[str]) -> None:
    """Makes these initializers inputs."""
    block = program.main
    for name in names:
        if name in block.initializers:
            block.ask_for(block.initializers[name])


def _sources(program: Program, ends: Iterable[str]) -> set[str]:
    """Returns the names of the values on which these depend."""
    values = {v.name: v for v in program.main.vars()}
    work = [values[name] for name in ends]
    found = set[str]()
    while work:
        v = work.pop()
        if v.name not in found:
            found.add(v.name)
            work += [] if v.definition is None else v.definition.reads()
    return found


def _cut(program: Program, ends: Sequence[str]) -> None:
    """Makes these values inputs, and removes the nodes, weights, inputs and functions that only
    they need.
    """
    block = program.main
    unread = {v for v in block.inputs if not v.use_count}
    values = {v.name: v for v in block.vars()}
    with remove_what_served(program, [values[name] for name in ends]):
        for name in ends:
            cut(program, values[name])
    block.inputs = [v for v in block.inputs if v.use_count or v in unread or v.initializer]
    block.touch()
