"""Lints: what is probably wrong with a model, found before its proof, and on the proof's runs.

`LINTS` is the table of all lints. A lint reads the program, or the report of the proof, and yields
texts; each becomes a finding with the level of the recipe. A finding of the level `error` refuses
the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.domains import RANDOM, full_name
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import elements, every_graph, model_nodes
from onnxgrad.ir.storage.external_data import pieces
from onnxgrad.ir.types import TensorType, is_static
from onnxgrad.ir.var import Var
from onnxgrad.results import Plain
from onnxgrad.verify import Report
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.installed import runtime_limits
from onnxgrad.verify.running.session import kernels
from onnxgrad.vocabulary import LintLevel
from onnxgrad.wording import first_of

_NAMES = 3  # of nodes and values in a finding


@dataclass(frozen=True)
class Finding(Plain):
    """One line about a model: the name of the lint, its level (error or warn), and the text."""

    lint: str
    level: LintLevel
    text: str

    def __str__(self) -> str:
        return f"{'error' if self.level == 'error' else 'warning'}: {self.text} [{self.lint}]"


class Refused(NotProved):
    """A lint found something whose level is `error`."""


# ---- weights ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a constant: how many are NaN and infinite, whether all are zero, and whether
    a finite one is neither 0 nor 1.
    """

    nan: int = 0
    infinite: int = 0
    zero: bool = True
    other: bool = False

    def __add__(self, more: _Numbers) -> _Numbers:
        return _Numbers(
            self.nan + more.nan,
            self.infinite + more.infinite,
            self.zero and more.zero,
            self.other or more.other,
        )


# float types -> their numpy type in a file; the bits of 16-bit types are compared, because numpy
# has no fast minimum of them
_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.DOUBLE: "<f8",
    TensorProto.FLOAT16: "<u2",
    TensorProto.BFLOAT16: "<u2",
}
_INFINITY: Mapping[int, int] = {TensorProto.FLOAT16: 0x7C00, TensorProto.BFLOAT16: 0x7F80}
_ONE: Mapping[int, int] = {TensorProto.FLOAT16: 0x3C00, TensorProto.BFLOAT16: 0x3F80}
_PIECE = 1 << 20  # elements that are looked at together


def _numbers_of(data: bytes, dtype: int) -> _Numbers:
    """Returns the numbers in the raw data of a tensor; one pass over finite data."""
    found, whole = _Numbers(), np.frombuffer(data, _TYPES[dtype])
    for start in range(0, whole.size, _PIECE):
        found += _of_piece(whole[start : start + _PIECE], dtype)
    return found


def _of_piece(a: np.ndarray, dtype: int) -> _Numbers:
    if dtype in _INFINITY:
        bits, top = a & 0x7FFF, _INFINITY[dtype]
        most = int(bits.max())
        if most < top:
            return _Numbers(zero=most == 0, other=most not in (0, _ONE[dtype]))
        nan, infinite, finite = bits > top, bits == top, bits[bits < top]
        other = bool(((finite != 0) & (finite != _ONE[dtype])).any())
        return _Numbers(int(nan.sum()), int(infinite.sum()), zero=False, other=other)
    low, high = a.min(), a.max()
    if np.isfinite(low) and np.isfinite(high):
        return _Numbers(zero=bool(low == high == 0), other=bool({low, high} - {0, 1}))
    nan, infinite = np.isnan(a), np.isinf(a)
    finite = a[np.isfinite(a)]
    other = bool(((finite != 0) & (finite != 1)).any())
    return _Numbers(int(nan.sum()), int(infinite.sum()), zero=False, other=other)


