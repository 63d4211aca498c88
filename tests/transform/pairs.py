"""Transformations as steps of a chain, each judged against the mathematics.

A `Stage` holds one model twice: as a file with its weights, and with the weights as inputs, from whose values nothing
can be computed ahead of time. The second one is the judge: a step transforms both, and the result of the first is
compared with differences, rows or parts of what the judge computed before the step, in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import onnxgrad
from onnxgrad.train.adapters import lora as lora_of
from onnxgrad.train.adapters import merge as merged_of
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from tests.helpers import parse

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]
ROWS = 3


@dataclass(frozen=True)
class Stage:
    """`model`: with weights; `judge`: with weights as inputs; `feeds`: values of all inputs and weights. `x`, `w`: an
    input and a weight by which the result `target` is differentiated. `batched`: the inputs with a batch in front.
    `close`: the accuracy relative to the largest element.
    """

    model: ModelProto
    judge: ModelProto
    feeds: Values
    target: str
    x: str
    w: str | None
    batched: frozenset[str] = frozenset()
    close: float = 1e-7
    depth: int = 1

    @property
    def scalar(self) -> str:
        """The target, or a part of it that is summed."""
        return f"{self.target}[0]" if self.value().ndim else self.target

    @property
    def wrt(self) -> list[str]:
        return [self.x, *([self.w] if self.w else [])]

    def value(self, target: str = "", **changed: Array) -> Array:
        """What the judge computes."""
        name, part, _ = (target or self.target).partition("[0]")
        found = np.asarray(_evaluated(self.judge, {**self.feeds, **changed})[name])
        return np.asarray(found[0].sum()) if part else found

    def slope(self, directions: Values, target: str = "") -> Array:
        """The derivative along directions, by differences of fourth order."""
        h, total = 2e-4, np.asarray(0.0)
        for k, factor in ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12)):
            moved = {n: self.feeds[n] + k * h * d for n, d in directions.items()}
            total = total + factor / h * self.value(target, **moved)
        return total

    def bend(self, first: Values, second: Values, target: str) -> Array:
        """The second derivative along two directions."""
        h, total = 4e-3, np.asarray(0.0)
        points = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))
        for (i, a), (k, b) in product(points, points):
            moved = {n: self.feeds[n] for n in (*first, *second)}
            for n, d in first.items():
                moved[n] = moved[n] + i * h * d
            for n, d in second.items():
                moved[n] = moved[n] + k * h * d
            total = total + a * b / h**2 * self.value(target, **moved)
        return total

    def found(self) -> Values:
        """What the file computes in float64; onnxruntime computes the same in float32."""
        results = _evaluated(self.model, self.feeds)
        if self.close < 1e-3:
            feeds = {
                v.name: np.asarray(
                    self.feeds[v.name],
                    helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type),
                )
                for v in self.model.graph.input
            }
            for name, value in run(self.model, feeds).items():
                same(value, results[name], 1e-3, f"{name} in onnxruntime")
        return results

    def after(self, **changed: Any) -> Stage:
        return replace(self, depth=self.depth + 1, **changed)


_COMPILED: dict[int, tuple[ModelProto, Reference]] = {}


@dataclass(frozen=True)
class Step:
    """A transformation; `needs` and `drops`: a weight "w", a "batch", a matrix that can have an "adapter"."""

    run: Callable[[Stage], Stage]
    needs: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()


def _evaluated(model: ModelProto, feeds: Values) -> Values:
    kept = _COMPILED.get(id(model))
    if kept is None:
        if len(_COMPILED) > 20:
            _COMPILED.clear()
        kept = _COMPILED[id(model)] = (model, Reference(model))
    return kept[1].run({v.name: feeds[v.name] for v in model.graph.input})


def same(found: Any, expected: Any, close: float, what: str) -> None:
    """Asserts equality, relative to the largest element."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    assert np.isfinite(expected).all(), f"{what}: the judge is not finite"
    scale = max(1e-2, float(np.abs(expected).max(initial=0)))
    worst = float(np.abs(found - expected).max(initial=0)) / scale
    assert worst <= close, f"{what} differs by {worst:.1e}"


def noise(like: Array, seed: int) -> Array:
    rng = np.random.default_rng([seed, *like.shape])
    return np.asarray(rng.standard_normal(like.shape)).astype(np.float32).astype(float)


def directions(stage: Stage, names: Iterable[str], seed: int) -> dict[str, Array]:
    return {n: noise(stage.feeds[n], seed + i) for i, n in enumerate(names)}


# ---- derivatives ---------------------------------------------------------------------------------


def both(stage: Stage, form: Callable[[ModelProto], Any]) -> dict[str, Any]:
    return {"model": form(stage.model), "judge": form(stage.judge)}


