"""One attempt to apply a rewrite rule: build, then decline or replace, and remove everything
unused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from onnxgrad.errors import InputError, InternalError, UnknownDtype
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emit
from onnxgrad.ir.emission.emitter import Emitter, in_force
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import Captured, Pattern, names_in
from onnxgrad.rewrite.slips import is_ours, slip
from onnxgrad.rewrite.trace import Decline, Trace
from onnxgrad.wording import perhaps


@dataclass(frozen=True, slots=True)
class Touched:
    """The bindings that a rule emitted, and those whose surroundings changed."""

    emitted: list[Binding]
    neighbours: list[Binding]


@dataclass(slots=True)
class Attempt:
    """A rule at one place. `where` is formatted only for reports. Emitted bindings carry the
    metadata of `sources`.

    author: the rule's function, if a caller may have written it. share: emit equal bindings once.
    maker: marks the emitted bindings of a rule that must never match them.
    """

    law: str
    where: object
    block: BindingBlock
    sources: Sequence[Binding]
    author: Callable[..., Any] | None = None
    share: bool = False
    maker: object = None

    def __call__(
        self,
        trace: Trace,
        build: Callable[[], Any],
        mapping: Callable[[Any], Mapping[Var, Var]] = dict,
    ) -> Touched | None:
        """Calls `build`, and replaces values as `mapping` of its answer says. Returns None if the
        rule declines, changes nothing or fails; the block is then unchanged.

        `build` and `mapping` may return or raise a Decline. Raises RuleFailed if a caller's rule
        fails, or if its replacement has another type or would close a cycle.
        """
        start, kept = Savepoint(self.block), trace.derivations
        mark = () if kept is None else kept.mark()
        try:
            emitter, answer = self._answer(build, mapping)
        except Exception as error:  # noqa: BLE001  # a rule may be user code
            start.restore()
            slip(trace, self.law, self.where, self.block.program, error, self.author)
            return None
        if isinstance(answer, Decline):
            trace.missed(self.law, self.where, answer.reason)
        if not answer or isinstance(answer, Decline):
            start.restore()
            if kept is not None:
                kept.forget(mark)
            return None
        emitted = _results(emitter.emitted)
        trace.fired(self.law, str(self.where), _results(self.sources), emitted)
        trace.replaced(answer, emitter.emitted)
        neighbours = substitute(answer)
        emitter.discard()  # emitted bindings that nothing uses
        if self.maker is not None:
            trace.made.update(dict.fromkeys(emitter.emitted, self.maker))
        return Touched(emitter.emitted, neighbours)

    def _answer(
        self, build: Callable[[], Any], mapping: Callable[[Any], Mapping[Var, Var]]
    ) -> tuple[Emitter, Any]:
        """Returns the emitter, and a mapping of values to valid replacements, a Decline, or
        nothing. Raises InternalError for an invalid mapping.
        """
        # not by `emitting`, which checks the types of its arguments: too slow for every attempt
        known: dict[Any, Binding] | None = {} if self.share else None
        with in_force(Emitter(self.block, emit, known, self.sources, self.law)) as emitter:
            answer = _unless_declined(build)
        if answer is not None and not isinstance(answer, Decline):
            answer = _unless_declined(lambda: mapping(answer))
        if answer and not isinstance(answer, Decline):
            check(answer)
        return emitter, answer


def _results(bindings: Iterable[Binding]) -> list[str]:
    """The names of their first results."""
    return [b.outputs[0].name for b in bindings if b.outputs and b.outputs[0] is not None]


def _unless_declined(build: Callable[[], Any]) -> Any:
    """Returns the answer of `build`, or a Decline if `build` raises one or emits a literal of
    unknown dtype.
    """
    try:
        return build()
    except Decline as declined:
        return declined
    except UnknownDtype as error:
        return Decline(str(error))


def call_arguments(build: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the offered arguments for which the function has parameters."""
    return {name: offered[name] for name in _parameters(build) if name in offered}


@lru_cache(maxsize=1024)
def _parameters(build: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(build).parameters)


def check_parameters(build: Callable[..., Any], pattern: Pattern, *more: str) -> None:
    """Raises InputError if a caller's function requires a parameter that is neither captured by its
    pattern nor among `more`. Those of this package are checked by a test, not in each process.
    """
    if is_ours(build):
        return
    known = dict.fromkeys((*names_in(pattern), *more))
    for name in unknown_parameters(build, known):
        raise InputError(
            f"the rule {build.__name__} asks for '{name}', which its pattern does not "
            f"capture{perhaps(name, known)}: there is {', '.join(known)}"
        )


def unknown_parameters(build: Callable[..., Any], known: Collection[str]) -> list[str]:
    """Returns the parameters that a function requires and that cannot be passed by name from
    these.
    """
    return [
        p.name
        for p in inspect.signature(build).parameters.values()
        if p.kind is p.POSITIONAL_ONLY
        or (
            p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            and p.default is p.empty
            and p.name not in known
        )
    ]


def replacements(answer: Mapping[Any, Any], captured: Captured) -> dict[Var, Var]:
    """Returns a rewriter's answer as a mapping of values. Leaves out values that replace themselves
    or that nothing reads.

    A key is a value, its binding, or a pattern that matched it. Raises InternalError for anything
    else.
    """
    found: dict[Var, Var] = {}
    for key, new in answer.items():
        old = key.out if isinstance(key, Binding) else key
        if isinstance(key, Pattern):
            try:
                old = captured[key.key]
            except KeyError:
                raise InternalError("it replaces a pattern that is not part of its match") from None
        if not isinstance(old, Var):
            raise InternalError(
                f"it replaces {type(old).__name__} {old!r}: only a value can be replaced"
            )
        if not isinstance(new, Var):
            raise InternalError(
                f"it replaces {old.name} by {type(new).__name__} {str(new)[:60]}: return a value "
                "of the graph (emitted with op, or captured)"
            )
        if not _in_scope(new, old.block):
            raise InternalError(
                f"it replaces {old.name} by {new.name}, which is not visible where the old value "
                "is read"
            )
        if new is not old and old.use_count:
            found[old] = new
    return found


