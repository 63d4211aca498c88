"""Applies every built-in law to random models that its pattern may match: any rank, dtype and
opset.

    python scripts/sweep_laws.py --minutes 10 --seed 0

After every third model, a model of sweep_rewrites.py is changed at random (another opset, constants
of other ranks, open sizes) and runs through a whole pipeline, because laws also read nodes outside
their patterns.

A law may decline. It must not emit a node that has no type, replace a value by one of another type,
or raise. Its result must be a valid model with the same interface and equal values in float64. If
it matched, it is tried again with an error injected after each emission, and every byte must then
be as before. Prints the counts; exit code 1 if something failed.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import InputError, Unsupported  # noqa: E402  # runs from a checkout
from onnxgrad.grad import finish  # noqa: E402
from onnxgrad.ir.emission import emit, emitter  # noqa: E402
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.program import Program  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.passes.base import PASSES, FamilyPass, RulePass  # noqa: E402
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from onnxgrad.rewrite import slips  # noqa: E402
from onnxgrad.rewrite.attempt import Attempt  # noqa: E402
from onnxgrad.rewrite.combine import Family, apply_family  # noqa: E402
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.rewrite.worklist import Rule, apply_rules  # noqa: E402
from onnxgrad.verify.interface import interface_differences  # noqa: E402
from onnxgrad.verify.reference.evaluate import Reference  # noqa: E402
from scripts.sweeping.bent import bent  # noqa: E402
from scripts.sweeping.command import command  # noqa: E402
from scripts.sweeping.from_patterns import feeds_of, model_for, sizes_of  # noqa: E402
from scripts.sweeping.models import random_model  # noqa: E402
from scripts.sweeping.rewrites import SETTINGS  # noqa: E402

OPSETS = range(7, 27)
PICKED = ROOT / "tests" / "laws" / "models_of_laws.json"
# relative to the largest number; constants of a law are rounded to the result's dtype
_OFF = {TensorProto.FLOAT16: 1e-2, TensorProto.BFLOAT16: 5e-2}


@dataclass(frozen=True)
class Law:
    """A law with its pass, or of the gradient's clean-up."""

    name: str
    law: Rule | Family

    def apply(self, program: Program, trace: Trace) -> None:
        for block in (program.main, *program.functions.values()):
            if isinstance(self.law, Family):
                apply_family(block, self.law, trace)
            else:
                apply_rules(block, [self.law], trace)

    @property
    def rule(self) -> str:
        """The name without that of the pass."""
        return self.name.partition(": ")[2]

    @property
    def shared(self) -> Sequence[str]:
        named = self.law.shared if isinstance(self.law, Family) else None
        return () if named is None else (named.name,)


def laws() -> list[Law]:
    """Returns every rule and family once, with options under which it applies."""
    found: dict[object, Law] = {}
    for name, cls in PASSES.items():
        for options in (
            {},
            {"merge": "always"},
            {"rows": 4},
            {"always": True},
            {"share_left": False},
        ):
            if not set(options) <= set(cls.__dataclass_fields__):
                continue
            p = cls(**options)
            if isinstance(p, FamilyPass):
                found[name, str(options)] = Law(f"{name}: {p.family.name}", p.family)
            for rule in p.laws if isinstance(p, RulePass) else ():
                found.setdefault(rule.build, Law(f"{name}: {rule.name}", rule))
    for rule in finish._ALL:
        found.setdefault(rule.build, Law(f"gradient: {rule.name}", rule))
    by_name = {law.name: law for law in found.values()}
    return list(by_name.values())


