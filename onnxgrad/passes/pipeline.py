"""Pipelines: passes in order, by name or preset, run until a round changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.load import collector_paused, load
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.preflight.invalid_models import blaming
from onnxgrad.ir.program import Program, called
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements
from onnxgrad.ir.types import TensorType, Type, TypeMismatch
from onnxgrad.named_options import build, split
from onnxgrad.options import providers_of
from onnxgrad.passes.base import PASSES, Pass, Provider, roots
from onnxgrad.passes.convert_opset import ConvertOpset
from onnxgrad.passes.presets import FIRST_OF_FORMS, PRESETS
from onnxgrad.passes.user_laws import Law, UserLaws, laws_of, pass_of
from onnxgrad.rewrite.trace import Trace
from onnxgrad.vocabulary import MERGE, RUNTIMES
from onnxgrad.wording import did_you_mean, perhaps


def types_of_a_fresh_reading(program: Program) -> bool:
    """Replaces every type by the one that reading the written file would infer. Returns whether any
    type says more than before.

    A rewrite infers types only for the bindings that it emits. A constant in place of computed
    sizes may tell more about all later values. All types are replaced, not only the less precise
    ones, because symbols of two readings must not be mixed.
    """
    # a size that an input names stays a symbol in every reading
    named = {d for v in program.main.inputs for d in v.shape or () if isinstance(d, str)}
    if not _may_learn(program, named):
        return False
    try:
        fresh = load(to_proto(program))
    except InputError:
        return False  # the file cannot be read: it was invalid before, or lacks its weights
    learned = False
    for block, other in zip(program.blocks(), fresh.blocks(), strict=True):
        found = {v.name: v for v in other.vars()}
        for b in block.bindings:
            for v in b.outputs:
                twin = None if v is None else found.get(v.name)
                if v is None or twin is None or twin.type is None:
                    continue
                learned = learned or _says_more(twin.type, v.type)
                v.type = twin.type
    return learned


def _may_learn(program: Program, named: Set[str]) -> bool:
    """Whether a fresh reading may find more than is known: a result has an open type, and its
    operands say more, or the type depends on nested graphs.
    """
    elements = KnownElements()
    known: dict[Type | None, bool] = {}  # cached: many values have few types
    for block in program.blocks():
        for b in block.bindings:
            types = [v.type for v in b.outputs if v is not None]
            known.update({t: _is_known(t, named) for t in types if t not in known})
            if not all(known[t] for t in types) and (
                b.blocks or called(b) or _is_told_otherwise(b, elements)
            ):
                return True
    return False


def _is_told_otherwise(b: Binding, elements: KnownElements) -> bool:
    """Whether the operands determine a dtype, a rank or a size that a result lacks."""
    try:
        types = types_of(b, elements)
    except TypeMismatch:
        return False
    return any(
        v is not None and _says_more(found, v.type, renamed=True)
        for v, found in zip(b.outputs, types)
    )


def _is_known(type_: object, named: Set[str]) -> bool:
    if not isinstance(type_, TensorType) or not type_.dtype or type_.shape is None:
        return False
    return all(isinstance(d, int) or _is_named(d, named) for d in type_.shape)


def _is_named(dim: str | None, named: Set[str]) -> bool:
    """Whether the size is one of `named`, or an expression of these alone."""
    return dim in named or (dim is not None and named >= symbols(dim))


def _says_more(new: object, old: object, *, renamed: bool = False) -> bool:
    """Whether a dtype, a rank or a size became known, or a size got a name. `renamed`: any change
    of a size counts as well.
    """
    if not isinstance(new, TensorType):
        return False
    if not isinstance(old, TensorType):
        return True
    if new.dtype not in (0, old.dtype) and (renamed or not old.dtype):
        return True
    if new.shape is None or old.shape is None:
        return new.shape is not None
    return any(
        n is not None
        and o != n
        and (renamed or o is None or (isinstance(n, int) and not isinstance(o, int)))
        for n, o in zip(new.shape, old.shape)
    )


__all__ = ["PASSES", "PRESETS", "Pass", "PassResult", "Pipeline", "parse_passes"]

# passes for the operators of one runtime come after this pass
_BEHIND = "raise-composites"

# called with the name of a pass that changed a program
Fired = Callable[[str, Program], None]

# the most rounds: a pass may enable an earlier one; no model that we know takes more than 6, and
# each pass is limited by its fuel as well
_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of one pass over all rounds: rewrites, bindings before and after, seconds."""

    name: str
    rewrites: int
    before: int
    after: int
    seconds: float