def _in_scope(v: Var, block: BindingBlock) -> bool:
    while v.block is not block:
        if block.owner is None:
            return False
        block = block.owner.block
    return True


def check(mapping: Mapping[Var, Var]) -> None:
    """Raises InternalError if a replacement has another type or would close a cycle."""
    for old, new in mapping.items():
        if old.type is not None and new.type is not None and not fits(old.type, new.type):
            raise InternalError(f"it replaces {old!r} by {new!r}, a value of another type")
    if len(mapping) > 1 and closes_cycle(mapping):
        raise InternalError("it builds on a value that it replaces, which would be a cycle")


# readers of one value, such as a number that every layer reads, from which on a reader less matters
# to none of them: looking at all after each rewrite would take quadratic time
_MANY = 256


def substitute(mapping: Mapping[Var, Var]) -> list[Binding]:
    """Replaces values at once, drops what became unused, and returns the bindings whose
    surroundings changed. The caller has called `check`.
    """
    neighbours: dict[Binding, None] = {}
    roots = [old.definition for old in mapping if old.definition is not None]
    for old in mapping:
        neighbours.update(dict.fromkeys(old.users))
    for old, new in mapping.items():
        if new.type is None or _says_less(new, old):
            new.type = old.type
        old.block.replace(old, new)
    for root in roots:
        neighbours.update(
            dict.fromkeys(v.definition for v in root.reads() if v.definition is not None)
        )
        for v in root.reads():
            if len(v.users) <= _MANY:
                neighbours.update(dict.fromkeys(v.users))
        root.block.remove_unused([root])
    return [b for b in neighbours if b.is_live]


def fits(a: Type, b: Type) -> bool:
    """Whether a value may have both types: no known dtype, rank or size contradicts another."""
    if a == b:
        return True
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)):
        return type(a) is type(b)
    if a.dtype != b.dtype and 0 not in (a.dtype, b.dtype):
        return False
    if a.shape is None or b.shape is None:
        return True
    pairs = zip(a.shape, b.shape, strict=False)
    differ = any(isinstance(p, int) and isinstance(q, int) and p != q for p, q in pairs)
    return len(a.shape) == len(b.shape) and not differ


def _says_less(new: Var, old: Var) -> bool:
    """Whether the new value's type knows fewer sizes. Both values are equal, so the old sizes still
    hold.
    """
    if old.shape is None or new.type == old.type:
        return False
    return new.shape is None or any(
        n is None and o is not None for n, o in zip(new.shape, old.shape, strict=True)
    )


def closes_cycle(mapping: Mapping[Var, Var]) -> bool:
    """Whether a new value depends on one that is to be replaced: its own reader would then be
    its operand.
    """
    olds = {old.definition for old in mapping if old.definition is not None}
    news = {new.definition for new in mapping.values() if new.definition is not None} - olds
    # the operands of a binding do not depend on it, so the search stops there and need not
    # climb the whole model
    return any(
        new.depends_on({old}, [v.definition for v in old.reads() if v.definition is not None])
        for old in olds
        for new in news
    )


class Savepoint:
    """Remembers a block. `restore` removes the bindings, constants and names that were added since,
    and resets whether the block counts as changed. The saved file is then the same to the last
    byte.

    Nothing is copied, so only additions can be undone: an attempt must not alter older parts. A
    program has one open savepoint at a time.
    """

    __slots__ = (
        "_bindings",
        "_block",
        "_initializers",
        "_opsets",
        "_proto",
        "_sparse",
        "_unchanged",
    )

    def __init__(self, block: BindingBlock) -> None:
        self._block = block
        self._bindings = len(block.bindings)
        self._initializers = len(block.initializers)
        self._sparse = len(block.sparse)
        root = block if block.owner is None else block.root
        self._opsets = len(root.opsets)
        self._proto = root.proto
        # there are very many attempts, and most of them begin with a changed block
        self._unchanged = [] if block.changed else _unchanged(block)
        block.program.names.mark()

    def restore(self) -> None:
        """Removes the additions. Raises InternalError if something older reads one."""
        block = self._block
        added = len(block.bindings) - self._bindings
        for b in list(islice(reversed(block.bindings), max(added, 0))):
            block.remove(b)
        # a model has many weights, and most attempts add none
        added = len(block.initializers) - self._initializers
        for name in list(islice(reversed(block.initializers), max(added, 0))):
            block.remove_initializer(block.initializers[name])
        del block.sparse[self._sparse :]
        root = block.root
        root.proto = self._proto
        for domain in list(root.opsets)[self._opsets :]:
            del root.opsets[domain]
        for inner, owner, changed in self._unchanged:
            inner.changed = False
            if owner is not None:
                owner.changed = changed
        block.program.names.forget()


def _unchanged(block: BindingBlock) -> list[tuple[BindingBlock, Binding | None, bool]]:
    """Returns the block and those around it as far as they are unchanged, each with its owner and
    whether the owner is changed.
    """
    found = []
    inner: BindingBlock | None = block
    while inner is not None and not inner.changed:
        owner = inner.owner
        found.append((inner, owner, owner is not None and owner.changed))
        inner = None if owner is None else owner.block
    return found
