"""Splits a gradient in two models: forward, which also returns residuals, and backward, which
computes gradients from residuals and adjoints.

Residuals are values of the model under their own names. The forward part does not return inputs and
outputs of the model a second time, because the caller has them. The backward part recomputes all
other values that it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onnx import ModelProto, helper

from onnxgrad.errors import InputError
from onnxgrad.grad.checkpointing.keeping import Dataflow, Keep, choose_kept
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.sequences import is_float
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.load import load_own, program_of
from onnxgrad.ir.program import Program, cut
from onnxgrad.ir.save import Content, save_together, to_proto
from onnxgrad.ir.storage.atomic_files import hash_file
from onnxgrad.ir.types import TensorType, byte_count, dtype_name
from onnxgrad.ir.var import Var
from onnxgrad.passes.remove_unused import RemoveUnusedFunctions
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import printable_json

SCHEMA = Path(__file__).with_name("split.schema.json")
FORMAT, VERSION = "onnxgrad split", 1
Origin = Literal["forward", "input", "output"]
_DOMAIN = "onnxgrad.split"
_WITH_INDICES = 2
_FUNCTIONS_SINCE = 8  # IR version
_SMALL = 256  # bytes


@dataclass(frozen=True)
class Entry:
    """An input or output of a graph, with its dtype as in `onnxgrad.load` and its shape.

    Sizes are numbers or names, or None if unknown. of: the value whose adjoint or gradient this is.
    origin: for residuals, whether it is a further output of the forward part, or an input or output
    of the model.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    of: str | None = None
    origin: Origin | None = None


@dataclass(frozen=True)
class Manifest:
    """The interface of a forward and a backward part.

    keep: how residuals were chosen. bytes: the total size of the residuals that are further outputs
    of the forward part, or None if a size is open.
    """

    inputs: tuple[Entry, ...]
    outputs: tuple[Entry, ...]
    residuals: tuple[Entry, ...]
    adjoints: tuple[Entry, ...]
    gradients: tuple[Entry, ...]
    keep: Keep
    bytes: int | None

    def to_json(self, **files: Any) -> str:
        """Returns the manifest as JSON. `files` are further keys, such as names and digests."""
        data = {"format": FORMAT, "version": VERSION, **files, **asdict(self)}
        for key in ("inputs", "outputs", "residuals", "adjoints", "gradients"):
            data[key] = [
                {k: v for k, v in entry.items() if v is not None or k == "shape"}
                for entry in data[key]
            ]
        return printable_json(data) + "\n"


class Linearized(NamedTuple):
    """The two models that `linearize` returns, in the type of the model, and their manifest."""

    forward: Any
    backward: Any
    manifest: Manifest