def gradient(s: Stage, **options: Any) -> Stage:
    names, adjoint = f"{{}}_g{s.depth}", f"{s.target}_g{s.depth}"
    seed = noise(s.value(), 3)
    made = both(
        s, lambda m: onnxgrad.gradient(m, s.wrt, s.target, adjoint="input", names=names, **options)
    )
    batched = s.batched | {adjoint} if s.batched else s.batched
    after = s.after(
        **made, feeds={**s.feeds, adjoint: seed}, target=names.format(s.x), batched=batched
    )
    found = after.found()
    for k in range(2):
        move = directions(s, s.wrt, 10 * k)
        slope = sum((found[names.format(n)] * d).sum() for n, d in move.items())
        same(slope, (s.slope(move) * seed).sum(), 10 * s.close, f"gradient of {s.target}")
    return after


def jvp(s: Stage) -> Stage:
    names, move = f"{{}}_j{s.depth}", directions(s, s.wrt, 5)
    made = both(s, lambda m: onnxgrad.jvp(m, s.wrt, s.target, names=names))
    feeds = {**s.feeds, **{names.format(n): d for n, d in move.items()}}
    batched = s.batched | {names.format(s.x)} if s.batched else s.batched
    after = s.after(**made, feeds=feeds, target=names.format(s.target), batched=batched)
    same(after.found()[after.target], s.slope(move), 10 * s.close, f"jvp of {s.target}")
    return after


def hvp(s: Stage) -> Stage:
    names, tangents = f"{{}}_h{s.depth}", f"{{}}_t{s.depth}"
    move, other = directions(s, [s.x], 5), directions(s, [s.x], 7)
    made = both(
        s,
        lambda m: onnxgrad.hessian_vector_product(m, s.x, s.scalar, names=names, tangents=tangents),
    )
    feeds = {**s.feeds, tangents.format(s.x): move[s.x]}
    batched = s.batched | {tangents.format(s.x)} if s.batched else s.batched
    after = s.after(**made, feeds=feeds, target=names.format(s.x), batched=batched)
    found = (after.found()[after.target] * other[s.x]).sum()
    same(found, s.bend(move, other, s.scalar), 1e2 * s.close, f"hvp of {s.scalar}")
    return after


def jacobian(s: Stage) -> Stage:
    names = f"{{}}_by_{{}}_{s.depth}"
    made = both(s, lambda m: onnxgrad.jacobian(m, s.x, s.target, names=names))
    move, rank = directions(s, [s.x], 5), np.ndim(s.feeds[s.x])
    after = s.after(**made, target=names.format(s.target, s.x), batched=frozenset())
    found = np.tensordot(after.found()[after.target], move[s.x], rank)
    same(found, s.slope(move), 10 * s.close, f"Jacobian of {s.target}")
    return after


def hessian(s: Stage) -> Stage:
    made = both(
        s, lambda m: onnxgrad.hessian(m, s.x, s.scalar, names=f"{{}}_{{}}_hessian{s.depth}")
    )
    move, other, rank = directions(s, [s.x], 5), directions(s, [s.x], 7), np.ndim(s.feeds[s.x])
    after = s.after(**made, target=f"{s.x}_{s.x}_hessian{s.depth}", batched=frozenset())
    found = np.tensordot(
        np.tensordot(after.found()[after.target], move[s.x], rank), other[s.x], rank
    )
    same(found, s.bend(move, other, s.scalar), 1e2 * s.close, f"Hessian of {s.scalar}")
    return after


# ---- rows ----------------------------------------------------------------------------------------


def mapped(s: Stage, name: str) -> Stage:
    made = both(s, lambda m: onnxgrad.vmap(m, name, symbol=f"rows{s.depth}", verify=False))
    one = s.feeds[name]
    rows = np.stack([one, one * 0.75, one + 0.125 * noise(one, 4)])
    batched = frozenset({name}) if name == s.x else frozenset()
    after = s.after(**made, feeds={**s.feeds, name: rows}, batched=batched)
    expected = np.stack([s.value(**{name: row}) for row in rows])
    same(after.found()[s.target], expected, s.close, f"rows of {s.target}")
    return after


