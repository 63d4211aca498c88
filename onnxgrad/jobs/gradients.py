"""The driver of gradients and of products with derivatives: forms the graph, compares a sample with
finite differences, and lets the caller write it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx import ModelProto

from onnxgrad.errors import NotProved
from onnxgrad.grad.checking.check import check_gradient, refuse_strange
from onnxgrad.grad.checking.derivatives import check_product
from onnxgrad.grad.checking.report import GradientReport, bounded
from onnxgrad.grad.checkpointing.marks import mark
from onnxgrad.grad.derivatives.casadi import sibling
from onnxgrad.grad.derivatives.hessian import hessians
from onnxgrad.grad.derivatives.jacobian import jacobians
from onnxgrad.grad.derivatives.vector_products import hessian_products, tangents
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.function_gradient import add_function_gradient, check_function
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.ir.load import ModelLike, collector_paused, load, load_own
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.declared import Declaration, options_of
from onnxgrad.jobs.gradient_declarations import (
    CasadiOptions,
    Checked,
    CheckGradientOptions,
    CheckProductOptions,
    FunctionGradientOptions,
    GradientOptions,
    GradOptions,
    HessianOptions,
    HessianProductOptions,
    JacobianOptions,
    JvpOptions,
    LinearizeOptions,
    MarkOptions,
    PerSample,
)
from onnxgrad.jobs.groups import Limits
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.options import providers_of
from onnxgrad.transform.open_batch import Opened
from onnxgrad.transform.per_sample import Samples, map_samples, one_sample, samples_of
from onnxgrad.transform.split import Split, as_functions, linearize
from onnxgrad.verify import Report, verify
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.rows.proof import RowProof

_SAMPLE = 8  # values of a proof; a check looks at all


@dataclass(frozen=True)
class Changed:
    """A changed program, the names of its new parts, and notes."""

    program: Program
    new: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
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


def _marked(program: Program, **options: Any) -> Changed:
    return Changed(program, mark(program, **options))


def _with_function(program: Program, name: str) -> Changed:
    program, _ = raise_opset(program)
    return Changed(program, add_function_gradient(program, name)[1])


_FORMED: dict[type[Declaration], Callable[..., Any]] = {
    GradientOptions: differentiate,
    JvpOptions: tangents,
    HessianProductOptions: hessian_products,
    JacobianOptions: jacobians,
    HessianOptions: hessians,
    CasadiOptions: sibling,
    MarkOptions: _marked,
    FunctionGradientOptions: _with_function,
    LinearizeOptions: linearize,
}


def derive(
    model: ModelLike, options: Limits, hooks: Hooks | None = None, proof: GradOptions | None = None
) -> Derived:
    """Form the derivative that the options describe, check a sample of it as `proof` says, and let
    the hooks write it if the check passes. Raises InputError as `onnxgrad.gradient`.
    """
    hooks, started, report, rows = hooks or Hooks(), time.perf_counter(), None, None
    each = isinstance(options, GradientOptions) and options.per_sample
    proves = proof is not None and proof.verify
    with hooks.limits(options.timeout, options.max_memory):
        with collector_paused():
            program = load_own(model)
            hooks.on_read(program)
            if each:
                samples = samples_of(program)
                program = one_sample(program, samples)
                model = to_proto(program, weights=True) if proves else model
            found = _FORMED[type(options)](program, **_forming(options))
            if each:
                one = to_proto(found.program, weights=True) if proves else None
                found, opened = _of_samples(found, samples)
        seconds = time.perf_counter() - started
        if proof is not None and proves and each:
            proof = _without(proof, samples)
            hooks.on_stage("every sample against a batch of 1")
            rows = _each_sample(one, found, opened, proof)
        if proof is not None and proves and not proof.ste:  # an estimate cannot be checked
            report = _sample(model, found, options, hooks, proof)
        made = Derived(found, seconds, report, rows)
        if made.ok and hooks.write is not None:
            hooks.write(found.program)
    return made


def _of_samples(found: Gradient, samples: Samples) -> tuple[Gradient, Opened]:
    """Map a gradient at a batch of 1 over the samples."""
    like = {name: value for value, name in found.adjoints.items()}
    like |= {name: target for target, name in found.seeds.items()}
    opened = map_samples(found.program, samples, like)
    slow = [f"once per sample, as slow as single runs: {reason}" for reason in opened.scanned]
    notes = (*found.notes, *slow, *opened.warnings)
    return replace(found, program=opened.program, notes=notes), opened


def _without(proof: GradOptions, samples: Samples) -> GradOptions:
    """Return the options of a proof at a batch of 1, without the size of the batch symbol."""
    dims = {n: size for n, size in (proof.dims or {}).items() if n != samples.symbol}
    return proof.having(dims=dims or None)


def _each_sample(
    one: ModelProto | None, found: Gradient, opened: Opened, proof: GradOptions
) -> Report:
    """Compare the gradients of several samples with those of each sample by itself. Gradients may
    be equal in all samples.
    """
    made = to_proto(opened.program, weights=True)
    return RowProof(
        one or made, made, opened.rows, providers_of(proof.provider), proof.dims, proof.seed,
        proof.inputs, [*found.adjoints.values()],
    ).report()  # fmt: skip


def check(
    model: ModelLike, options: CheckGradientOptions | CheckProductOptions, hooks: Hooks, **more: Any
) -> GradientReport:
    """Compare a gradient, or a product with a derivative, with finite differences, value by value.
    Raises errors as `onnxgrad.check_gradient`.
    """
    checking = check_gradient if isinstance(options, CheckGradientOptions) else check_product
    with hooks.limits(options.timeout, options.max_memory):
        return checking(model, **{**_forming(options), **more})


def _forming(options: Declaration) -> dict[str, Any]:
    """Return the options that form a derivative, by name."""
    limits = {o.name for cls in (Limits, PerSample) for o in options_of(cls)}
    return {name: value for name, value in options.settings().items() if name not in limits}


def _sample(
    model: ModelLike, found: Any, options: Limits, hooks: Hooks, proof: GradOptions
) -> GradientReport:
    """Check some of the values numerically, with the same options otherwise."""
    original = load(model)
    original.digests = found.program.digests  # the weights that are written are those checked
    if isinstance(options, FunctionGradientOptions):
        program, _ = raise_opset(original)
        return check_function(program, options.name, seed=proof.seed, provider=proof.provider)
    refuse_strange(proof.allow_empty, found)
    bounds, names = Bounds.of(proof.atol, proof.rtol, proof.metric), spread(found.values)
    checking = CheckGradientOptions if found.kind == "gradient" else CheckProductOptions
    given = {**options.settings(), **proof.settings(Checked), "of": found.kind, "wrt": names}
    given["allow_empty"] = [name for name in proof.allow_empty if name in names]
    known = {o.name for o in options_of(checking)}
    hooks.on_stage(f"{found.kind} against differences")
    sample = checking.from_settings({k: v for k, v in given.items() if k in known})
    parts = _equal_parts(found, hooks, proof) if isinstance(found, Split) else {}
    report = check(original, sample, Hooks(), **parts)  # within the limits that hold already
    return bounded(report, bounds, found.values)


def _equal_parts(found: Split, hooks: Hooks, proof: GradOptions) -> dict[str, Any]:
    """Compare both parts, one after the other, with the gradient in one graph. Return what a check
    needs to run them. Raises NotProved if they differ.
    """
    hooks.on_stage("both parts against the gradient")
    whole, both = (to_proto(p, weights=True) for p in (found.program, as_functions(found)))
    report = verify(
        whole, both, provider=proof.provider, seeds=(proof.seed,), dims=proof.dims,
        inputs=None if proof.inputs is None else proof.inputs,
    )  # fmt: skip
    if not report.ok:
        raise NotProved(f"the two parts do not compute the gradient: {report.summary}")
    parts = tuple(to_proto(p, weights=True) for p in (found.forward, found.backward))
    return {"parts": parts, "adjoint": "input", "target": found.gradient.targets}


def spread(names: Sequence[str]) -> list[str]:
    """Return a few of the names, evenly spread, the first and the last included."""
    if len(names) <= _SAMPLE:
        return list(names)
    return [names[round(i * (len(names) - 1) / (_SAMPLE - 1))] for i in range(_SAMPLE)]
