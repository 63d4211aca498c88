"""The jobs as Python functions. Their keywords come from the declarations of `onnxgrad.jobs`;
`functions.pyi`, for editors and mypy, is written by scripts/make_stubs.py.
"""

from __future__ import annotations

import os
from typing import Any

from onnxgrad.ir.load import ModelLike, check_room, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.jobs import optimize as driver
from onnxgrad.jobs.declarations import ConvertOpsetOptions, OptimizeOptions
from onnxgrad.jobs.declared import from_keywords
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.report.optimized import OptimizedModel


@from_keywords(OptimizeOptions)
def optimize(model: ModelLike, *, options: OptimizeOptions, report: bool = False) -> Any:
    """Rewrite a model into a smaller, faster one that computes the same, and prove it.

    Returns the optimised model in the type you passed in; paths, bytes and streams return a
    ModelProto. With `report=True` returns an `OptimizedModel`: that model, its rewrites and their
    proof. `passes` accepts text, and in a list passes, rules and families too; `inputs` accepts
    files, and arrays by name. Options set here overrule the `recipe`; None: no recipe.

    Raises InputError, RewriteRefuted if the proof fails, NotProved if it proves nothing or the
    result misses what the recipe requires, LimitReached.

    >>> done = onnxgrad.optimize("models/lstmcell.onnx", report=True)
    >>> done.proof.verdict, done.rewrites[0].rule
    ('equal', 'fold_constant')
    """
    return _optimized(model, options, report)


@from_keywords(ConvertOpsetOptions)
def convert_opset(model: ModelLike, *, options: ConvertOpsetOptions, report: bool = False) -> Any:
    """Convert a model to opset `to` of the default domain (7 to 28), and prove both equal.

    Returns the model in the type you passed in; with `report=True` an `OptimizedModel`.
    Local functions, nested graphs, names, metadata and external data stay; a node is written anew
    only if its operator changed in between, and to an older opset only if that means the same
    there. Raises InputError for an operator that cannot be what it was, and as `optimize` if the
    proof fails.

    >>> onnxgrad.convert_opset("models/lstmcell.onnx", 23).opset_import[0].version
    23
    """
    return _optimized(model, options.optimizing(), report)


def _optimized(model: ModelLike, options: OptimizeOptions, report: bool) -> Any:
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    outcome = Outcome(name, None, name or "the model", options.explain)
    hooks = Hooks(on_read=lambda program: check_room(program, model))
    result = to_kind_of(driver.optimize(settled(model), options, hooks, outcome).program, model)
    outcome.written = True
    return OptimizedModel(result, outcome) if report else result
