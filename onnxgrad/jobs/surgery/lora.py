"""The driver of `lora`: adds adapters, merges them, or makes them inputs, with a proof."""

from __future__ import annotations

from typing import Any, Literal

from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.proving import proved, running
from onnxgrad.jobs.surgery.declarations import LoraOptions
from onnxgrad.train.adapters import Adapters, merge, with_adapter_inputs
from onnxgrad.train.adapters import lora as add_adapters
from onnxgrad.train.adapters.merge import without_adapters
from onnxgrad.wording import counted

Form = Literal["added", "merged", "inputs"]


def lora(model: ModelLike, options: LoraOptions, hooks: Hooks, form: Form) -> Proved:
    """Returns the model with adapters, proved equal to the model; with `merged` those that it has
    in its weights, proved equal to it; with `inputs` those that it has as inputs, of which the
    proof feeds none: it computes what the model computes without adapters. The hooks write it.

    Raises InputError as `train.lora`, `train.merge` and `train.with_adapter_inputs` do.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        made, reference = _made(program, options, form)
        report = None
        if options.verify:
            with sharing() as files:
                run = running(files.original(reference), options)
                report = proved(made, run, options, files)
        return write_if_proved(Proved(made, report), hooks)


def _made(program: Program, options: LoraOptions, form: Form) -> tuple[Program, Program]:
    """Returns the result, and the program that computes the same."""
    if form == "merged":
        return merge(program), program
    if form == "inputs":
        return with_adapter_inputs(program), without_adapters(program)
    rank, alpha, seed = options.rank, options.alpha, options.initial_seed
    made: Any = add_adapters(program, options.targets, rank=rank, alpha=alpha, seed=seed)
    return made, program


def described(adapters: Adapters) -> str:
    """Returns the number of adapters, their rank, and the number of their numbers."""
    size = sum(value.size for value in adapters.values.values())
    return (
        f"{counted(len(adapters.weights), 'adapter')} of rank {adapters.rank}, alpha "
        f"{adapters.alpha:g}: {counted(size, 'number')}"
    )
