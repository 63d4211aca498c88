"""`onnxgrad grad`: writes the gradient of a model, or products with its derivatives, as an ONNX
graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import write_html
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_model, writer
from onnxgrad.errors import InputError, NotProved
from onnxgrad.extensions import plugged
from onnxgrad.ir.storage.places import check_output
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.jobs.declared import options_of
from onnxgrad.jobs.gradient_declarations import (
    GradientOptions,
    GradOptions,
    HessianOptions,
    HessianProductOptions,
    JacobianOptions,
    Jacobians,
    JvpOptions,
    LinearizeOptions,
    MarkOptions,
    Splitting,
)
from onnxgrad.jobs.gradients import derive
from onnxgrad.jobs.groups import Limits
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.gradient import (
    GradientMade,
    MarksMade,
    ProductMade,
    SplitMade,
    nodes,
)
from onnxgrad.report.html.gradient import gradient_page
from onnxgrad.report.parts import heading
from onnxgrad.report.proof import proof_lines
from onnxgrad.transform.gradient_split import Split, as_functions, manifest_of, save_split
from onnxgrad.verify.running.process_limits import bounding_us

_JOBS: dict[str | None, tuple[type[Limits], type[GradientMade]]] = {
    None: (GradientOptions, GradientMade),
    "jvp": (JvpOptions, ProductMade),
    "hvp": (HessianProductOptions, ProductMade),
    "jacobian": (JacobianOptions, ProductMade),
    "hessian": (HessianOptions, ProductMade),
    "mark": (MarkOptions, MarksMade),
    "split": (LinearizeOptions, SplitMade),
}
# options of the derivative, not of its proof
_FORMED = {o.name for cls in (GradientOptions, Jacobians, Splitting) for o in options_of(cls)}
_PARTS = 2  # forward and backward
_FORMING = [o for o in options_of(GradOptions) if o.name in _FORMED]


def run(args: argparse.Namespace, out: Output) -> int:
    """Writes the graph if a sample of its derivatives agrees with finite differences."""
    kind = "mark" if args.mark else args.of if args.function is None else "function"
    kind = _split_kind(args, kind) if args.split else kind
    if not args.split and args.output is None:
        raise InputError("-o OUT is missing: name the file to write, or two after --split")
    targets = [target_of(name) for name in args.split or [args.output]]
    if args.html is not None and kind is not None:
        raise InputError("--html shows a gradient graph: this writes another kind of model")
    job, shape = _JOBS.get(kind) or _plugged(str(kind))
    options = _options(args, kind, job)
    proof = None if args.mark else args.options
    if proof is not None and proof.verify:
        require_runtime(args.provider)
    model, before = source(args.model), list[int]()
    with naming(args.model):
        with out.progress("grad", 1) as advance:
            hooks = Hooks(
                on_stage=lambda stage: advance(stage, None),
                on_read=lambda program: before.append(nodes(program)),
                write=None if kind == "split" else writer(targets[0], out),
                limits=bounding_us,
            )
            done = derive(model, options, hooks, proof)
            if kind == "split" and done.ok:
                _write_parts(done.found, targets, out)
        made = shape(done.found, before[0], done.seconds, done.report)
        write_html(args, lambda: _page(args, made, model, options), out)
    rows = done.rows
    out.show(heading(shown(args.model)), *made.parts(out.verbose))
    out.show(*(() if rows is None else proof_lines(rows, out.verbose)))
    more = {} if rows is None else {"samples": rows.to_dict()}
    out.json({"model": args.model, "output": args.split or args.output, **made.to_dict(), **more})
    if not done.ok:
        failed = rows.summary if rows is not None and not rows.ok else done.report
        raise NotProved(f"{args.model}: {failed}; nothing was written")
    return 0


def _split_kind(args: argparse.Namespace, other: str | None) -> str:
    """Raises InputError unless --split is used without other forms and names one or two files."""
    if other is not None or args.output is not None:
        flag = "-o" if args.output is not None else f"--{other}"
        raise InputError(f"--split writes two parts to its own files: leave {flag} out")
    if len(args.split) > _PARTS:
        raise InputError(
            "--split needs two files, FORWARD and BACKWARD, or one file for both, after MODEL"
        )
    if STDIN in args.split:
        raise InputError("--split writes files, and none of them to stdout")
    if len(args.split) == _PARTS:
        check_output(manifest_of(Path(args.split[1])))
    return "split"


def _write_parts(found: Split, targets: Sequence[Path | None], out: Output) -> None:
    forward, *others = [Path(str(target)) for target in targets]
    if others:
        out.wrote(forward, *others, save_split(found, forward, others[0]))
    else:
        write_model(as_functions(found), forward, out)


def _plugged(kind: str) -> tuple[type[Limits], type[GradientMade]]:
    found = plugged("derivatives", kind)
    return found, found.made


def _options(args: argparse.Namespace, kind: str | None, job: type[Limits]) -> Limits:
    """Returns the options of the job from the flags. Raises InputError for flags that do not apply
    to it.
    """
    options = args.options
    if kind == "mark" and options.checkpoint is None:
        raise InputError(
            "--mark writes the marks of --checkpoint: pass --checkpoint auto, a size or marks"
        )
    if kind == "mark" and options.loss is not None:
        raise InputError("--mark changes no values of the model: leave --loss out")
    if kind == "function" and options.given & {"wrt", "target", "stop", "checkpoint", "loss"}:
        raise InputError(
            "--function differentiates all results with respect to all operands: remove --wrt, "
            "--target, --stop, --checkpoint and --loss"
        )
    settings = options.settings()
    known = {o.name for o in options_of(job)}
    for o in _FORMING if kind not in ("mark", "function") else ():
        if o.name not in known and settings[o.name] != o.default:
            of = f"casadi {kind}" if "kind" in known else kind
            only = {"mode": "--jacobian", "keep": "--split"}.get(o.name)
            raise InputError(
                f"{o.flag} {f'is for {only}' if only else f'does not apply to --{of}'}"
            )
    given = {k: settings[k] for k in known & {*(options.given if kind else settings)}}
    own = {"kind": kind, "name": args.function}
    return job.from_settings({**given, **{k: v for k, v in own.items() if k in known}})


def _page(
    args: argparse.Namespace, made: GradientMade, model: Path | bytes, options: Limits
) -> str:
    """Returns the page; with checkpoints, it also shows the memory of the gradient without them."""
    plain = None
    if args.options.checkpoint is not None:
        hooks = Hooks(limits=bounding_us)
        plain = derive(model, options.having(checkpoint=None), hooks).found
    return gradient_page(made, shown(args.model), plain, args.options.dims or {})