def per_sample(s: Stage) -> Stage:
    names, adjoint = f"{{}}_s{s.depth}", f"{s.target}_s{s.depth}"
    seed, w = noise(s.value(), 3), str(s.w)
    # weights as inputs could be taken for a batch: the judge gets a symbol for its batch
    judge = onnxgrad.extract(s.judge, None, [s.target], verify=False)
    if judge.graph.input[0].type.tensor_type.shape.dim[0].dim_value:
        judge = onnxgrad.open_batch(judge, sorted(s.batched), symbol=f"N{s.depth}", verify=False)
    models = {"model": s.model, "judge": judge}
    made = {
        k: onnxgrad.gradient(m, w, s.target, adjoint="input", names=names, per_sample=True)
        for k, m in models.items()
    }
    after = s.after(
        **made,
        feeds={**s.feeds, adjoint: seed},
        target=names.format(w),
        batched=s.batched | {adjoint},
    )
    found, move = after.found()[after.target], directions(s, [w], 5)
    for i, g in enumerate(found):
        feeds = {n: v[i : i + 1] if n in s.batched else v for n, v in s.feeds.items()}
        alone = replace(s, judge=judge, feeds=feeds)
        expected = (alone.slope(move) * seed[i : i + 1]).sum()
        same((g * move[w]).sum(), expected, 10 * s.close, f"gradient of sample {i}")
    return after


def open_batch(s: Stage) -> Stage:
    part = extract(s)
    made = both(
        part,
        lambda m: onnxgrad.open_batch(m, sorted(s.batched), symbol=f"batch{s.depth}", verify=False),
    )
    feeds = {n: np.concatenate([v, v * 0.75]) if n in s.batched else v for n, v in s.feeds.items()}
    half = {n: v * 0.75 for n, v in s.feeds.items() if n in s.batched}
    after = part.after(**made, feeds=feeds)
    expected = np.concatenate([s.value(), s.value(**half)])
    same(after.found()[s.target], expected, s.close, f"{s.target} of an open batch")
    return after


# ---- files ---------------------------------------------------------------------------------------


def _equal(s: Stage, after: Stage, what: str) -> Stage:
    same(after.found()[s.target], s.value(), after.close, what)
    return after


def split(s: Stage, backward: bool = False) -> Stage:
    names, adjoint = f"{{}}_l{s.depth}", f"{s.target}_l{s.depth}"
    seed = noise(s.value(), 3)
    parts = [onnxgrad.linearize(m, s.x, s.target, names=names) for m in (s.model, s.judge)]
    after = s.after(model=parts[0].forward, judge=parts[1].forward, batched=frozenset())
    kept = {**s.feeds, adjoint: seed, **_evaluated(parts[1].forward, s.feeds), **after.found()}
    feeds = {n: kept[n] for p in parts for n in (v.name for v in p.backward.graph.input)}
    behind = s.after(
        model=parts[0].backward,
        judge=parts[1].backward,
        feeds={**s.feeds, **feeds},
        target=names.format(s.x),
        x=adjoint,
        w=None,
        batched=frozenset(),
    )
    move = directions(s, [s.x], 5)
    found = (behind.found()[behind.target] * move[s.x]).sum()
    same(found, (s.slope(move) * seed).sum(), 10 * s.close, f"backward part of {s.target}")
    return behind if backward else _equal(s, after, "the forward part")


def optimize(s: Stage) -> Stage:
    model = onnxgrad.optimize(s.model, preset="training-safe", verify=False)
    return _equal(s, s.after(model=model), "optimize")


def float16(s: Stage) -> Stage:
    model = onnxgrad.float16(s.model, verify=False)
    return _equal(s, s.after(model=model, close=2e-2), "float16")


def opset_up(s: Stage) -> Stage:
    return _equal(s, s.after(model=onnxgrad.convert_opset(s.model, 23, verify=False)), "opset 23")


def opset_down(s: Stage) -> Stage:
    return _equal(s, s.after(model=onnxgrad.convert_opset(s.model, 19, verify=False)), "opset 19")


def extract(s: Stage) -> Stage:
    made = both(s, lambda m: onnxgrad.extract(m, None, [s.target], verify=False))
    needed = {v.name for v in made["judge"].graph.input}
    return _equal(s, s.after(**made, w=s.w if s.w in needed else None), "the part")


def _declared(name: str, value: Array) -> str:
    return (
        f"float[{','.join(f'{name}{i}' for i in range(value.ndim))}] {name}"
        if value.ndim
        else f"float {name}"
    )


def join(s: Stage) -> Stage:
    z = f"z{s.depth}"
    head = parse(
        f"h ({_declared('t', s.value())}) => ({_declared(z, s.value())}) {{ {z} = Sin (t) }}",
        opset=21,
    )
    made = both(
        s,
        lambda m: onnxgrad.join(m, head, map={s.target: "t"}, prefix=f"h{s.depth}_", verify=False),
    )
    after = s.after(**made, target=f"h{s.depth}_{z}")
    same(after.found()[after.target], np.sin(s.value()), s.close, "joined")
    return after


