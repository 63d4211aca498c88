"""The model whose differences are taken: an additional input moves each named value. Also where the
model runs, and which values can influence a target at all.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.vectors import moved_by
from onnxgrad.grad.opset.raising import OPSET
from onnxgrad.grad.wrt import Wrt, hoist_requested
from onnxgrad.interpreter import return_memory
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_node, graphs_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import Files
from onnxgrad.ir.var import Var
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.user_operators import own_operators, unknown_to_onnxruntime
from onnxgrad.verify.running import session as onnxruntime
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.child_sessions import CACHED_SESSIONS
from onnxgrad.verify.running.session import close_sessions, open_session


@frozen
class Probe:
    """The model with `x + delta` in place of each named value x, and with an input in place of each
    value at which gradients stop.

    deltas: the input that moves each named value. held: the input that replaces each value at which
    gradients stop, for its readers. outputs: the name of each target in this model: of its moved
    form if the target is a named value, of a copy of the held input if gradients stop there.
    """

    model: ModelProto
    deltas: dict[str, str]
    held: dict[str, str]
    outputs: dict[str, str]


def probe_of(
    source: ModelProto | Program,
    wrt: Wrt,
    names: Sequence[str],
    targets: Sequence[str],
    stops: Sequence[str] = (),
) -> Probe:
    """Returns the probe that moves the values `names`; a Program is changed. Raises InputError for
    a value that a nested graph returns.
    """
    program = load(source)
    # a model that contains only operators of other domains does not import the default one
    program.opsets.setdefault("", OPSET)
    hoist_requested(program, wrt)
    block = program.main
    values = {v.name: v for v in block.vars()}
    read = dict(values)  # what readers read
    with emitting(block):
        for name in stops:
            read[name] = block.add_input(program.names.fresh(f"{name}_held"), values[name].type)
            _read_instead(values[name], read[name])
        held = {name: read[name].name for name in stops}
        deltas: dict[str, str] = {}
        for name in names:
            delta = block.add_input(program.names.fresh(f"{name}_delta"), values[name].type)
            users = list(read[name].users)
            moved = moved_by(read[name], delta)
            _read_instead(read[name], moved, users)
            deltas[name], read[name] = delta.name, moved
            if any(
                values[name] in nested.outputs for b in block.walk() for nested in b.blocks.values()
            ):
                raise InputError(
                    f"'{name}' is returned by a nested graph: it cannot be moved to "
                    "take differences"
                )
        for name in [n for n in targets if n in stops and n not in names]:
            read[name] = op.Identity(read[name])
    outputs = {t: read[t].name for t in targets}
    proto = to_proto(program)
    del proto.graph.output[:]
    for name in dict.fromkeys([*outputs.values(), *names]):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return Probe(proto, deltas, held, outputs)


def _read_instead(old: Var, new: Var, users: Iterable[Binding] | None = None) -> None:
    for user in list(old.users) if users is None else users:
        for place in user.places(old):
            user.block.set_operand(user, place, new)


class Run(Protocol):
    """Runs a model on feeds. `apart`: a folder; large floats stay in files there. Raises
    RunFailed, or Unsupported if the reference runs it.
    """

    def __call__(
        self,
        model: ModelProto,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        apart: Path | None = None,
    ) -> dict[str, Any]: ...


def runner(files: Files, model: ModelProto, provider: str, threads: int = 1) -> tuple[Run, str]:
    """Returns the function that runs `model` and its gradient, and a name for reports.

    Quantised models run as written: onnxruntime's optimisations compute parts of them in integers
    and round a bias to the product of two scales, which is another function.
    """
    try:
        if own_operators(model):
            open_session(files.runnable(model), provider=provider)
    except RunFailed as error:
        own = unknown_to_onnxruntime(model, error.reason)
        if not own:
            raise
        return partial(_in_float64, files), f"in float64, as onnxruntime lacks {own}"

    as_written = any(node.op_type in _QUANTIZED for node in every_node(model.graph.node))

    def run(
        model: ModelProto,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        apart: Path | None = None,
    ) -> dict[str, Any]:
        source, large = files.runnable(model), files.folder is not None
        keep = 1 if large else CACHED_SESSIONS  # each one holds the weights
        if large:
            return_memory()  # that of weights that were read before
        if as_written:  # callers open it with all optimisations, and it must load there
            open_session(source, provider=provider, threads=threads, keep=keep)
        found = onnxruntime.run(
            source, feeds, outputs=outputs, provider=provider, threads=threads,
            optimize=not as_written, keep=keep, apart=apart,
        )  # fmt: skip
        if large:
            close_sessions(provider)  # what follows runs in float64, or opens another one
        return found

    return run, provider


def _in_float64(
    files: Files,
    model: ModelProto,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    apart: Path | None = None,
) -> dict[str, Any]:
    return Float64(files.runnable(model)).run(feeds, outputs=outputs, apart=apart)


_QUANTIZED = {"QuantizeLinear", "DequantizeLinear"}
_FLOATS = {
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.UNDEFINED,
}
# constant between their steps: a value that passes through one of them has the derivative 0
_FLAT = {"Shape", "Size", "Floor", "Ceil", "Round", "Sign"}


def values_reaching(
    model: ModelProto,
    targets: Iterable[str],
    dtypes: Mapping[str, int | None],
    stops: Container[str] = (),
) -> set[str]:
    """Returns the targets, and every value from which a path of floating-point values leads to one
    of them.

    dtypes: the known dtypes by name; a value of unknown dtype may be a float. A node with nested
    graphs counts as a reader of everything that they read. No path passes through one of `stops`,
    but it may start there.
    """
    makers: dict[str, list[NodeProto]] = {}
    for node in every_node(model.graph.node):
        for name in node.output:
            makers.setdefault(name, []).append(node)
    found: set[str] = set()
    todo = [*targets]
    while todo:
        name = todo.pop()
        if name in found or (dtypes.get(name) or TensorProto.UNDEFINED) not in _FLOATS:
            continue
        found.add(name)
        for node in makers.get(name, ()) if name not in stops else ():
            if node.op_type not in _FLAT or not domains.is_default(node.domain):
                todo += node.input
                todo += (read for graph in graphs_of(node) for read in _reads(graph))
    return found


def _reads(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.output)
    for node in every_node(graph.node):
        yield from node.input