@dataclass(frozen=True)
class Split:
    """The forward and the backward part of a gradient, and their manifest."""

    gradient: Gradient
    forward: Program
    backward: Program
    manifest: Manifest
    again: int  # bindings that the backward part computes a second time

    kind = "gradient"

    @property
    def program(self) -> Program:
        """The gradient in one graph, before the split."""
        return self.gradient.program

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the gradient."""
        return self.gradient.notes

    @property
    def values(self) -> list[str]:
        """The values whose gradients the backward part returns."""
        return self.gradient.values


def linearize(
    program: Program,
    wrt: Wrt = None,
    target: Target = None,
    *,
    keep: Keep = "auto",
    dims: Mapping[str, int] | None = None,
    stop: Stop = None,
    names: str = "{}_grad",
) -> Split:
    """Splits the gradient of `program`, which is changed; `onnxgrad.linearize` documents the
    parameters.
    """
    outputs = [v.name for v in program.main.outputs]
    if target is None:
        target = [v.name for v in program.main.outputs if is_float(v)]
        if not target:
            raise InputError("the model has no floating-point output, so no gradient")
    gradient = differentiate(
        program, wrt, target, adjoint="input", stop=stop, names=names, intact=True
    )
    return _split(gradient, outputs, keep, dims or {})


def _split(
    gradient: Gradient, outputs: Sequence[str], keep: Keep, dims: Mapping[str, int]
) -> Split:
    """Splits the gradient graph into the model with these outputs and the rest."""
    block = gradient.program.main
    _part_pools(block, outputs)
    values = {v.name: v for v in block.vars()}
    seeds = [values[name] for name in gradient.seeds.values()]
    results = [values[name] for name in outputs]
    forward = _ancestors(block, results)
    backward = _ancestors(block, [values[name] for name in gradient.adjoints.values()])
    readers = [b for b in block.bindings if b in backward and b not in forward]
    inputs = [v for v in block.inputs if v not in seeds]
    free = dict.fromkeys(v for v in (*inputs, *results) if not v.is_constant)
    fixed = _fixed(b for b in block.bindings if b in forward)
    computed = {v for b in forward - fixed for v in b.outputs}
    read = dict.fromkeys(v for b in readers for v in b.reads() if not v.is_constant)
    flow = Dataflow(
        [b for b in block.bindings if b in forward and b not in fixed],
        [v for v in read if v in computed or v in free],
        list(free),
        dims,
        readers,
        {v for b in forward for v in b.outputs if v is not None and _is_fused(v, forward)},
    )
    found = choose_kept(flow, keep)
    more = [v for v in found.values if v not in free]
    sizes = [byte_count(v.type) for v in more]
    # an input with a value in the file is one of both parts, and no run need pass it on
    passed = [v for v in found.values if v.initializer is None]
    residuals, given = [v.name for v in passed], [v.name for v in inputs]
    manifest = Manifest(
        tuple(_entry(v) for v in inputs if v.initializer is None),
        tuple(map(_entry, results)),
        tuple(_entry(v, origin=_origin(v, inputs, free)) for v in passed),
        tuple(_entry(values[seed], of=of) for of, seed in gradient.seeds.items()),
        tuple(_entry(values[made], of=of) for of, made in gradient.adjoints.items()),
        keep if isinstance(keep, (str, int)) else list(keep),
        None if None in sizes else sum(size or 0 for size in sizes),
    )
    made = gradient.program
    return Split(
        gradient,
        _part(made, given, [*outputs, *(v.name for v in more)], ()),
        _part(made, [*residuals, *gradient.seeds.values()], gradient.adjoints.values(), residuals),
        manifest,
        len(found.again),
    )


def _part_pools(block: BindingBlock, outputs: Collection[str]) -> None:
    """Moves the indices of each MaxPool to a copy in the backward part.

    onnxruntime's kernel with indices takes many times as long as the one without.
    """
    forward = _ancestors(block, [v for v in block.outputs if v.name in outputs])
    for b in [b for b in forward if b.is_op("MaxPool") and len(b.outputs) == _WITH_INDICES]:
        indices = b.outputs[1]
        if indices is None or indices.returned or any(u in forward for u in indices.users):
            continue
        (twin,) = clone_bindings([b], block, {}, prefix="again_")
        again = twin.result(1)
        if again is not None:
            again.type = indices.type
            block.replace(indices, again)
        b.drop_result(1)


def _fixed(bindings: Iterable[Binding]) -> set[Binding]:
    """Returns the Constants, and the bindings whose small results depend on constants alone, such
    as axes that an exporter reshapes: both parts compute them, because a residual in their place
    would hide them from inference.
    """
    found = set[Binding]()
    for b in bindings:
        small = all(v is not None and (byte_count(v.type) or _SMALL) < _SMALL for v in b.outputs)
        alone = not b.domain and not b.blocks and not draws(b)
        alone = alone and all(v.is_constant or v.definition in found for v in b.reads())
        if b.is_op("Constant") or (small and alone):
            found.add(b)
    return found


def _is_fused(v: Var, forward: Collection[Binding]) -> bool:
    """Whether onnxruntime has no node for a value of the forward part, unless the graph returns it:
    a copy, or a scaled operand, which it fuses into the MatMul that reads it.
    """
    b, users = v.definition, [u for u in v.users if u in forward]
    if b is not None and b.is_op("Identity"):
        return True
    if b is None or b.op not in ("Mul", "Div") or len(users) != 1 or not users[0].is_op("MatMul"):
        return False
    return any(w is not None and w.is_constant and w.shape in ((), (1,)) for w in b.inputs)


def _ancestors(block: BindingBlock, ends: Iterable[Var]) -> set[Binding]:
    """Returns the bindings on which these values depend."""
    block.schedule()
    needed, found = set(ends), set[Binding]()
    for b in reversed(block.bindings):
        if not needed.isdisjoint(v for v in b.outputs if v is not None):
            found.add(b)
            needed.update(b.reads())
    return found


def _origin(v: Var, inputs: Sequence[Var], free: Mapping[Var, None]) -> Origin:
    return "input" if v in inputs else "output" if v in free else "forward"


def _entry(v: Var, *, of: str | None = None, origin: Origin | None = None) -> Entry:
    dtype = dtype_name(v.dtype) if isinstance(v.type, TensorType) else str(v.type)
    return Entry(v.name, dtype, v.shape, of, origin)


def _part(
    program: Program, inputs: Iterable[str], outputs: Iterable[str], given: Iterable[str]
) -> Program:
    """Returns a copy with these inputs and outputs. Values in `given` become inputs, and inputs
    that are read and have a value in the file stay.
    """
    made = load_own(program)
    block = made.main
    values = {v.name: v for v in block.vars()}
    for v in dict.fromkeys(block.outputs):
        block.remove_output(v)
    for name in outputs:
        block.add_output(values[name])
    for name in given:
        values[name] = cut(made, values[name])
    block.remove_unused()
    optional = [v for v in block.inputs if v.initializer is not None]
    block.inputs = list(
        dict.fromkeys([values[n] for n in inputs] + [v for v in optional if v.use_count])
    )
    for v in set(optional).difference(block.inputs):
        v.is_input = False
    block.touch()
    for v in [v for v in block.initializers.values() if not v.use_count and not v.is_input]:
        block.remove_initializer(v)
    RemoveUnusedFunctions().run(made, Trace())
    return made


def save_split(split: Split, forward: Path, backward: Path) -> Path:
    """Writes both parts and the manifest beside them, or nothing. Returns the manifest's path.

    Raises InputError for paths in different folders and if a file cannot be written.
    """
    if forward.resolve().parent != backward.resolve().parent:
        raise InputError(f"{forward} and {backward}: both parts belong into one folder")
    files = {"forward": forward.name, "backward": backward.name}
    programs: dict[str, Content] = {files[k]: getattr(split, k) for k in files}
    manifest = manifest_of(backward)

    def described(staged: Mapping[Path, Path]) -> bytes:
        paths = {k: staged[forward.resolve().parent / name] for k, name in files.items()}
        found = {k: hashlib.sha256() for k in paths}
        for k, path in paths.items():
            hash_file(found[k], path)
        sha256 = {k: digest.hexdigest() for k, digest in found.items()}
        return split.manifest.to_json(**files, sha256=sha256).encode()

    save_together(forward.parent, {**programs, manifest.name: described})
    return manifest


def manifest_of(backward: Path) -> Path:
    """Returns the path of the manifest beside this file."""
    return backward.with_suffix(".json")


def as_functions(split: Split) -> Program:
    """Returns one model that calls both parts as its functions `forward` and `backward`.

    It returns the outputs and the gradients. Weights are operands of both functions.
    """
    parts = {"forward": split.forward, "backward": split.backward}
    protos = {name: to_proto(part) for name, part in parts.items()}
    model = ModelProto()
    model.CopyFrom(to_proto(split.program))
    graph = model.graph
    weights = {t.name for t in graph.initializer}
    for field in ("node", "value_info", "sparse_initializer"):
        graph.ClearField(field)
    model.ir_version = max(model.ir_version, _FUNCTIONS_SINCE)
    for name, proto in protos.items():
        function = model.functions.add(domain=_DOMAIN, name=name)
        function.opset_import.extend(proto.opset_import)
        function.input.extend(v.name for v in proto.graph.input)
        read = [t.name for t in proto.graph.initializer if t.name not in function.input]
        function.input.extend(n for n in read if n in weights)
        function.output.extend(v.name for v in proto.graph.output)
        function.node.extend(proto.graph.node)
        graph.node.append(
            helper.make_node(name, function.input, function.output, name, domain=_DOMAIN)
        )
    known = {o.domain for o in model.opset_import}
    if _DOMAIN not in known:
        model.opset_import.add(domain=_DOMAIN, version=1)
    return program_of(model, split.program.folder, None, split.program.digests)
