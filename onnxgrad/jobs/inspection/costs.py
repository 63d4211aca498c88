"""The costs of a model with known sizes: operations, weights, and memory of values.

Unknown costs are counted as unknown, never as zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import TensorType, byte_count
from onnxgrad.ir.var import Var
from onnxgrad.jobs.inspection.operator_costs import flops, has_formula
from onnxgrad.jobs.surgery.fixed_dims import fix
from onnxgrad.passes.inline import Inline
from onnxgrad.results import Plain
from onnxgrad.rewrite.trace import Trace

_LARGEST = 30  # weights and values that are listed


@frozen
class OperatorCost:
    """All nodes of one operator: operations, bytes of results, and the number of nodes for which
    each is unknown.
    """

    flops: int = 0
    bytes: int = 0
    unknown_flops: int = 0
    unknown_bytes: int = 0


@frozen
class Sized:
    """A weight or a value with its bytes."""

    name: str
    type: str
    bytes: int


@frozen
class Costs(Plain):
    """`operators`: by name. `weights`, `values`: the largest ones; values are those of the main
    graph, and `unknown_values` counts those of unknown size. `peak`: the most bytes of inputs and
    values at one time, in the order of the file, None if a size is open. `open`: symbols of inputs
    without a size. `without_formula`: operators without a cost formula.
    """

    json_keys = (
        "flops nodes_of_unknown_flops=unknown operators weight_bytes largest_weights=weights "
        "largest_values=values values_of_unknown_size=unknown_values peak_bytes=peak "
        "open_sizes=open without_formula"
    )

    operators: Mapping[str, OperatorCost] = field(default_factory=dict)
    weights: list[Sized] = field(default_factory=list)
    weight_bytes: int = 0
    values: list[Sized] = field(default_factory=list)
    unknown_values: int = 0
    peak: int | None = None
    open: list[str] = field(default_factory=list)
    without_formula: list[str] = field(default_factory=list)

    @property
    def flops(self) -> int:
        """The operations of all operators with known costs."""
        return sum(o.flops for o in self.operators.values())

    @property
    def unknown(self) -> int:
        """The number of nodes with unknown operations."""
        return sum(o.unknown_flops for o in self.operators.values())


def costs_of(
    program: Program, proto: ModelProto, dims: Mapping[str, int], *, spare: bool = False
) -> Costs:
    """Returns the costs of a program, which `proto` contains, with these sizes of symbols.
    Functions cost as much as their bodies. spare: the program is not used afterwards, so its calls
    may be inlined in place. Raises InputError for an unknown symbol.
    """
    if spare and not dims:
        program = _opened(program) if program.functions else program
    elif dims or program.functions:
        made = copy_of(proto)
        fix(made, dims, ("--dim", "dims"))
        program = _opened(program_of(made, program.folder))
    account = _Account()
    account.block(program.main, 1)
    block = program.main
    weights = [v for b in program.blocks() for v in b.initializers.values()]
    weights += [b.out for b in program.main.walk() if b.is_op("Constant")]
    values = [v for b in block.bindings if not b.is_op("Constant") for v in _results(b)]
    sizes = [v.shape for v in block.inputs if v.initializer is None]
    symbols = [d for shape in sizes for d in shape or () if isinstance(d, str)]
    return Costs(
        account.found(),
        _largest(weights),
        sum(byte_count(v.type) or 0 for v in weights),
        _largest(values),
        sum(byte_count(v.type) is None for v in values),
        _peak(block),
        list(dict.fromkeys(symbols)),
        list(account.without_formula),
    )


def _opened(program: Program) -> Program:
    """Returns the program with the bodies of functions inlined, unless there are too many nodes."""
    try:
        Inline(names="*").run(program, Trace())
    except InputError:  # too many nodes: the calls stay, with unknown costs
        return program
    return program


class _Account:
    """Costs by operator."""

    def __init__(self) -> None:
        self.sums: dict[str, Counter[str]] = {}
        self.without_formula: dict[str, None] = {}

    def found(self) -> dict[str, OperatorCost]:
        return {name: OperatorCost(**counts) for name, counts in self.sums.items()}

    def block(self, block: BindingBlock, times: int | None) -> None:
        """Counts a block that runs `times` times; None: unknown."""
        for b in block.bindings:
            self._binding(b, times)
            if b.is_op("If"):
                self._dearest(list(b.blocks.values()), times)
            else:
                steps = _steps(b) if b.blocks else 1
                inner = None if times is None or steps is None else times * steps
                for nested in b.blocks.values():
                    self.block(nested, inner)

    def _binding(self, b: Binding, times: int | None) -> None:
        name = domains.full_name(b.domain, b.op)
        counts = self.sums.setdefault(name, Counter())
        own = 0 if b.blocks else flops(b)
        if own is None and not has_formula(b):
            self.without_formula[name] = None
        _add(
            counts, "flops", None if own is None or (own and times is None) else own * (times or 1)
        )
        sizes = [byte_count(v.type) for v in _results(b)]
        known = [s for s in sizes if s is not None]
        _add(counts, "bytes", sum(known) if len(known) == len(sizes) else None)

    def _dearest(self, branches: list[BindingBlock], times: int | None) -> None:
        """Counts the most expensive branch, because only one of them runs."""
        tried = []
        for branch in branches:
            account = _Account()
            account.block(branch, times)
            total = sum(c["flops"] for c in account.sums.values())
            tried.append((sum(c["unknown_flops"] for c in account.sums.values()), total, account))
        dearest = max(tried, key=lambda t: t[:2], default=(0, 0, _Account()))[2]
        for name, counts in dearest.sums.items():
            self.sums.setdefault(name, Counter()).update(counts)
        self.without_formula |= dearest.without_formula


def _add(counts: Counter[str], what: str, value: int | None) -> None:
    if value is None:
        counts[f"unknown_{what}"] += 1
    else:
        counts[what] += value


def _steps(b: Binding) -> int | None:
    """Returns the number of runs of the graphs inside a binding, or None."""
    if b.is_op("Loop"):
        count = b.operand(0)
        # a condition may end it earlier
        array = None if count is None or b.operand(1) is not None else count.const
        return None if array is None else int(array.reshape(()))
    if b.is_op("Scan"):
        scanned = int(b.attr("num_scan_inputs"))
        first = b.inputs[len(b.inputs) - scanned]
        axes = b.attr("scan_input_axes") or [0]
        steps = None if first is None or not first.shape else first.shape[axes[0]]
        return steps if isinstance(steps, int) else None
    return None


def _results(b: Binding) -> list[Var]:
    return [v for v in b.outputs if v is not None]


def _largest(values: Iterable[Var]) -> list[Sized]:
    tensors = [v for v in values if isinstance(v.type, TensorType)]
    sizes = ((v, byte_count(v.type)) for v in tensors)
    sized = [Sized(v.name, str(v.type), size) for v, size in sizes if size is not None]
    return sorted(sized, key=lambda one: -one.bytes)[:_LARGEST]


def _peak(block: BindingBlock) -> int | None:
    """Returns the most bytes of inputs and values at one time: inputs always, a value from its
    computation to its last reader.
    """
    last: dict[Var, int] = {}
    for i, b in enumerate(block.bindings):
        last |= dict.fromkeys(b.reads(), i)
    last |= {v: len(block.bindings) for v in (*block.inputs, *block.outputs)}
    held = [v for v in block.inputs if v.initializer is None]
    sizes: dict[Var, int] = {}
    for v in [*held, *(v for b in block.bindings for v in _results(b) if not b.is_op("Constant"))]:
        size = byte_count(v.type)
        if size is None:
            return None
        sizes[v] = size
    ends: dict[int, list[Var]] = {}
    for v in sizes:
        ends.setdefault(last.get(v, -1), []).append(v)
    now = most = sum(sizes[v] for v in held)
    for i, b in enumerate(block.bindings):
        inside = [_peak(nested) for nested in b.blocks.values()]
        if None in inside:
            return None
        now += sum(sizes.get(v, 0) for v in _results(b))
        most = max(most, now + max([n for n in inside if n is not None], default=0))
        unread = sum(sizes.get(v, 0) for v in _results(b) if v not in last)
        now -= unread + sum(sizes[v] for v in ends.get(i, ()))
    return most
