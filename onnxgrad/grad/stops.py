"""Values at which gradients stop: their readers treat them as constants, and no adjoint flows to
their operands.

While the gradient is formed, their readers read a Stopped, an Identity whose derivative is zero.
The adjoint of the Stopped is returned as the adjoint of the value.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.grad.paths import reaching
from onnxgrad.grad.registry import INTERNAL, zero
from onnxgrad.grad.sequences import is_float
from onnxgrad.grad.wrt import entries_of, inside, is_glob
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.wording import perhaps

Stop: TypeAlias = "str | Sequence[str] | None"

STOPPED = "Stopped"
zero(f"{INTERNAL}::{STOPPED}", notes="a value at which gradients stop")


def find_stops(block: BindingBlock, stop: Stop, values: Mapping[str, Var]) -> list[Var]:
    """Returns the computed floating-point values that match the names and globs of `stop`.

    Raises InputError for an unknown name, a glob without a match, an input or weight, and a value
    that a nested graph returns.
    """
    computed = {
        name: v
        for name, v in values.items()
        if v.definition is not None and not v.is_constant and is_float(v)
    }
    found: dict[Var, None] = {}
    for entry in entries_of(stop, values):
        if entry in values or not is_glob(entry):
            found[_named(block, entry, values, computed)] = None
            continue
        matching = [v for name, v in computed.items() if fnmatch.fnmatchcase(name, entry)]
        if not matching:
            raise InputError(
                f"stop '{entry}' matches no computed floating-point value of the model"
            )
        found.update(dict.fromkeys(matching))
    for v in found:
        if any(returning is not v.block for returning in v.blocks_returning()):
            raise InputError(
                f"stop '{v.name}' is returned by a nested graph: stop at the result of that"
            )
    return list(found)


def _named(
    block: BindingBlock, entry: str, values: Mapping[str, Var], computed: Mapping[str, Var]
) -> Var:
    if entry in computed:
        return computed[entry]
    if entry not in values:
        raise InputError(
            f"stop '{entry}' is not a value of the "
            f"model{perhaps(entry, computed, 3)}{inside(block, entry)}"
        )
    v = values[entry]
    if not is_float(v):
        raise InputError(
            f"stop '{entry}' is {v.type or 'of unknown type'}: nothing flows through it anyway"
        )
    raise InputError(
        f"stop '{entry}' is an input or weight, with nothing before it: leave it out "
        f"of wrt (!{entry})"
    )


def stop_at(block: BindingBlock, stops: Iterable[Var]) -> dict[Var, Var]:
    """Lets readers of the values read a Stopped of each. Returns the Stopped by value."""
    found = {}
    for v in stops:
        readers = list(v.users)
        with emitting(
            block, sources=() if v.definition is None else (v.definition,), made_by="stop"
        ):
            stopped: Var = op.domain(INTERNAL).Stopped(v)
        stopped.type = v.type
        for b in readers:
            for place in b.places(v):
                b.block.set_operand(b, place, stopped)
        found[v] = stopped
    return found


def cut_off(block: BindingBlock, zeros: Mapping[str, Var], stops: Sequence[Var]) -> list[str]:
    """Returns the note on requested values that gradients do not reach because of the stops."""
    before = reaching(block, stops) if zeros and stops else set()
    names = [name for name, v in zeros.items() if v in before]
    if not names:
        return []
    which = (
        f"of '{names[0]}'"
        if len(names) == 1
        else f"of {len(names)} values ('{names[0]}' and others)"
    )
    return [f"the gradient {which} is zero: it stops at {', '.join(repr(v.name) for v in stops)}"]
