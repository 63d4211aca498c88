"""The driver of gradients and of products with derivatives: forms the graph, compares a sample with
finite differences, and lets the caller write it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import CannotRun, InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.check import check_gradient, refuse_strange
from onnxgrad.grad.checking.derivatives import check_product
from onnxgrad.grad.checking.report import GradientReport, bounded
from onnxgrad.grad.checkpointing.choice import Choice, is_estimated, mark
from onnxgrad.grad.derivatives.derivative import Derivative, drop_parts, with_target
from onnxgrad.grad.derivatives.hessian import hessians
from onnxgrad.grad.derivatives.jacobian import jacobians
from onnxgrad.grad.derivatives.vector_products import hessian_products, tangents
from onnxgrad.grad.differentiation import differentiate, fitting
from onnxgrad.grad.finish import simplify
from onnxgrad.grad.prepare import GradientRequest
from onnxgrad.grad.targets import Target
from onnxgrad.grad.weights.kept import final
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.load import ModelLike, collector_paused, load_own, read
from onnxgrad.ir.origins import forget_values
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.types import FLOAT_DTYPES, is_static
from onnxgrad.jobs.declared import Declaration, options_of
from onnxgrad.jobs.gradient_declarations import (
    Checked,
    CheckGradientOptions,
    CheckProductOptions,
    Finality,
    GradientOptions,
    GradOptions,
    HessianOptions,
    HessianProductOptions,
    JacobianOptions,
    JvpOptions,
    LinearizeOptions,
    Losses,
    MarkOptions,
    PerSample,
)
from onnxgrad.jobs.groups import Limits
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.name_lists import names_among
from onnxgrad.options import providers_of
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.train.losses.adding import with_loss
from onnxgrad.transform.gradient_split import Split, as_functions, linearize
from onnxgrad.transform.open_batch import Opened
from onnxgrad.transform.per_sample import any_batch, map_samples, of_each, of_size, samples_of
from onnxgrad.verify import Report, verify
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.verify.rows.proof import RowProof
from onnxgrad.verify.running.session import run
from onnxgrad.wording import option

_SAMPLE = 8  # values of a proof; a check looks at all


@frozen
class Changed:
    """A changed program, the names of its new parts, and notes."""

    program: Program
    new: Any
    notes: tuple[str, ...] = ()


@frozen
class Derived:
    """The result (a Gradient, a Derivative or a Changed), the seconds, and the check of a sample,
    if any.
    """

    found: Any
    seconds: float
    report: GradientReport | None = None
    rows: Report | None = None  # the proof of each sample

    @property
    def ok(self) -> bool:
        """Whether the check found no difference."""
        return all(report is None or report.ok for report in (self.report, self.rows))


def _marked(program: Program, wrt: Wrt, target: Target, checkpoint: Choice) -> Changed:
    if is_estimated(program, checkpoint):
        request = GradientRequest(wrt, target, checkpoint=checkpoint, adjoint="auto")
        checkpoint = fitting(program, request)[0]
    return Changed(program, mark(program, wrt, target, checkpoint))


class PluggedDerivative(ABC):
    """The base of options of a derivative that a plug-in declares in the group
    `onnxgrad.derivatives`, by its kind. `made` is the class with which the command shows it.
    """

    made: ClassVar[Any]

    @staticmethod
    @abstractmethod
    def formed(program: Program, *chosen: Any, **options: Any) -> Any:
        """Returns the Derivative, or the Changed program, for the options that form it."""

    def checked(self, model: ModelLike, found: Any, proof: GradOptions) -> GradientReport | None:
        """Returns the numeric check; None if `check_product` checks the kind."""
        return None


_FORMED: dict[type[Declaration], Callable[..., Any]] = {
    GradientOptions: differentiate,
    JvpOptions: tangents,
    HessianProductOptions: hessian_products,
    JacobianOptions: jacobians,
    HessianOptions: hessians,
    MarkOptions: _marked,
    LinearizeOptions: linearize,
}


def derive(
    model: ModelLike, options: Limits, hooks: Hooks | None = None, proof: GradOptions | None = None
) -> Derived:
    """Forms the derivative that the options describe, checks a sample of it as `proof` says, and
    lets the hooks write it if the check passes. Raises InputError as `onnxgrad.gradient`.
    """
    hooks, started, report, rows = hooks or Hooks(), time.perf_counter(), None, None
    proves, each = proof is not None and proof.verify, None
    with hooks.limits(options.timeout, options.max_memory):
        with collector_paused():
            program = load_own(model)
            hooks.on_read(program)
            if isinstance(options, Losses) and options.loss is not None:
                program, options = _with_loss(program, options)
                model = load_own(program)  # which the proofs compare with
            if isinstance(options, PerSample) and options.per_sample:
                each = _Each(program, options, proves)
                program, options = each.program, each.options
            with final(getattr(options, "final", False)):
                if isinstance(options, PluggedDerivative):
                    found = options.formed(program, **_forming(options))
                else:
                    found = _FORMED[type(options)](program, **_forming(options))
                found = each.mapped(found) if each is not None else found
        seconds = time.perf_counter() - started
        if proof is not None and proves and each is not None:
            rows, proof = each.proved(model, found, proof, hooks)
            model = each.model
        if proof is not None and proves and not proof.ste:  # an estimate cannot be checked
            report = _sample(model, found, options, hooks, proof)
        made = Derived(found, seconds, report, rows)
        if made.ok and hooks.write is not None:
            with collector_paused():
                hooks.write(found.program)
    return made


class _Each:
    """The derivative of a model at a batch of 1, mapped over the samples.

    `program` and `options`: those of the derivative. `model`: the program, for proofs.
    """

    model: Program
    opened: Program  # the model with a dynamic batch, at the size of its fixed batch
    one: Program  # the derivative at a batch of 1
    made: Opened

    def __init__(self, program: Program, options: Any, proves: bool) -> None:
        program, self.size = any_batch(program)
        self.parts: list[str] = []
        if isinstance(options, JacobianOptions):  # parts of values have samples, too
            program, target, self.parts = with_target(program, options.target)
            options = options.having(target=target)
        self.samples, self.options, self.proves = samples_of(program), options, proves
        values = [v for v in program.main.vars() if v.name not in self.samples.axes]
        self.unknown = {v.name: v.type for v in values if not is_static(v.shape)}
        if proves and self.size:
            self.opened = of_size(program, self.samples, self.size)
        self.program = of_size(program, self.samples)
        if proves:
            self.model = load_own(self.program)

    def mapped(self, found: Any) -> Any:
        """Maps a derivative at a batch of 1 over the samples."""
        drop_parts(found.program.main, self.parts)
        for target in found.seeds:
            if target in self.unknown:
                raise InputError(
                    f"per sample: no size of target '{target}' ({self.unknown[target]}) is known "
                    "to be the batch, so its adjoint cannot be divided among the samples: use a "
                    f"scalar target, such as a loss ({option('--loss', 'loss=')})"
                )
        if isinstance(found, Derivative):
            of_each(found, self.samples)
        like = {name: value for value, name in found.results.items() if found.kind == "gradient"}
        like |= {name: target for target, name in found.seeds.items()}
        if self.proves:
            self.one = load_own(found.program)
        self.made = map_samples(found.program, self.samples, like)
        slow = [f"once per sample, as slow as single runs: {why}" for why in self.made.scanned]
        notes = (*found.notes, *slow, *self.made.warnings)
        rows = ", ".join(f"axis {axis} of {name}" for name, axis in self.made.inputs.items())
        dynamic = f"; the batch of {self.size} becomes dynamic" if self.size else ""
        notes = (f"samples: {rows}{dynamic}", *notes)
        program = self.made.program
        if getattr(self.options, "simplify", True):
            weights = program.main.initializers
            simplify(program, [weights[n] for n in found.values if n in weights], ())
            Pipeline.of(passes="remove-unused").run(program)
        return replace(found, program=program, notes=notes)

    def proved(
        self, model: ModelLike, found: Any, proof: GradOptions, hooks: Hooks
    ) -> tuple[Report, GradOptions]:
        """Compares the derivatives of several samples with those of each sample by itself. Returns
        the options of a proof at a batch of 1.
        """
        dims = {n: size for n, size in (proof.dims or {}).items() if n != self.samples.symbol}
        with sharing() as files:
            if self.size:
                hooks.on_stage("the dynamic batch")
                report = verify(
                    files.original(load_own(model)),
                    files.of(self.opened),
                    provider=proof.provider,
                    seeds=(proof.seed,),
                    dims=dims,
                    inputs=proof.inputs,
                )
                if not report.ok:
                    raise NotProved(f"the batch does not become dynamic: {report.summary}")
            proof = proof.having(dims=dims or None)
            hooks.on_stage("every sample against a batch of 1")
            rows = RowProof(
                files.of(self.one), files.of(found.program), self.made.rows,
                providers_of(proof.provider), proof.dims, proof.seed, proof.inputs, None,
            )  # fmt: skip
            return rows.report(), proof


def check(
    model: ModelLike, options: CheckGradientOptions | CheckProductOptions, hooks: Hooks, **more: Any
) -> GradientReport:
    """Compares a gradient, or a product with a derivative, with finite differences, value by value.
    Raises errors as `onnxgrad.check_gradient`.
    """
    checking = check_gradient if isinstance(options, CheckGradientOptions) else check_product
    with hooks.limits(options.timeout, options.max_memory):
        if options.loss is not None:
            model, options = _with_loss(load_own(model), options)
        return checking(model, **{**_forming(options), **more})


def _with_loss(program: Program, options: Any) -> tuple[Program, Any]:
    """Returns the program with the loss of the options, and the options for it: the target is the
    loss, and labels are not differentiated unless they are named.
    """
    floats = [v.name for v in program.main.inputs if v.dtype in FLOAT_DTYPES and not v.initializer]
    found = with_loss(program, options.loss)
    outputs = [v.name for v in found.program.main.outputs]
    same = {
        found.loss,
        str(outputs.index(found.loss)),
        str(outputs.index(found.loss) - len(outputs)),
    }
    if options.target is not None and not same & {str(t) for t in np.ravel(options.target)}:
        named = option("--loss 'cross_entropy{output=NAME}'", "loss='cross_entropy{output=NAME}'")
        raise InputError(
            f"{option('--target', 'target=')} beside a loss: the loss is the target; to name the "
            f"output that it reads, write {named}"
        )
    given = {"loss": None, "target": found.loss if options.target is None else options.target}
    if options.wrt is None:
        given["wrt"] = floats or None
    if found.detached:
        given["stop"] = [*(options.stop or ()), *found.detached]
    return found.program, options.having(**given)


def _forming(options: Declaration) -> dict[str, Any]:
    """Returns the options that form a derivative, by name."""
    limits = {o.name for cls in (Limits, PerSample, Finality, Losses) for o in options_of(cls)}
    return {name: value for name, value in options.settings().items() if name not in limits}


def _sample(
    model: ModelLike, found: Any, options: Limits, hooks: Hooks, proof: GradOptions
) -> GradientReport:
    """Checks some of the values numerically, with the same options otherwise."""
    if isinstance(options, PluggedDerivative):
        report = options.checked(model, found, proof)
        if report is not None:
            return report
    original = read(model)
    original.digests = found.program.digests  # the weights that are written are those checked
    forget_values(original, found.values)
    allowed = names_among(proof.allow_empty, found.values, "allow_empty")
    refuse_strange(allowed, found)
    bounds, names = Bounds.of(proof.atol, proof.rtol, proof.metric), spread(found.values)
    checking = CheckGradientOptions if found.kind == "gradient" else CheckProductOptions
    given = {**options.settings(), **proof.settings(Checked), "of": found.kind, "wrt": names}
    given["allow_empty"] = [name for name in allowed if name in names]
    known = {o.name for o in options_of(checking)}
    hooks.on_stage(f"{found.kind} against differences")
    sample = checking.from_settings({k: v for k, v in given.items() if k in known})
    parts = _equal_parts(original, found, hooks, proof) if isinstance(found, Split) else {}
    if found.kind == "gradient":
        parts["asked"] = proof.wrt
    report = check(original, sample, Hooks(), **parts)  # within the limits that hold already
    return bounded(report, bounds, found.values)


def _equal_parts(
    original: Program, found: Split, hooks: Hooks, proof: GradOptions
) -> dict[str, Any]:
    """Compares both parts, one after the other, with the gradient in one graph. Returns what a
    check needs to run them. Raises NotProved if they differ.
    """
    hooks.on_stage("both parts against the gradient")
    with sharing() as files:
        compared = partial(
            verify,
            files.of(found.program),
            files.of(as_functions(found)),
            provider=proof.provider,
            seeds=(proof.seed,),
        )
        try:
            report = compared(dims=proof.dims, inputs=proof.inputs)
        except CannotRun:
            if proof.inputs is not None:
                raise
            source = files.original(original)
            report = compared(inputs=_with_adjoints(original, source, found, proof))
    if not report.ok:
        raise NotProved(f"the two parts do not compute the gradient: {report.summary}")
    parts, targets = (found.forward, found.backward), found.gradient.targets
    return {"parts": parts, "adjoint": "input", "target": targets}


def _with_adjoints(
    original: Program, source: ModelProto | Path, found: Split, proof: GradOptions
) -> dict[str, Any]:
    """Returns inputs of the gradient at sizes at which the model runs: adjoints have the shapes of
    the model's results there, which no type may tell.
    """
    attempt = partial(run, source, provider=providers_of(proof.provider)[0])
    sizes = runnable(original.proto, proof.dims, proof.seed, attempt, count=1)[0]
    feeds = feeds_for(original.proto, seed=proof.seed, dims=sizes)
    results = attempt(feeds)
    rng = np.random.default_rng(proof.seed)
    for of, seed in found.gradient.seeds.items():
        if of in results:
            value = np.asarray(results[of])
            feeds[seed] = rng.standard_normal(value.shape).astype(value.dtype)
    return feeds


def spread(names: Sequence[str]) -> list[str]:
    """Returns a few of the names, evenly spread, the first and the last included."""
    if len(names) <= _SAMPLE:
        return list(names)
    return [names[round(i * (len(names) - 1) / (_SAMPLE - 1))] for i in range(_SAMPLE)]
