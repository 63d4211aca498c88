"""The driver of `join`: connects outputs of one model to inputs of another, and proves the result
against both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import FunctionKey, Names, Program
from onnxgrad.ir.protobufs import copy_of, keep, model_nodes
from onnxgrad.ir.renaming import (
    called,
    key_of,
    node_names,
    rename_functions,
    rename_nodes,
    rename_symbols,
    rename_values,
    symbols,
    value_names,
)
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import Digests, outside
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.kinds import of_known
from onnxgrad.jobs.proving import proved, running
from onnxgrad.jobs.surgery.declarations import JoinOptions
from onnxgrad.jobs.surgery.fixed_dims import fix
from onnxgrad.name_lists import names_among
from onnxgrad.passes.convert_opset import convert, hide_weight_inputs
from onnxgrad.verify.feeds.dims import required_inputs, roles
from onnxgrad.wording import first_of, option, perhaps


@frozen
class Joined:
    """Two models as one. `feeds_a`, `feeds_b`: the input of the result for each input of A or B.
    `links`: the value of A that feeds each linked input of B. `results_a`, `results_b`: the output
    of the result for each output of A or B.
    """

    program: Program
    feeds_a: Mapping[str, str]
    feeds_b: Mapping[str, str]
    links: Mapping[str, str]
    results_a: Mapping[str, str]
    results_b: Mapping[str, str]
    notes: Sequence[str]


def join(a: ModelLike, b: ModelLike, options: JoinOptions, hooks: Hooks) -> Proved:
    """Chain two models, prove the result against A and then B, and let the hooks write it. Raises
    InputError if they do not fit together.
    """
    with hooks.limits(options.timeout, options.max_memory):
        a, b = settled(a), settled(b)
        programs = load_own(a), load_own(b)
        for program in programs:
            hooks.on_read(program)
        made = joined(*programs, options)
        report = None
        if options.verify:
            with sharing() as files:
                run_a, run_b = (running(files.original(load_own(m)), options) for m in (a, b))

                def expected(feeds: Mapping[str, Any]) -> dict[str, Any]:
                    of_a = {made.feeds_a[n]: v for n, v in feeds.items() if n in made.feeds_a}
                    between = {**of_a, **run_a(of_a)}
                    of_b = {made.feeds_b[n]: v for n, v in feeds.items() if n in made.feeds_b}
                    found = run_b({**of_b, **{n: between[v] for n, v in made.links.items()}})
                    return {
                        **{n: between[old] for n, old in made.results_a.items()},
                        **{n: found[old] for n, old in made.results_b.items()},
                    }

                report = proved(made.program, expected, options, files)
        return write_if_proved(Proved(made.program, report, notes=made.notes), hooks)


def joined(a: Program, b: Program, options: JoinOptions) -> Joined:
    """Returns both models, which are changed, as one. Raises InputError if a value does not fit its
    input, if names collide, and if the opsets cannot be made equal.
    """
    for which, program in (("A", a), ("B", b)):
        if program.proto.training_info:
            raise InputError(
                f"{which} holds a training step (training_info), which a joined model cannot have"
            )
        hide_weight_inputs(program)
    links = _links(a, b, options)
    for taken, source in links.items():
        _check_types(a, b, source, taken)
    notes = _align_opsets(a, b)
    first, second, folder, digests = _protos(a, b)
    notes += _align_sizes(first.graph, second.graph, links)
    _align_functions(first, second)
    inputs_a = [v.name for v in first.graph.input]
    kept = _kept_outputs(first.graph, links, options.keep_output)
    inputs_b = [v.name for v in second.graph.input if v.name not in links]
    outputs_b = _own_outputs(second.graph, links)
    ends = {name: options.prefix + old for name, old in outputs_b.items()}
    ends |= {name: options.prefix + name for name in inputs_b}
    _check_interface({*inputs_a, *kept}, ends, inputs_b)
    _rename(first.graph, second.graph, ends, links, {*inputs_a, *kept}, options.prefix)
    _merge(first, second, kept, links)
    made = program_of(first, folder, None, digests)
    names_b = [ends[name] for name in outputs_b]
    return Joined(
        made,
        {name: name for name in inputs_a},
        {ends[name]: name for name in inputs_b},
        links,
        {name: name for name in kept},
        dict(zip(names_b, outputs_b.values(), strict=True)),
        [*notes, *_metadata_notes(a, b)],
    )


# ---- links ---------------------------------------------------------------------------------------


def _links(a: Program, b: Program, options: JoinOptions) -> dict[str, str]:
    """Returns the value of A for each linked input of B."""
    outputs = [v.name for v in a.main.outputs]
    sources = {*outputs, *(v.name for v in a.main.inputs)}
    inputs = [v.name for v in b.main.inputs]
    if options.map is not None:
        found = dict[str, str]()
        known = {*sources, *(f"A.{name}" for name in sources)}
        for left, right in of_known(options.map, known).items():
            where = option(f"--map {left}={right}", f"map={{{left!r}: {right!r}}}")
            source = _end("A has no output or input", left, sources, f"B's '{right}'", where)
            if right.removeprefix("B.") in {*b.main.initializers} - {*inputs}:
                free = option(f"edit --free {right}", f"edit(b, free={right!r})")
                raise InputError(f"{where}: '{right}' is a weight of B: {free} makes it an input")
            taken = _end("B has no input", right, inputs, f"A's '{source}'", where)
            if taken in found:
                raise InputError(f"{where}: A's '{found[taken]}' feeds B's input '{taken}' already")
            found[taken] = source
        if found:
            return found
    same = {name: name for name in inputs if name in outputs}
    needed = [v.name for v in required_inputs(b.proto.graph)]
    if same:
        return same
    if len(outputs) == 1 and len(needed) == 1:
        return {needed[0]: outputs[0]}
    where = option("--map NAME=OTHER", "map={NAME: OTHER}")
    raise InputError(
        f"no output of A ({first_of(list(outputs), 5)}) has the name of an input of B "
        f"({first_of(list(inputs), 5)}): connect them with {where}"
    )


def _end(missing: str, name: str, known: Collection[str], other: str, where: str) -> str:
    """Returns the value with this name, which may begin with its model: `A.logits`. Raises
    InputError.
    """
    found = name if name in known else name.removeprefix(f"{missing[0]}.")
    if found not in known:
        raise InputError(f"{where}: {missing} '{found}' for {other}{perhaps(found, known, 3)}")
    return found


def _check_types(a: Program, b: Program, source: str, taken: str) -> None:
    mine = next(v.type for v in (*a.main.outputs, *a.main.inputs) if v.name == source)
    theirs = next(v.type for v in b.main.inputs if v.name == taken)
    if not _fit(mine, theirs):
        raise InputError(f"A's '{source}' is {mine}, but B's input '{taken}' requires {theirs}")


def _fit(mine: Type | None, theirs: Type | None) -> bool:
    """Whether a value of one type can have the other."""
    if not isinstance(mine, TensorType) or not isinstance(theirs, TensorType):
        return mine is None or theirs is None or mine == theirs
    if mine.dtype and theirs.dtype and mine.dtype != theirs.dtype:
        return False
    if mine.shape is None or theirs.shape is None:
        return True
    sizes = zip(mine.shape, theirs.shape, strict=False)
    return len(mine.shape) == len(theirs.shape) and all(
        m == t for m, t in sizes if isinstance(m, int) and isinstance(t, int)
    )


def _kept_outputs(graph: GraphProto, links: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    outputs, read = [v.name for v in graph.output], {*links.values()}
    wanted = names_among(wanted, outputs, "keep_output")
    for name in wanted:
        if name not in outputs:
            where = option(f"--keep-output {name}", f"keep_output={name!r}")
            raise InputError(f"{where}: A has no output of this name{perhaps(name, outputs, 3)}")
    return [name for name in outputs if name not in read or name in wanted]


def _own_outputs(graph: GraphProto, links: Mapping[str, str]) -> dict[str, str]:
    """Returns B's outputs by the name of their value. An output that is a linked input gets its own
    value, by an Identity.
    """
    names = Names()
    names.update(value_names(graph), node_names(graph))
    found = {}
    for value in graph.output:
        old = value.name
        if old in links:
            value.name = names.fresh(f"{old}_output")
            node = graph.node.add(op_type="Identity", name=names.fresh(f"{old}_identity"))
            node.input.append(old)
            node.output.append(value.name)
        found[value.name] = old
    return found


# ---- opsets, sizes, functions, storage ----------------------------------------------------------


def _align_opsets(a: Program, b: Program) -> list[str]:
    """Raises the older model to the opset of the newer. Raises InputError."""
    for domain, version in a.opsets.items():
        if domain and b.opsets.get(domain, version) != version:
            raise InputError(
                f"A imports version {version} of the domain '{domain}' and B version "
                f"{b.opsets[domain]}: both must be the same"
            )
    newest, notes = max(a.opset, b.opset), []
    for which, program in (("A", a), ("B", b)):
        if 0 < program.opset < newest:
            notes.append(f"{which} was converted from opset {program.opset} to {newest}")
            try:
                convert(program, newest)
            except InputError as error:
                raise InputError(f"{which} has an older opset than the other: {error}") from None
    return notes


def _protos(a: Program, b: Program) -> tuple[ModelProto, ModelProto, Any, Any]:
    """Returns both as protobufs, with the folder of their external data; B's data is read if A's is
    in another folder.
    """
    first, second = copy_of(to_proto(a)), copy_of(to_proto(b))
    if not outside(second):
        return first, second, a.folder, a.digests
    if not outside(first):
        return first, second, b.folder, b.digests
    if a.folder is not None and a.folder == b.folder:
        digests = Digests({**a.digests, **b.digests})
        digests.files = a.digests.files | b.digests.files
        return first, second, a.folder, digests
    return first, copy_of(to_proto(b, weights=True)), a.folder, a.digests


def _dims(value: ValueInfoProto) -> Sequence[Any]:
    """Returns the declared sizes of a tensor: numbers, symbols, None."""
    shape = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in shape]


def _align_sizes(a: GraphProto, b: GraphProto, links: Mapping[str, str]) -> list[str]:
    """Makes symbols of both models equal if they name the same size, and different otherwise; fix a
    symbol if the other model has a number.
    """
    mine = {v.name: v for v in (*a.input, *a.output)}
    theirs = {v.name: v for v in b.input}
    pairs = [
        (m, t, f"A's '{source}' and B's input '{taken}'")
        for taken, source in links.items()
        for m, t in zip(_dims(mine[source]), _dims(theirs[taken]), strict=False)
        if m is not None and t is not None
    ]
    classes = _Classes()
    for m, t, where in pairs:
        first, second = m if isinstance(m, int) else ("A", m), t if isinstance(t, int) else ("B", t)
        classes.merge(first, second, where)
    notes = []
    for which, graph in (("A", a), ("B", b)):
        known = roles(graph)
        sizes = {s: size for s in known if isinstance(size := classes.of((which, s)), int)}
        if sizes:
            _fix_graph(graph, sizes)
            notes += [f"{symbol} of {which} is {size} now" for symbol, size in sizes.items()]
    names = Names()
    names.update(symbols(a), symbols(b))
    taken, other = symbols(a), dict[str, str]()
    for symbol in symbols(b):
        found = classes.of(("B", symbol))
        if isinstance(found, tuple) and found[0] == "A":
            other[symbol] = found[1]
        elif symbol in taken:
            other[symbol] = names.fresh(f"{symbol}_2")
    same = {s: f[1] for s in symbols(a) if isinstance(f := classes.of(("A", s)), tuple)}
    rename_symbols(a, {s: t for s, t in same.items() if s != t})
    rename_symbols(b, {s: t for s, t in other.items() if s != t})
    return notes


def _fix_graph(graph: GraphProto, sizes: Mapping[str, int]) -> None:
    """Applies `fix` to a graph."""
    alone = ModelProto(graph=graph)
    fix(alone, sizes)
    graph.CopyFrom(alone.graph)


class _Classes:
    """Classes of equal sizes, represented by a number, else by a symbol of A."""

    def __init__(self) -> None:
        self.above: dict[Any, Any] = {}

    def of(self, term: Any) -> Any:
        while term in self.above:
            term = self.above[term]
        return term

    def merge(self, a: Any, b: Any, where: str) -> None:
        a, b = sorted((self.of(a), self.of(b)), key=lambda t: (not isinstance(t, int), str(t)))
        if a == b:
            return
        if isinstance(b, int):
            raise InputError(f"{where}: the links require one size to be both {a} and {b}")
        self.above[b] = a


def _align_functions(a: ModelProto, b: ModelProto) -> None:
    """Renames local functions that have the name of another function, or of an operator, of the
    other model.
    """
    mine, theirs = ({key_of(f): f for f in m.functions} for m in (a, b))
    names = Names()
    names.update(key[1] for m in (mine, theirs) for key in m)
    names.update(node.op_type for m in (a, b) for node in model_nodes(m))
    for model, own, foreign, other in ((b, theirs, mine, a), (a, mine, theirs, b)):
        calls = {called(node) for node in model_nodes(other)}
        new: dict[FunctionKey, str] = {}
        for key, f in own.items():
            twin = foreign.get(key)
            if (twin is None and key in calls) or (
                model is b
                and twin is not None
                and f.SerializeToString(deterministic=True)
                != twin.SerializeToString(deterministic=True)
            ):
                new[key] = names.fresh(f"{key[1]}_2")
        rename_functions(model, new)


# ---- names --------------------------------------------------------------------------------------


def _check_interface(
    taken: Iterable[str], ends: Mapping[str, str], inputs: Collection[str]
) -> None:
    known = set(taken)
    for old, new in ends.items():
        if new in known:
            way = option(f"--map {new}={old}", f"map={{{new!r}: {old!r}}}")
            share = f"feed that of B with {way}, or " if old in inputs else ""
            raise InputError(
                f"'{new}' is an input or output of A and of B: {share}rename the values of B "
                f"with {option('--prefix TEXT', 'prefix=')}"
            )
        known.add(new)


def _rename(
    a: GraphProto,
    b: GraphProto,
    ends: Mapping[str, str],
    links: Mapping[str, str],
    interface: Iterable[str],
    prefix: str,
) -> None:
    """Makes all names of B's values and nodes different from A's, except those that B
    reads from A.
    """
    names, wanted = Names(), {*ends.values()}
    names.update(interface, wanted)
    names.update(value_names(a), value_names(b))
    moved = {name: names.fresh(f"{name}_2") for name in value_names(a) if name in wanted}
    rename_values(a, moved)
    used = {*value_names(a), *wanted}
    of_b = {name: moved.get(source, source) for name, source in links.items()}
    for name in value_names(b):
        if name in ends:
            of_b[name] = ends[name]
        elif name not in links and (prefix or name in used):
            of_b[name] = names.fresh(f"{prefix}{name}")
    rename_values(b, of_b)
    taken = Names()
    taken.update(node_names(a))
    both = [name for name in node_names(b) if prefix or name in taken]
    taken.update(node_names(b))
    rename_nodes(b, {name: taken.fresh(f"{prefix}{name}") for name in both})


# ---- one model ----------------------------------------------------------------------------------


def _merge(
    first: ModelProto, second: ModelProto, kept: Sequence[str], links: Mapping[str, str]
) -> None:
    """Adds all of B to A."""
    a, b = first.graph, second.graph
    inner = {v.name for v in a.input} | {v.name for v in a.value_info} | {*kept}
    a.value_info.extend(v for v in a.output if v.name not in inner)
    keep(a.output, lambda v: v.name in kept)
    feeding = set(value_names(a))
    keep(b.initializer, lambda t: t.name not in feeding)
    keep(b.value_info, lambda v: v.name not in feeding)
    a.input.extend(v for v in b.input if v.name not in feeding)
    for field in ("output", "node", "initializer", "sparse_initializer", "value_info",
                  "quantization_annotation"):  # fmt: skip
        getattr(a, field).extend(getattr(b, field))
    _merge_entries(a.metadata_props, b.metadata_props)
    _merge_entries(first.metadata_props, second.metadata_props)
    first.ir_version = max(first.ir_version, second.ir_version)
    imported = domains.versions(first.opset_import)
    first.opset_import.extend(
        e for e in second.opset_import if domains.canonical(e.domain) not in imported
    )
    own = {key_of(f) for f in first.functions}
    first.functions.extend(f for f in second.functions if key_of(f) not in own)
    known = {c.name: c for c in first.configuration}
    for each in second.configuration:
        if known.setdefault(each.name, each) != each:
            raise InputError(f"join: the device configurations '{each.name}' of A and B differ")
        if all(each.name != c.name for c in first.configuration):
            first.configuration.append(each)


def _merge_entries(mine: Any, theirs: Any) -> None:
    known = {entry.key for entry in mine}
    mine.extend(entry for entry in theirs if entry.key not in known)


def _metadata_notes(a: Program, b: Program) -> list[str]:
    """Returns notes on metadata of B that is lost."""
    return [
        f"metadata '{key}' is that of A"
        for key in a.metadata
        if b.metadata.get(key, a.metadata[key]) != a.metadata[key]
    ]