@dataclass
class Model:
    """A program under lint. What several lints ask for is found once."""

    program: Program
    unreadable: dict[str, str] = field(default_factory=dict)  # the error, by constant

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every binding, those of nested blocks and functions included."""
        return [b for block in self.program.blocks() for b in block.bindings]

    @cached_property
    def constants(self) -> dict[Var, _Numbers]:
        """The numbers of every floating-point constant; each weight is read once."""
        found: dict[Var, _Numbers] = {}
        known: dict[tuple[tuple[str, str], ...], _Numbers] = {}
        for v, tensor in self._tensors():
            place = tuple((e.key, e.value) for e in tensor.external_data)
            if place not in known or not place:
                try:
                    known[place] = self._read(tensor)
                except InputError as error:
                    self.unreadable[v.name] = str(error)
                    continue
            found[v] = known[place]
        return found

    def _tensors(self) -> Iterator[tuple[Var, TensorProto]]:
        for block in self.program.blocks():
            for v in block.initializers.values():
                if v.initializer is not None and v.initializer.data_type in _TYPES:
                    yield v, v.initializer
        for b in self.bindings:
            value = b.attrs.get("value") if b.op == "Constant" and b.domain == "" else None
            if isinstance(value, TensorProto) and value.data_type in _TYPES and b.outputs[0]:
                yield b.outputs[0], value

    def _read(self, tensor: TensorProto) -> _Numbers:
        dtype = tensor.data_type
        if tensor.data_location == TensorProto.EXTERNAL:
            parts: Iterable[bytes] = pieces(tensor, self.program.folder)
        elif tensor.HasField("raw_data"):
            parts = [tensor.raw_data]
        else:
            parts = [elements(tensor).tobytes()]
        found = _Numbers()
        for data in parts:
            found += _numbers_of(data, dtype)
        return found


def _sorted_by(count: Mapping[str, int]) -> list[str]:
    return sorted(count, key=lambda name: -count[name])


def _nan_weights(model: Model) -> Iterator[str]:
    count = {v.name: n.nan for v, n in model.constants.items() if n.nan}
    if count:
        yield f"{_numbers('NaN', count)} in {_listed('weight', _sorted_by(count))}"


def _infinite_weights(model: Model) -> Iterator[str]:
    # a mask holds infinities beside zeros and ones, and a bound of Clip is a single one
    count = {v.name: n.infinite for v, n in model.constants.items() if n.infinite and n.other}
    if count:
        yield f"{_numbers('infinity', count)} in {_listed('weight', _sorted_by(count))}"


def _numbers(what: str, count: Mapping[str, int]) -> str:
    total = sum(count.values())
    return what if total == 1 else f"{total:,} numbers are {what}"


def _listed(what: str, names: Iterable[str]) -> str:
    """Returns the names with their kind: `weight 'w'`, `weights 'a', 'b' and 3 more`."""
    quoted = [f"'{name}'" for name in names]
    return f"{what}{'s' if len(quoted) > 1 else ''} {first_of(quoted, _NAMES)}"


def _missing_weights(model: Model) -> Iterator[str]:
    model.constants  # noqa: B018  # reads them
    if model.unreadable:
        more = f" (and {len(model.unreadable) - 1} more)" if len(model.unreadable) > 1 else ""
        yield f"{next(iter(model.unreadable.values()))}{more}"


# ---- values -------------------------------------------------------------------------------------

# operators whose result is zero if one of these operands is
_ANNIHILATED: Mapping[str, tuple[int, ...]] = {
    "Mul": (0, 1),
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Conv": (1,),
    "ConvTranspose": (1,),
}


def _dead_outputs(model: Model) -> Iterator[str]:
    main = model.program.main
    live = {v for v in main.inputs if not v.is_constant}
    for b in main.in_order():
        if any(v in live for v in _decisive(b, model)) or _draws(b):
            live.update(v for v in b.outputs if v is not None)
    dead = [v.name for v in main.outputs if v not in live]
    if dead and main.inputs:
        are = "is" if len(dead) == 1 else "are"
        yield f"{_listed('output', dead)} {are} constant, whatever the inputs"


def _decisive(b: Binding, model: Model) -> list[Var]:
    """Returns the operands on which the results depend: none of a product with zeros, and not the
    elements of a tensor of which only a fixed size is read.
    """
    if b.domain == "" and b.op in _ANNIHILATED:
        for i in _ANNIHILATED[b.op]:
            v = b.operand(i)
            if v is not None and v in model.constants and model.constants[v].zero:
                return [v for v in b.inputs[2:] if v is not None]
    if b.domain == "" and b.op in ("Shape", "Size") and b.inputs and b.inputs[0] is not None:
        kind = b.inputs[0].type
        if isinstance(kind, TensorType) and kind.shape is not None and is_static(kind.shape):
            return []
    return [v for v in b.reads() if v is not None]


def _draws(b: Binding) -> bool:
    """Whether the binding, or one of its nested blocks, draws random numbers."""
    return any(map(draws, (b, *(n for block in b.blocks.values() for n in block.walk()))))


def _unread_inputs(model: Model) -> Iterator[str]:
    main = model.program.main
    names = [v.name for v in main.inputs if v.initializer is None and not v.use_count]
    if names:
        yield f"nothing reads {_listed('input', names)}"


def _float64_islands(model: Model) -> Iterator[str]:
    def computes(b: Binding) -> bool:
        wide = any(v is not None and v.dtype == TensorProto.DOUBLE for v in b.outputs)
        return wide and b.op not in ("Cast", "Constant", "Identity")

    main = model.program.main
    given = {v.dtype for v in main.inputs} | {v.dtype for v in main.initializers.values()}
    narrow = given & {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    if not narrow or TensorProto.DOUBLE in {v.dtype for v in main.inputs}:
        return
    found = [b for b in model.bindings if computes(b)]
    if found:
        yield f"float64 in a model of narrower floats: {_nodes(found)}"


def _nodes(found: list[Binding]) -> str:
    """Returns the first node, by operator and name, and the number of the others."""
    names = [f"{b.op} '{b.node.name or next(filter(None, b.node.output), '')}'" for b in found]
    return first_of(names, 1)


# ---- operators ----------------------------------------------------------------------------------


def _training_mode(model: Model) -> Iterator[str]:
    found = [b for b in model.bindings if b.domain == "" and _trains(b)]
    if found:
        yield f"training mode, in which results depend on the batch or on chance: {_nodes(found)}"


def _trains(b: Binding) -> bool:
    if b.op == "BatchNormalization":
        return bool(b.attrs.get("training_mode") == 1)
    if b.op != "Dropout":
        return False
    ratio, mode = b.operand(1), b.operand(2)
    nothing = ratio is not None and ratio.const is not None and not ratio.const.any()
    return mode is not None and mode.const is not None and bool(mode.const.any()) and not nothing


def _random_operators(model: Model) -> Iterator[str]:
    found = [b for b in model.bindings if b.domain == "" and b.op in RANDOM]
    if found:
        yield f"random numbers, so two runs differ: {_nodes(found)}"


# every supported onnxruntime has kernels for the operators of this opset and before
_OLD = 21


def _missing_kernels(model: Model) -> Iterator[str]:
    program = model.program
    if program.opset <= _OLD:
        return
    try:
        newest = runtime_limits()[1]
        if program.opset > newest:
            yield f"opset {program.opset} is newer than the installed onnxruntime reads ({newest})"
            return
        known = kernels()
    except (InputError, RunFailed):  # no onnxruntime, or it does not start
        return
    lacking = [b for b in model.bindings if b.domain == "" and not _has_kernel(b, program, known)]
    if lacking:
        names = first_of(list(dict.fromkeys(full_name(b.domain, b.op) for b in lacking)), _NAMES)
        yield f"the installed onnxruntime has no kernel for {names} of opset {program.opset}"


def _has_kernel(b: Binding, program: Program, known: Mapping[str, list[tuple[int, int]]]) -> bool:
    """Whether onnxruntime has a kernel for an operator, of any type, or opens its function body."""
    schema = attributes.schema(b.op, program.opset, b.domain)
    if (
        schema is None
        or b.op == "Constant"
        or (b.domain, b.op, b.node.overload) in program.functions
    ):
        return True
    if schema.has_function or schema.has_context_dependent_function:  # type: ignore[attr-defined]  # onnx's stub lacks them
        return True
    since = schema.since_version
    ranges = known.get(full_name(b.domain, b.op), [])
    # a kernel without an end is only known to be right for the version that it names
    return any(a == since or (end != _OPEN and a <= since <= end) for a, end in ranges)


_OPEN = (1 << 31) - 1

# ---- the exporting machine ----------------------------------------------------------------------

# parts of texts with a path of a machine or a frame of a traceback, which are quick to find
_FOLDERS = ("home", "Users", "root", "mnt", "tmp")
_MARKS = ('File "', '.py"', ".py:", ".py,", *(f"/{name}/" for name in _FOLDERS), ":\\")
# a whole path
_PATH = re.compile(
    r"(?:[A-Za-z]:\\(?:[^\\/:*?\"<>|\s]+\\)*[^\\/:*?\"<>|\s]+)"
    r"|(?:(?:/[\w.@+-]+)+\.py\b)|(?:/(?:home|Users|root|mnt|tmp)(?:/[\w.@+-]+)+)|(?:[\w./]+\.py\b)"
)


def _host_paths(model: Model) -> Iterator[str]:
    proto = model.program.proto
    messages = (proto, *proto.functions, *every_graph(proto.graph), *model_nodes(proto))
    for text in (text for message in messages for text in _texts(message)):
        if _is_of_a_machine(text) and (path := _PATH.search(str(text))):
            yield (
                "paths or source code of the exporting machine in doc strings or metadata, such as "
                f"{path[0][:120]}"
            )
            return


def _texts(message: Any) -> Iterator[str | bytes]:
    yield message.doc_string
    for entry in message.metadata_props:
        yield entry.value


def _is_of_a_machine(text: str | bytes) -> bool:
    # protobuf returns bytes for text that is not UTF-8
    return isinstance(text, str) and any(mark in text for mark in _MARKS)


# ---- runs ---------------------------------------------------------------------------------------


def _nan_outputs(report: Report) -> Iterator[str]:
    on = "your inputs" if any(c.seed is None for c in report.cases) else "generated inputs"
    if report.infinite:
        yield f"NaN or infinity in {_listed('output', report.infinite)} on {on}"


# ---- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lint:
    """A lint: its name, what it finds, the function that reads a model or the report of its proof,
    and its default level.
    """

    name: str
    what: str
    model: Callable[[Model], Iterator[str]] | None = None
    report: Callable[[Report], Iterator[str]] | None = None
    level: LintLevel = "warn"


LINTS = {
    lint.name: lint
    for lint in (
        Lint("nan-weights", "NaN among the numbers of a constant", _nan_weights),
        Lint(
            "infinite-weights",
            "infinities beside numbers other than 0 and 1; masks and bounds are left out",
            _infinite_weights,
        ),
        Lint("missing-weights", "external data that cannot be read", _missing_weights),
        Lint(
            "dead-outputs",
            "outputs that no input reaches, also behind a product with zeros",
            _dead_outputs,
        ),
        Lint(
            "nan-outputs",
            "outputs with NaN or infinities on the inputs of the proof",
            report=_nan_outputs,
        ),
        Lint(
            "training-mode",
            "BatchNormalization with training_mode = 1, Dropout whose training_mode is true",
            _training_mode,
        ),
        Lint("random-operators", "operators that draw random numbers", _random_operators),
        Lint("unread-inputs", "inputs that nothing reads", _unread_inputs),
        Lint(
            "float64-islands",
            "nodes that compute in float64 if no input is float64 and others are float32 or less",
            _float64_islands,
        ),
        Lint(
            "missing-kernels",
            "an opset that the installed onnxruntime does not read, and operators of it for which "
            "the CPU has no kernel",
            _missing_kernels,
        ),
        Lint(
            "host-paths",
            "paths and source code of the exporting machine in doc strings and metadata",
            _host_paths,
        ),
    )
}


def lint(program: Program, levels: Mapping[str, LintLevel] | None = None) -> list[Finding]:
    """Returns the findings about a model, the errors first."""
    model = Model(program)
    return _found(levels, lambda one: one.model(model) if one.model else ())


def lint_report(report: Report, levels: Mapping[str, LintLevel] | None = None) -> list[Finding]:
    """Returns the findings about the runs of a proof."""
    return _found(levels, lambda one: one.report(report) if one.report else ())


def _found(
    levels: Mapping[str, LintLevel] | None, find: Callable[[Lint], Iterable[str]]
) -> list[Finding]:
    wanted = {name: (levels or {}).get(name, one.level) for name, one in LINTS.items()}
    found = [
        Finding(name, wanted[name], text)
        for name, one in LINTS.items()
        if wanted[name] != "off"
        for text in find(one)
    ]
    return sorted(found, key=lambda f: f.level != "error")


def refuse(findings: Iterable[Finding]) -> None:
    """Raises Refused if a finding is an error."""
    errors = [f"{f.text} [{f.lint}]" for f in findings if f.level == "error"]
    if errors:
        raise Refused(f"lint: {'; '.join(errors)}; nothing was written")