@frozen
class Pipeline:
    """Passes in order."""

    passes: tuple[Pass, ...]

    @staticmethod
    def of(
        preset: str = "default",
        passes: Sequence[str | Pass | Law] | str | None = None,
        *,
        merge: str = "auto",
        provider: str = "cpu",
        target_opset: int | None = None,
        for_: str | None = None,
    ) -> Pipeline:
        """Returns the pipeline of a preset, or of the listed passes. Each rule, family or outlined
        pattern in the list becomes a pass. `merge` and `provider` apply to every pass that has
        these options. `target_opset`: convert the model to that opset first, so that the passes may
        use its operators. `for_`: use the operators of this runtime if they are faster.

        Raises InputError for an unknown preset, pass, option, merge rule or runtime.
        """
        if merge not in MERGE:
            raise InputError(f"unknown merge rule '{merge}': choose one of {', '.join(MERGE)}")
        if passes is None:
            if preset not in PRESETS:
                raise InputError(
                    f"unknown preset '{preset}'{perhaps(preset, PRESETS)}: choose one of "
                    f"{', '.join(PRESETS)}"
                )
            passes = PRESETS[preset]
        provider = providers_of(provider)[0]
        parsed: list[Pass] = []
        if target_opset is not None:
            parsed = [
                ConvertOpset(to=target_opset, composites=True, provider=cast(Provider, provider))
            ]
        for item in passes if isinstance(passes, (list, tuple)) else [passes]:
            if isinstance(item, str):
                parsed += parse_passes(item, merge=merge, provider=provider)
            elif isinstance(item, Pass):
                parsed.append(item)
            elif laws := laws_of(item):
                parsed = with_rules(parsed, [UserLaws(laws)])
            else:
                raise InputError(
                    "a pass is a name, a Pass, a rule (onnxscript's too), a family or an "
                    f"outline_as(...), not {type(item).__name__}"
                )
        return Pipeline(tuple(parsed if for_ is None else _for_runtime(parsed, for_, provider)))

    def run(
        self,
        program: Program,
        trace: Trace | None = None,
        on_stage: Callable[[str], None] | None = None,
        on_fired: Fired | None = None,
    ) -> list[PassResult]:
        """Runs the passes in order, and repeats them until a round changes nothing, even with types
        as a fresh reading of the result infers them. Changes the program in place.

        `on_stage` is called with the name of each pass before it runs, `on_fired` after it changed
        something.
        """
        watch = on_stage or (lambda stage: None), on_fired or (lambda name, program: None)
        trace = trace or Trace()
        with collector_paused(), blaming(program.proto):
            done = self._run(program, trace, *watch)
        trace.forget()
        return done

    def _run(
        self,
        program: Program,
        trace: Trace,
        on_stage: Callable[[str], None],
        on_fired: Fired,
    ) -> list[PassResult]:
        done: dict[str, PassResult] = {}
        # by pass: the number of rewrites when it last found nothing; it finds nothing again unless
        # the number has grown
        idle: dict[Pass, int] = {}
        bindings = _bindings(program)
        # the number of rewrites when the types were last replaced by those of a fresh reading
        read = len(trace.rewrites)
        for _ in range(_ROUNDS):
            fired = len(trace.rewrites)
            for p in self.passes:
                if trace.stopped:
                    break
                if idle.get(p) == trace.seen:
                    continue
                on_stage(p.name)
                result = _run_one(p, program, trace, bindings)
                bindings = result.after
                if not result.rewrites:
                    idle[p] = trace.seen
                else:
                    on_fired(p.name, program)
                known = done.get(p.name)
                done[p.name] = result if known is None else _sum(known, result)
            if len(trace.rewrites) == fired:
                if fired == read or trace.stopped or not types_of_a_fresh_reading(program):
                    break
                read = fired
                idle.clear()
        return list(done.values())


def with_rules(passes: Sequence[Pass], more: Sequence[Pass]) -> list[Pass]:
    """Returns `passes` followed by `more`. The user's rules come before the passes that choose
    forms for onnxruntime, so that a pattern sees MatMul and Add first, and the Gemm in the next
    round.
    """
    rules = [p for p in more if isinstance(p, UserLaws)]
    at = next((i for i, p in enumerate(passes) if p.name == FIRST_OF_FORMS), len(passes))
    return [*passes[:at], *rules, *passes[at:], *(p for p in more if p not in rules)]


def _for_runtime(passes: list[Pass], runtime: str, provider: str) -> list[Pass]:
    """Adds the pass for a runtime unless it is listed already. It comes after the pass that raises
    the same chains to ONNX operators, else last. Raises InputError for an unknown runtime.
    """
    if runtime not in RUNTIMES:
        raise InputError(f"unknown runtime '{runtime}': choose one of {', '.join(RUNTIMES)}")
    if any(p.name == RUNTIMES[runtime] for p in passes):
        return passes
    at = max((i for i, p in enumerate(passes, 1) if p.name == _BEHIND), default=len(passes))
    return [*passes[:at], *parse_passes(RUNTIMES[runtime], provider=provider), *passes[at:]]


def _run_one(p: Pass, program: Program, trace: Trace, before: int) -> PassResult:
    trace.pass_name = p.name
    if trace.derivations is not None:
        trace.derivations.forget()
    fired, started = len(trace.rewrites), time.perf_counter()
    p.run(program, trace)
    seconds, rewrites = time.perf_counter() - started, len(trace.rewrites) - fired
    return PassResult(p.name, rewrites, before, _bindings(program) if rewrites else before, seconds)


def _bindings(program: Program) -> int:
    return sum(len(block.bindings) for root in roots(program) for block in blocks_in(root))


def _sum(a: PassResult, b: PassResult) -> PassResult:
    return replace(
        a, rewrites=a.rewrites + b.rewrites, after=b.after, seconds=a.seconds + b.seconds
    )


# ---- "a,b{option=value;option=value}" ------------------------------------------------------------


def parse_passes(text: str, **common: Any) -> list[Pass]:
    """Parses passes from `name,name{option=value,option=value}`. The name of a preset means its
    passes. `common` options apply to each pass that has them.

    Raises InputError for an unknown name or option.
    """
    found: list[Pass] = []
    for name, options in split(text, "list of passes"):
        if name in PRESETS and options is None:
            found += parse_passes(",".join(PRESETS[name]), **common)
        elif (cls := pass_of(name)) is not None:
            found = with_rules(found, [build(name, cls, options or "", common)])
        else:
            hint = did_you_mean(name, (*PASSES, *PRESETS), "`onnxgrad passes` lists them")
            if name.endswith(".py"):
                hint = (
                    "`--plugin FILE.py` reads your rules, and --passes names the file without .py"
                )
            raise InputError(f"unknown pass '{name}': {hint}")
    if not found:
        raise InputError("the list of passes is empty")
    return found
