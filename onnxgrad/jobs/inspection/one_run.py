"""The driver of `run`: runs a model once, in onnxruntime or in the float64 evaluator, and keeps its
outputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.jobs.declarations import RunOptions
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.proving import original_of
from onnxgrad.verify import open_session
from onnxgrad.verify.feeds.proof_cases import choose_cases
from onnxgrad.verify.layers.comparison import kept
from onnxgrad.verify.proof_model import Model
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.report import Case
from onnxgrad.verify.values import Value
from onnxgrad.wording import option


@frozen
class Run:
    """The outputs of a run by name, its sizes and seed, and notes on outputs that were not
    saved.
    """

    outputs: Mapping[str, Value]
    case: Case
    notes: tuple[str, ...]


def run_once(model: ModelLike, options: RunOptions, hooks: Hooks) -> Run:
    """Runs a model on the given inputs, or on generated ones at the first sizes with which it runs.

    Raises InputError for inputs that do not fit, and CannotRun if the model does not run on them.
    """
    with hooks.limits(options.timeout, options.max_memory), ExitStack() as left:
        if options.save is not None and Path(options.save).suffix != ".npz":
            where = option(f"--save {os.fspath(options.save)}", "save")
            raise InputError(f"{where}: outputs are written as an .npz: end the name with .npz")
        program = load(settled(model))
        runnable = left.enter_context(original_of(program))
        keep = None
        if options.save is not None:
            keep = left.enter_context(ArraysFile(Path(options.save)))
        found, *_ = choose_cases(
            to_proto(program), options.inputs, options.dims, (options.seed,),
            _evaluator(runnable, options), edges=False,
        )  # fmt: skip
        outputs = {v.name: found.results[v.name] for v in program.main.outputs}
        notes = [] if keep is None else [x for n, v in outputs.items() for x in kept(keep, n, v)]
    return Run(outputs, found.case, tuple(notes))


def _evaluator(
    model: Model, options: RunOptions
) -> Callable[[Mapping[str, Value]], dict[str, Value]]:
    if options.evaluator == "float64":
        return Float64(model).run
    return open_session(model, provider=options.provider, threads=options.threads).run
