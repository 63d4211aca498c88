"""The values to differentiate with respect to, by names, globs or "params". Requested weights of
nested graphs move to the main graph.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import SparseTensorProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.paths import reaching
from onnxgrad.grad.sequences import is_float
from onnxgrad.grad.straight_through import why_zero
from onnxgrad.grad.weights.decision import Decision, decide
from onnxgrad.grad.weights.kept import check_replaceable
from onnxgrad.ir import attributes
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import add_sparse, sparse_tensors
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import COMMA, with_commas
from onnxgrad.wording import option, perhaps, what_there_is

Wrt: TypeAlias = "str | Sequence[str] | None"


# ---- names, globs, "params" ----------------------------------------------------------------------


PARAMS = "params"

# a comma inside of brackets belongs to a glob


def find_wrt(
    block: BindingBlock,
    wrt: Wrt,
    targets: Sequence[Var],
    values: Mapping[str, Var],
    *,
    ste: bool = False,
) -> list[Var]:
    """Returns the values to differentiate with respect to, among the model's own `values`, in the
    order of the request. The matches of a glob are in the model's order.

    None stands for every floating-point input, including sequences; "params" for the weights that
    reach a target. An entry that begins with `!` removes values that the entries before it named.
    Raises InputError for an unknown name, a name given twice, a value that is not a floating-point
    tensor or is a measure of Resize, a glob without a match, an entry that removes nothing, an
    empty result, and a model without a floating-point input.
    """
    if wrt is None:
        return _float_inputs(block)
    found: dict[Var, None] = {}
    named: set[str] = set()
    for entry in entries_of(wrt, values):
        if entry in named:
            raise InputError(f"'{entry}' is given twice in wrt")
        named.add(entry)
        if entry.startswith("!") and entry not in values:
            found = dict.fromkeys(_without(found, entry))
        elif entry == PARAMS and entry not in values:
            found.update(dict.fromkeys(parameters(block, targets, values, ste=ste)))
        else:
            chosen = _named(block, entry, values)
            check_replaceable(block.program, [v.name for v in chosen], "the gradient by")
            found.update(dict.fromkeys(chosen))
    if not named:
        raise InputError("wrt names nothing to differentiate with respect to")
    if not found:
        raise InputError("wrt leaves nothing: every value that it names is taken away again")
    return list(found)


def _float_inputs(block: BindingBlock) -> list[Var]:
    inputs = [v for v in block.inputs if v.initializer is None and is_float(v)]
    if inputs:
        return inputs
    listed = ", ".join(f"{v.name}: {v.type or '?'}" for v in block.inputs) or "none"
    where = option("--wrt, or --wrt params", 'wrt, or wrt="params"')
    raise InputError(
        f"the model has no floating-point input (inputs: {listed}): name weights or intermediate "
        f"values in {where}"
    )


def _named(block: BindingBlock, entry: str, values: Mapping[str, Var]) -> list[Var]:
    """Returns the value of that name, or the values that a glob matches."""
    if entry in values:
        if not is_float(v := values[entry]):
            raise InputError(
                f"wrt '{entry}' is {v.type or 'of unknown type'}, not a floating-point tensor"
            )
        return [_differentiable(v)]
    if is_glob(entry):
        return _matching(entry, values)
    inputs = [v.name for v in block.inputs if v.initializer is None]
    raise InputError(
        f"wrt '{entry}' is not a value of the "
        f"model{perhaps(entry, values, 3)}{inside(block, entry)}; its inputs are "
        f"{', '.join(inputs[:8])}{', ...' if len(inputs) > 8 else ''}, and "
        f"{option('`onnxgrad inspect --text`', '`print(onnxgrad.load(model).main)`')} lists all"
    )


# float operands that determine the position or size of a result; the rules have no formula for them
_MEASURES = {("", "Resize"): {1: "roi", 2: "scales"}}


def _differentiable(v: Var) -> Var:
    """Returns `v`. Raises InputError for a measure, whose gradient would be a wrong zero."""
    for b in v.users:
        for index, name in _MEASURES.get((b.domain, b.op), {}).items():
            if index < len(b.inputs) and b.inputs[index] is v:
                raise InputError(
                    f"wrt '{v.name}' is the {name} of '{b}': the positions that {b.op} reads move "
                    "with it, which no gradient rule expresses: leave it out of wrt"
                )
    return v


def _matching(pattern: str, values: Mapping[str, Var]) -> list[Var]:
    """Returns the inputs and weights that a glob matches; if there are none, any other values."""
    matching = [
        v for name, v in values.items() if is_float(v) and fnmatch.fnmatchcase(name, pattern)
    ]
    outer = [v for v in matching if v.definition is None or v.is_constant]
    if not matching:
        own = (v.name for v in values.values() if is_float(v) and v.definition is None)
        raise InputError(
            f"wrt '{pattern}' matches no floating-point value of the model{what_there_is(own)}"
        )
    return outer or matching


def _without(found: Collection[Var], entry: str) -> list[Var]:
    kept = [v for v in found if not fnmatch.fnmatchcase(v.name, entry[1:])]
    if len(kept) == len(found):
        raise InputError(
            f"wrt '{entry}' takes nothing away: it matches no value that the entries before it name"
        )
    return kept


def entries_of(wrt: Wrt, names: Container[str]) -> list[str]:
    """Returns the names, globs and PARAMS of a request, in order. An entry with commas is split
    unless it is the name of a value.
    """
    entries = [wrt] if isinstance(wrt, str) else list(wrt or ())
    parts = [
        part
        for e in entries
        for part in ([e] if e in names else [p.strip() for p in COMMA.split(e)])
    ]
    return [*with_commas(parts, names)]


def is_glob(entry: str) -> bool:
    """Whether the entry is a pattern of names."""
    return any(c in entry for c in "*?[")


def inside(block: BindingBlock, name: str) -> str:
    """Returns a text that names the nested graph with a value of that name; empty if none has."""
    for b in block.walk():
        for kind, inner in b.blocks.items():
            if any(v.name == name for v in inner.vars()):
                return f": it is local to {kind} of '{b}'"
    return ""


# ---- weights -------------------------------------------------------------------------------------


def parameters(
    block: BindingBlock, targets: Iterable[Var], values: Mapping[str, Var], *, ste: bool = False
) -> list[Var]:
    """Returns the weights that reach a target, in the model's order, including dequantised
    integers.

    Raises InputError with the reason if there is none.
    """
    targets = list(targets)
    decisions = weigh(block, targets, values)
    found = [v for v, decision in decisions.items() if decision.is_weight]
    if not found:
        raise _no_weight(block, targets, values, decisions, ste)
    return found


def weigh(
    block: BindingBlock, targets: Iterable[Var], values: Mapping[str, Var]
) -> dict[Var, Decision]:
    """Returns the decision for each floating-point constant that reaches a target, in the model's
    order.
    """
    reached = reaching(block, targets)
    return decide(block.program, [v for v in float_constants(block, values) if v in reached])


def float_constants(block: BindingBlock, values: Mapping[str, Var]) -> list[Var]:
    """Returns floating-point initializers and Constants, and dequantised integer ones."""
    sparse = set(block.sparse)
    return [
        v
        for v in values.values()
        if v.dtype in FLOAT_DTYPES
        and (v.initializer is not None or v.is_constant or v in sparse or _is_dequantized(v))
    ]


def _is_dequantized(v: Var) -> bool:
    """Whether the value is a constant that the file stores as integers."""
    b = v.definition
    return (
        b is not None
        and b.is_op("DequantizeLinear")
        and b.inputs[0] is not None
        and b.inputs[0].is_constant
    )


def _no_weight(
    block: BindingBlock,
    targets: Sequence[Var],
    values: Mapping[str, Var],
    decisions: Mapping[Var, Decision],
    ste: bool,
) -> InputError:
    arrays = [v for v in float_constants(block, values) if v.shape != ()]
    constants = [v for v in values.values() if v.initializer is not None or v.is_constant]
    why = why_zero(block, arrays or constants, targets, ste=ste)
    if decisions and not why:
        v, decision = next(iter(decisions.items()))
        listing = option("`onnxgrad inspect --weights`", "`onnxgrad.weights(model)`")
        why = f"'{v.name}' is none ({decision.why}); {listing} lists all"
    what = "weight" if decisions else "float initializer or Constant"
    return InputError(
        f'wrt="params": the model has no {what} that reaches the target{": " if why else ""}{why}'
    )


# ---- weights of If, Loop and Scan: only the main graph can return their adjoints -----------------


def hoist_requested(program: Program, wrt: Wrt) -> None:
    """Moves the weights of nested graphs that `wrt` requests, by "params" or by name, to the main
    graph.

    An unknown name may be the new name of such a weight, if several have the same name.
    """
    inner = nested_constants(program)
    outer = {v.name for v in program.main.vars()}
    names = outer | {v.name for v in inner}
    entries = entries_of(wrt, names)
    strange = any(e not in names and not e.startswith("!") and not is_glob(e) for e in entries)
    chosen = {v for v in inner if v.name in entries and v.name not in outer}
    if inner and (PARAMS in entries or strange):
        chosen |= {v for v, decision in decide(program, inner).items() if decision.is_weight}
    hoist(program, [v for v in inner if v in chosen])


def nested_constants(program: Program) -> list[Var]:
    """Returns the floating-point initializers and Constants of nested graphs."""
    inner = blocks_in(program.main)[1:]
    return [v for block in inner for v in block.vars() if is_float_constant(v)]


def hoist(program: Program, chosen: Collection[Var]) -> None:
    """Makes these `nested_constants`, or Constants of the main graph, initializers of the main
    graph. A name that another value shares gets a suffix: two branches may each have a weight `w`.
    """
    if not chosen:
        return
    shared = Counter(v.name for block in program.blocks() for v in block.vars())
    for v in chosen:
        tensor, block, definition = _tensor(v), v.block, v.definition
        name = program.names.fresh(v.name) if shared[v.name] > 1 else v.name
        if isinstance(tensor, SparseTensorProto):
            if definition is None:  # it stays, unread, under another name
                v.rename(program.names.fresh(name))
            block.replace(v, add_sparse(program.main, tensor, name))
        else:
            copy = copy_of(tensor)
            copy.name = name
            block.replace(v, program.main.add_initializer(copy))
            if definition is None:
                block.remove_initializer(v)
        if definition is not None:
            block.remove(definition)


def is_float_constant(v: Var) -> bool:
    """Whether the file stores the value as a floating-point tensor, dense or sparse."""
    kinds = (TensorProto, SparseTensorProto)
    return not v.is_input and v.dtype in FLOAT_DTYPES and isinstance(_tensor(v), kinds)


def _tensor(v: Var) -> Any:
    """Returns the tensor that the file stores for a constant, None for any other value."""
    if v.definition is None:  # a sparse one that was hoisted is still there
        return (
            v.initializer
            if v.initializer is not None or not v.use_count
            else dict(sparse_tensors(v.block)).get(v)
        )
    if not v.is_constant:
        return None
    attrs = v.definition.attrs
    return attrs["sparse_value"] if "sparse_value" in attrs else attributes.constant_value(attrs)