def pick(seed: int, tries: int, path: Path = PICKED) -> None:
    """Writes for each law the numbers of two models among `tries`: one that it rewrites, and one
    that it declines although its pattern matches.
    """
    found: dict[str, list[int]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for law in laws():
            kinds: dict[str, int] = {}
            for number in range(tries):
                rng = Random(f"{seed}/{law.name}/{number}")
                model = next(_models(law, rng), None)
                judged = None if model is None else _Judged(law, model, rng, faults=0)
                if judged is not None and judged.matched:
                    kinds.setdefault("fired" if judged.compared else "declined", number)
                if len(kinds) > 1:
                    break
            found[law.name] = sorted(kinds.values()) or [0]
    path.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


def sweep(
    seed: int, *, models: int = 0, minutes: float = 1e9, save: Path | None = None, faults: int = 3
) -> tuple[Counter[str], list[str]]:
    """Checks up to `models` models within `minutes`: the laws in turns, or the models of `pick`.

    `faults` is the number of emissions of each match after which an error is injected. Returns
    counts and a line per failure.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    deadline = time.monotonic() + 60 * minutes
    every = laws()
    counts["laws"] = len(every)
    matched: set[str] = set()
    fired: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn, (law, number) in enumerate(_turns(every, models)):
            if time.monotonic() > deadline:
                break
            rng = Random(f"{seed}/{law.name}/{number}")
            model = next(_models(law, rng), None)
            if model is None:
                counts["patterns without a model"] += 1
                continue
            found = _Judged(law, model, rng, faults)
            counts["models refused" if found.refused else "models"] += 1
            matched |= {law.name} if found.matched else set()
            fired |= {law.name} if found.fired else set()
            counts["matched"] += found.matched
            counts["fired"] += found.fired
            counts["faults"] += found.faults
            counts["compared"] += found.compared
            tried = [(law.name, model, found.failures)]
            if turn % 3 == 2:
                counts["bent models"] += 1
                tried.append(_through_a_pipeline(rng))
            for name, model, wrong in tried:
                for words in wrong:
                    counts["failures"] += 1
                    failures.append(f"seed {seed}, model {number}, {name}: {words}")
                    print(failures[-1], flush=True)
                    if save is not None:
                        save.mkdir(parents=True, exist_ok=True)
                        onnx.save(model, save / f"{seed}_{number}_{name.split(':')[0]}.onnx")
    counts["laws that matched"], counts["laws that fired"] = len(matched), len(fired)
    return counts, failures


def _turns(every: Sequence[Law], models: int) -> Iterator[tuple[Law, int]]:
    """Yields the laws in turns, each with the number of its model."""
    picked = json.loads(PICKED.read_text(encoding="utf-8")) if not models else {}
    if picked:
        yield from ((law, number) for law in every for number in picked.get(law.name, (0, 1)))
    yield from ((every[i % len(every)], i // len(every)) for i in range(models))


def _models(law: Law, rng: Random) -> Iterator[ModelProto]:
    needs = law.law.needs[1] if isinstance(law.law, Rule) and law.law.needs else 7
    for _ in range(12):
        low = needs if rng.random() < 0.7 else 7
        made = model_for(law.law.pattern, rng, rng.choice(range(low, 27)), shared=law.shared)
        if made is not None:
            yield made


def _through_a_pipeline(rng: Random) -> tuple[str, ModelProto, list[str]]:
    """Returns a setting, a changed model after all passes of the setting, and the failures."""
    model, setting = bent(random_model(rng), rng), rng.choice(list(SETTINGS))
    trace = Trace()
    try:
        Pipeline.of(**SETTINGS[setting]).run(load(model), trace)
    except InputError:  # the reader refuses the model, or its opset cannot be converted
        return setting, model, []
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
        return setting, model, [f"{type(error).__name__}: {error}"]
    return setting, model, [f"slip: {slip}" for slip in trace.slips]


class _Judged:
    """The result of one law on one model."""

    def __init__(self, law: Law, model: ModelProto, rng: Random, faults: int) -> None:
        self.law, self.model = law, model
        self.matched = self.fired = self.faults = self.compared = 0
        self.refused = False
        self.failures: list[str] = []
        slips.raising = False
        try:
            load(model)
        except InputError:
            self.refused = True  # what onnx's checker lets pass, the reader need not
            return
        try:
            self._applied(rng)
            if self.matched:
                for nth in rng.sample(range(8), faults):
                    self._with_a_fault(nth)
            if rng.random() < 0.2:
                self._whole()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
            self.failures.append(f"{type(error).__name__}: {error}")

    def _applied(self, rng: Random) -> None:
        program, trace = load(self.model), Trace()
        self.law.apply(program, trace)
        self._check(program, trace)
        self.matched = int(sum(c.matched for c in trace.counts.values()) > 0)
        self.fired = int(bool(trace.rewrites))
        if self.fired and not self.failures:
            self._compare(to_proto(program), rng)

    def _compare(self, after: ModelProto, rng: Random) -> None:
        """Checks that both compute the same in float64, where the original is finite."""
        feeds = feeds_of(self.model, rng)
        try:
            expected = Reference(self.model).run(feeds)
        except (Unsupported, InputError):
            return
        if any(np.shape(v) != sizes_of(self.model)[name] for name, v in expected.items()):
            return  # the reference runs what no runtime accepts, such as a bias too long
        found = Reference(after).run(feeds)
        self.compared = 1
        dtypes = {v.name: v.type.tensor_type.elem_type for v in self.model.graph.output}
        for name, value in expected.items():
            a, b = (np.asarray(v, np.float64) for v in (value, found[name]))
            known = np.isfinite(a)
            off = np.abs(a[known] - b[known]).max(initial=0.0) if a.shape == b.shape else np.inf
            most = _OFF.get(dtypes[name], 1e-6)
            if not off <= most * max(1.0, np.abs(a[known]).max(initial=0.0)):
                self.failures.append(f"computes something else: {name} is off by {off:.3g}")

    def _whole(self) -> None:
        program, trace = load(self.model), Trace()
        Pipeline.of().run(program, trace)
        self._check(program, trace)

    def _check(self, program: Program, trace: Trace) -> None:
        self.failures += [f"slip: {slip}" for slip in trace.slips]
        if not trace.rewrites:
            return
        for block in program.blocks():
            block.schedule()
            block.check()
        after = to_proto(program)
        self.failures += [str(d) for d in interface_differences(self.model, after)][:1]
        try:
            onnx.checker.check_model(after, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            self.failures.append(f"not valid afterwards: {str(error).strip().splitlines()[0]}")

    def _with_a_fault(self, nth: int) -> None:
        """Checks that an error after emission `nth` leaves the block as before the attempt."""
        program, trace = load(self.model), Trace()
        plain, left = emitter.append, [0]
        called = Attempt.__call__

        def failing(*args: object) -> object:
            made = plain(*args)  # type: ignore[arg-type]  # handed on as they came
            left[0] -= 1
            if left[0] < 0:
                raise ArithmeticError("a fault that was put there")
            return made

        def compared(attempt: Attempt, trace: Trace, *args: object) -> object:
            left[0] = nth
            before, names = to_proto(program).SerializeToString(), set(program.names)
            flags = [b.changed for b in program.blocks()]
            done = called(attempt, trace, *args)  # type: ignore[arg-type]
            if done is None:
                self.faults += 1
                same = to_proto(program).SerializeToString() == before
                if (
                    not same
                    or set(program.names) != names
                    or flags != [b.changed for b in program.blocks()]
                ):
                    self.failures.append(f"not as before: {attempt.law} with a fault behind {nth}")
            return done

        emit.append = failing  # type: ignore[assignment]
        Attempt.__call__ = compared  # type: ignore[assignment,method-assign]
        try:
            self.law.apply(program, trace)
        finally:
            emit.append = plain
            Attempt.__call__ = called  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
