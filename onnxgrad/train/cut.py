"""A model cut in two at some values: what gives them, and what comes behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.grad.request import Wrt, entries_of
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.wording import perhaps

At: TypeAlias = "str | Sequence[str]"


def cut(program: Program, at: At) -> set[str]:
    """Make the values `at` inputs of the program, which keeps only what comes behind them; the
    names of what came before.

    Outputs that need none of these values go. Raises InputError for what is no computed tensor of
    the main graph, and where nothing is behind it.
    """
    block = program.main
    values = _computed(block, at)
    before = {name for v in _ancestors(values) for name in _names(v)}
    fed = [_fed_in(block, v) for v in values]
    for v in list(block.outputs):
        if not _ancestors([v]) & set(fed):
            block.remove_output(v)
    if not block.outputs:
        raise InputError(f"nothing of the model comes behind {_listed(at)}: there is no loss")
    _prune(block)
    if unread := [v.name for v in fed if not v.use_count and not v.returned]:
        raise InputError(f"'{unread[0]}' is read only before the others: leave it out")
    return before


def check_behind(program: Program, wrt: Wrt, before: set[str], at: At) -> None:
    """Raise InputError for a weight that is asked for by name and went with what comes before."""
    left = {v.name for v in program.main.vars()}
    for name in entries_of(wrt, before | left):
        if name in before and name not in left:
            raise InputError(
                f"wrt '{name}' comes before {_listed(at)} and is no part of the step: it is frozen"
            )


def check_apart(trained: Iterable[str], before: set[str], at: At) -> None:
    """Raise InputError for a weight that is trained behind the cut and read before it too."""
    for name in trained:
        if name in before:
            raise InputError(
                f"'{name}' is read before {_listed(at)} too, and what is kept of them would not "
                f"follow it: leave it out of wrt (!{name})"
            )


def first_part(program: Program, at: At) -> None:
    """Make the values `at` the outputs of the program, which keeps only what gives them. Raises
    InputError as `cut`.
    """
    block = program.main
    values = _computed(block, at)
    for v in list(block.outputs):
        block.remove_output(v)
    for v in values:
        block.add_output(v)
    _prune(block)


def _computed(block: BindingBlock, at: At) -> list[Var]:
    own = {v.name: v for v in block.vars()}
    found: dict[Var, None] = {}
    for name in [at] if isinstance(at, str) else at:
        v = own.get(name)
        if v is None:
            raise InputError(f"inputs_at '{name}' is no value of the model{perhaps(name, own)}")
        if v.definition is None or v.is_constant or not isinstance(v.type, TensorType):
            raise InputError(
                f"inputs_at '{name}' is {'an input or weight' if v.definition is None else v.type}"
                ": name a tensor that the model computes"
            )
        found[v] = None
    if not found:
        raise InputError("inputs_at names no value")
    return list(found)


def _fed_in(block: BindingBlock, v: Var) -> Var:
    """An input in the value's place, by its name."""
    name = v.name
    if any(out is v for out in block.outputs):
        block.remove_output(v)
    v.rename(block.program.names.fresh(f"{name}.before"))
    fed = block.add_input(name, v.type)
    block.replace(v, fed)
    return fed


def _prune(block: BindingBlock) -> None:
    block.remove_unused()
    block.inputs = [v for v in block.inputs if v.use_count or v.returned]
    for v in list(block.initializers.values()):
        if not v.use_count and not v.returned and not v.is_input:
            block.remove_initializer(v)
    block.touch()


def _ancestors(values: Iterable[Var]) -> set[Var]:
    """The values, and what they are computed from."""
    found: set[Var] = set()
    work = list(values)
    while work:
        v = work.pop()
        if v in found:
            continue
        found.add(v)
        if (b := v.definition) is not None:
            work += [x for x in b.inputs if x is not None]
            work += [x for nested in b.blocks.values() for x in nested.captures()]
    return found


def _names(v: Var) -> list[str]:
    """Its own, and those inside the blocks of what gives it."""
    nested = [] if v.definition is None else list(v.definition.blocks.values())
    inner = [b for block in nested for b in [block, *(x.block for x in block.walk())]]
    return [v.name, *(x.name for block in inner for x in block.vars())]


def _listed(at: At) -> str:
    return ", ".join(f"'{name}'" for name in ([at] if isinstance(at, str) else at))
