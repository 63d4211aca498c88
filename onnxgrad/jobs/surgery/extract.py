"""The driver of `extract`: writes the part of a model that computes some of its values
from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program, cut
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.surgery.declarations import ExtractOptions
from onnxgrad.name_lists import matching, names_among
from onnxgrad.passes.remove_unused import RemoveUnusedFunctions
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Report, run
from onnxgrad.verify import verify as prove
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.wording import option


def extract(model: ModelLike, options: ExtractOptions, hooks: Hooks) -> Proved:
    """Cuts out a part, proves that it computes the same values as the whole model, and lets the
    hooks write it. Raises InputError as `extracted`.
    """
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        program = load_own(model)
        hooks.on_read(program)
        part = extracted(program, options.inputs, options.outputs)
        proof = (options.provider, options.seed, options.dims)
        report = proved(model, part, *proof) if options.verify else None
        return write_if_proved(Proved(part, report), hooks)


def extracted(
    program: Program, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Program:
    """Reduces a Program to the part between these values, and returns it."""
    block = program.main
    ends = _named(program, outputs, "outputs") if outputs else list(block.outputs)
    starts = None if not inputs else _named(program, inputs, "inputs")
    for v in starts or ():
        if any(v is end for end in ends):
            raise InputError(f"'{v.name}' is requested as input and as output")
    for v in dict.fromkeys(block.outputs):
        block.remove_output(v)
    for v in ends:
        block.add_output(v)
    if starts is not None:
        given = [cut(program, v) for v in starts]
        block.remove_unused()
        missing = [v for v in block.inputs if v.users and v.initializer is None and v not in given]
        if missing:
            raise InputError(
                f"the outputs also depend on '{missing[0].name}', which is not an input of the "
                f"part: add it to {option('--inputs', 'inputs')}"
            )
        defaults = [v for v in block.inputs if v.initializer is not None and v.use_count]
        block.inputs = [*given, *(v for v in defaults if v not in given)]
    else:
        block.remove_unused()
        block.inputs = [v for v in block.inputs if v.use_count]
    block.touch()
    for v in [v for v in block.initializers.values() if not v.use_count]:
        v.is_input = False
        block.remove_initializer(v)
    RemoveUnusedFunctions().run(program, Trace())
    return program


def computed(program: Program) -> list[str]:
    """Returns the names of the values that nodes of the main graph compute, without constants."""
    made = (b for b in program.main.bindings if not b.is_op("Constant"))
    return [v.name for b in made for v in b.outputs if v is not None]


def _named(program: Program, given: Sequence[str], flag: str) -> list[Var]:
    """Returns the values of names, or of globs of computed values and of the model's inputs."""
    values = {v.name: v for v in program.main.vars()}
    names = names_among(given, values, flag)
    if len(set(names)) < len(names):
        what = flag.removesuffix("s")
        raise InputError(f"{what} '{max(names, key=list(names).count)}' is requested twice")
    globs = computed(program)
    if flag == "inputs":
        globs = [v.name for v in program.main.inputs if v.initializer is None] + globs
    missing = "the main graph has no value"
    return [values[name] for name in matching(values, names, flag, missing, globs)]


@contextmanager
def remove_what_served(program: Program, ends: Iterable[Var]) -> Iterator[None]:
    """Removes the nodes, weights and functions that only these values need, after the code inside
    of the context has removed their readers.
    """
    block = program.main
    made = [v.definition for v in ends if v.definition is not None]
    read = [v for v in block.initializers.values() if v.use_count]
    yield
    block.remove_unused(made)
    for v in read:
        if not v.use_count and not v.is_input:
            block.remove_initializer(v)
    RemoveUnusedFunctions().run(program, Trace())


def proved(
    model: ModelLike,
    part: Program,
    provider: str = "cpu",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Report:
    """Compares the part, on the whole model's values at its inputs, with the whole model's values
    at its outputs. Outputs of unknown rank get the rank of this run, because onnx.checker demands
    one.
    """
    with sharing() as files:
        whole = files.proto(load_own(model))
        source = files.runnable(whole)
        sizes = runnable(
            whole, dims, seed, lambda feeds: run(source, feeds, provider=provider), count=1
        )[0]
        feeds = feeds_for(whole, seed=seed, dims=sizes)
        starts = [v.name for v in part.main.inputs if v.initializer is None]
        ends = [v.name for v in part.main.outputs]
        wanted = dict.fromkeys([*starts, *ends])
        constants = files.load(whole).main.initializers.items()
        seen: dict[str, Any] = {n: v.const for n, v in constants if n in wanted and v.is_constant}
        seen |= feeds
        between = [n for n in wanted if n not in seen]
        if between:
            shown = files.runnable(_showing(whole, between))
            seen |= run(shown, feeds, provider=provider, optimize=False)
        for v in part.main.outputs:
            declare(v, seen[v.name])
        return prove(
            files.of(part),
            expect={n: seen[n] for n in ends},
            inputs={n: seen[n] for n in starts},
            provider=provider,
        )


def declare(v: Var, value: object) -> None:
    """Gives an output of unknown rank the rank of its value in a run."""
    if not isinstance(value, np.ndarray) or not isinstance(v.type, (TensorType, type(None))):
        return
    if v.type is None or v.type.shape is None:
        dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        v.type = TensorType(v.dtype or dtype, (None,) * value.ndim)


def _showing(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Returns the model with these values as its outputs."""
    made = copy_of(model)
    known = {v.name: v for v in (*model.graph.output, *model.graph.value_info)}
    del made.graph.output[:]
    made.graph.output.extend(known.get(n, ValueInfoProto(name=n)) for n in names)
    return made