def join_before(s: Stage) -> Stage:
    p, value = f"p{s.depth}", s.feeds[s.x]
    types = [v.type for v in s.model.graph.input if v.name == s.x]
    sizes = [str(d.dim_param or d.dim_value) for d in types[0].tensor_type.shape.dim]
    type_ = f"float[{','.join(sizes)}]" if sizes else "float"
    front = parse(f"h ({type_} {p}) => ({type_} q) {{ q = Tanh ({p}) }}", opset=21)
    made = both(s, lambda m: onnxgrad.join(front, m, map={"q": s.x}, verify=False))
    batched = s.batched - {s.x} | {p} if s.x in s.batched else s.batched
    after = s.after(**made, feeds={**s.feeds, p: value}, x=p, batched=batched)
    same(after.found()[s.target], s.value(**{s.x: np.tanh(value)}), s.close, "joined")
    return after


def lift(s: Stage) -> Stage:
    parts = [onnxgrad.lift(m, [str(s.w)], verify=False) for m in (s.model, s.judge)]
    ready = {k: v for p in parts for k, v in _evaluated(p[0], s.feeds).items()}
    after = s.after(model=parts[0][1], judge=parts[1][1], feeds={**s.feeds, **ready}, w=None)
    return _equal(s, after, "lifted")


# ---- weights that change -------------------------------------------------------------------------


def _stored(model: ModelProto, name: str) -> Array:
    (w,) = (t for t in model.graph.initializer if t.name == name)
    return np.asarray(numpy_helper.to_array(w), float)


def lora(s: Stage) -> Stage:
    model = lora_of(s.model, str(s.w), rank=1)
    for t in model.graph.initializer:
        if t.name in (f"{s.w}.lora_B", f"{s.w}.lora_A"):
            value = 0.2 * noise(numpy_helper.to_array(t), 6)
            t.CopyFrom(numpy_helper.from_array(value.astype(np.float32), t.name))
    merged = merged_of(model)
    feeds = {**s.feeds, str(s.w): _stored(merged, str(s.w))}
    assert np.abs(feeds[str(s.w)] - s.feeds[str(s.w)]).max() > 1e-3
    moved = replace(s, feeds=feeds, close=max(s.close, 1e-5))
    _equal(moved, moved.after(model=merged), "merged adapters")
    return _equal(moved, moved.after(model=model, w=None), "adapters")


def merge(s: Stage) -> Stage:
    made = lora(s)
    return replace(made, model=merged_of(made.model), w=s.w)


def train(s: Stage) -> Stage:
    w, loss, rate = str(s.w), f"loss{s.depth}", 0.125
    head = parse(
        f"h ({_declared('t', s.value())}) => (float {loss}) {{ {loss} = ReduceSum <keepdims = 0> (t) }}",
        opset=21,
    )
    model = onnxgrad.join(s.model, head, map={s.target: "t"}, keep_output=[s.target], verify=False)
    step = onnxgrad.training_step(model, loss, f"sgd{{lr={rate}}}", [w])
    trainer = onnxgrad.Trainer(step)
    batch = {v.name: np.asarray(s.feeds[v.name], np.float32) for v in model.graph.input}
    trainer.fit([batch], steps=1)
    after = s.after(model=trainer.export(s.model))
    after = replace(after, feeds={**s.feeds, w: _stored(after.model, w)}, close=max(s.close, 1e-5))
    move = directions(s, [w], 5)
    moved = ((after.feeds[w] - s.feeds[w]) * move[w]).sum()
    same(moved, -rate * s.slope(move).sum(), max(1e-4, 10 * s.close), "a step of training")
    return _equal(replace(s, feeds=after.feeds, close=after.close), after, "the trained file")


def _step(run: Callable[[Stage], Stage], needs: str = "", drops: str = "") -> Step:
    return Step(run, frozenset(needs.split()), frozenset(drops.split()))


STEPS: dict[str, Step] = {
    "gradient": _step(gradient),
    "checkpoint": _step(functools.partial(gradient, checkpoint="nothing")),
    "jvp": _step(jvp),
    "hvp": _step(hvp),
    "jacobian": _step(jacobian, drops="batch"),
    "hessian": _step(hessian, drops="batch"),
    "vmap": _step(lambda s: mapped(s, s.x)),
    "vmap weight": _step(lambda s: mapped(s, str(s.w)), "w", "batch adapter initializer"),
    "per sample": _step(per_sample, "w batch"),
    "open batch": _step(open_batch, "batch"),
    "split": _step(split, drops="batch"),
    "backward": _step(functools.partial(split, backward=True), drops="w batch adapter initializer"),
    "optimize": _step(optimize),
    "float16": _step(float16),
    "opset up": _step(opset_up),
    "opset down": _step(opset_down),
    "extract": _step(extract),
    "join": _step(join),
    "join before": _step(join_before),
    "lift": _step(lift, "w", "w adapter initializer"),
    "lora": _step(lora, "w adapter initializer", "w adapter"),
    "merge": _step(merge, "w adapter initializer"),
    "train": _step(train, "w initializer"),
}
