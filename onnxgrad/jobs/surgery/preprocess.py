"""The driver of `preprocess`: steps before inputs and after outputs of a model, with a proof whose
expected values come from NumPy and the model alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Names, Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.renaming import rename_values, symbols, value_names
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import Files, sharing
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.jobs.groups import Proof
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.proving import Run, proved, running
from onnxgrad.jobs.surgery.declarations import PreprocessOptions, Steps
from onnxgrad.jobs.surgery.fixed_dims import fix
from onnxgrad.name_lists import names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.transform.preprocessing.images import ChannelsLast
from onnxgrad.transform.preprocessing.processor_config import steps_of
from onnxgrad.transform.preprocessing.registry import AFTER, BEFORE, steps_after, steps_before
from onnxgrad.transform.preprocessing.steps import Before, Frame, Head, Prepared, Source
from onnxgrad.verify import Report
from onnxgrad.verify.feeds.dims import required_inputs
from onnxgrad.wording import option, perhaps

_OLDEST_OPSET = 13  # whose operators read axes as inputs, as the heads emit them
_USUAL = 64  # the size of an image for a model that accepts any


@frozen
class _Preparation:
    """The steps of an input, and the symbols of its new sizes."""

    name: str
    source: Source
    steps: Sequence[Before]

    def emit(self, x: Var) -> Prepared:
        """Emits the steps after a new input."""
        at = self.source.emit(Prepared(x))
        for step in self.steps:
            at = step.emit(at)
        return at

    def compute(self, x: Any) -> Prepared:
        """Computes the steps in NumPy."""
        at = self.source.compute(Prepared(np.asarray(x)))
        for step in self.steps:
            at = step.compute(at)
        return at


@frozen
class _Ending:
    """The heads of outputs. `results`: the outputs of the new model by the names of the heads.
    `doubts`: why rounding decided results that were computed.
    """

    names: Sequence[str]
    heads: Sequence[Head]
    results: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, None] = field(default_factory=dict)

    def emit(self, values: Mapping[str, Any], frame: Frame | None) -> Mapping[str, Any]:
        """Emits the heads."""
        for head in self.heads:
            values = head.emit(values, frame)
        return values

    def compute(self, values: Mapping[str, Any], frame: Frame | None) -> dict[str, Any]:
        """Computes the outputs in NumPy from those of the model."""
        for head in self.heads:
            self.doubts[head.doubt(values)] = None
            values = head.compute(values, frame)
        return {self.results[name]: value for name, value in values.items()}


def preprocess(model: ModelLike, options: PreprocessOptions, hooks: Hooks) -> Proved:
    """Adds the steps, proves the result against NumPy and the model, and lets the hooks write it.
    Raises InputError for steps that do not fit the model.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        if not options.before and not options.after and options.config is None:
            raise InputError(f"no steps are named: see {option('--before and --after', 'before')}")
        stepped, report = with_steps(program, options), None
        if options.verify:
            with sharing() as files:
                run = running(files.original(load_own(settled(model))), options)
                report = stepped.proved(stepped.expected(run), options, files)
        return write_if_proved(Proved(stepped.program, report, notes=stepped.notes), hooks)


def with_steps(program: Program, options: Steps) -> Stepped:
    """Returns a model with steps before its inputs and after its outputs. Raises InputError for
    steps that do not fit it.
    """
    if program.proto.training_info:
        raise InputError("the model holds a training step (training_info): export it first")
    hide_weight_inputs(program)
    graph = to_proto(program).graph
    texts = {name: (text, where) for name, text, where in _before(graph, options)}
    texts, read = _with_config(program, texts, options.config)
    before = [_Preparation(name, *steps_before(*text)) for name, text in texts.items()]
    after = [
        _Ending(names, steps_after(text, where)) for names, text, where in _after(program, options)
    ]
    raised, note = raise_opset(program) if program.opset < _OLDEST_OPSET else (program, "")
    made, plans, notes = _joined(raised, before, after, options)
    dtypes = {v.name: v.dtype for v in program.main.inputs}
    return Stepped(made, before, after, dtypes, plans, [*filter(None, [note]), *read, *notes])


@frozen
class Stepped:
    """A model with steps around it. `dtypes` are those of the inputs without the steps; `plans`
    sizes of the new inputs for the proof.
    """

    program: Program
    before: Sequence[_Preparation]
    after: Sequence[_Ending]
    dtypes: Mapping[str, int]
    plans: Sequence[Mapping[str, int]]
    notes: Sequence[str]

    def expected(self, run: Run) -> Run:
        """Returns the function that computes the outputs: the steps in NumPy, and the model, which
        `run` runs, between.
        """
        new = {name for ending in self.after for name in ending.results.values()}
        outputs = [v.name for v in self.program.main.outputs if v.name not in new]

        def expected(feeds: Mapping[str, Any]) -> dict[str, Any]:
            own, frames = dict(feeds), []
            for p in self.before:
                at = p.compute(feeds[p.name])
                dtype = numpy_dtype(self.dtypes[p.name])
                own[p.name] = np.ascontiguousarray(at.value.astype(dtype))
                frames += [at.frame] if at.frame is not None else []
            found = run(own)
            results: dict[str, Any] = {name: found[name] for name in outputs if name in found}
            for ending in self.after:
                values: dict[str, Array] = {name: np.asarray(found[name]) for name in ending.names}
                results |= ending.compute(values, frames[0] if len(frames) == 1 else None)
            return results

        return expected

    def proved(self, expected: Run, options: Proof, files: Files) -> Report:
        """Returns the report of the proof: on the caller's inputs, else on generated ones of two
        sizes.
        """
        given, plans = options.dims or {}, self.plans
        if options.inputs is not None or not plans[0] or plans[0].keys() <= given.keys():
            report = proved(self.program, expected, options, files)
        else:
            each = [options.having(dims={**plan, **given}) for plan in plans]
            report = Report.merge([proved(self.program, expected, o, files) for o in each])
        doubts = [*filter(None, (doubt for ending in self.after for doubt in ending.doubts))]
        if report.ok:
            return report
        return replace(report, unproved=(*doubts[:1], *report.unproved))


# ---- names ---------------------------------------------------------------------------------------


def _by_name(given: str | Mapping[str, str] | None, known: Sequence[str]) -> dict[str, str]:
    """Returns steps by name; "" is the only input or output. A known name wins, whatever characters
    it has.
    """
    found = {}
    for name, text in ({"": given} if isinstance(given, str) else given or {}).items():
        words = f"{name}={text}" if name else text
        fits = [other for other in known if words.startswith(f"{other}=")]
        longest = max(fits, key=len, default=name)
        found[longest] = words[len(longest) + 1 :] if fits else text
    return found


def _before(graph: Any, options: Steps) -> Iterator[tuple[str, str, str]]:
    """Yields input, steps and the name of the option. Raises InputError."""
    known = [v.name for v in required_inputs(graph)]
    for name, text in _by_name(options.before, known).items():
        where = _where("before", name)
        if not name and len(known) != 1:
            raise InputError(
                f"{where}: the model has the inputs {', '.join(known)}: write "
                f"{option('--before INPUT=STEPS', 'before={INPUT: STEPS}')}"
            )
        if name and name not in known:
            raise InputError(
                f"{where}: no input is called '{name}'{_near(name, name, known, BEFORE)}"
            )
        yield name or known[0], text, where


def _with_config(
    program: Program, texts: Mapping[str, tuple[str, str]], path: str | os.PathLike[str] | None
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Returns steps by input with those of a processor's configuration, and a note that has them.
    They belong to `pixel_values`, else to the only input of 4 axes. Raises InputError.
    """
    if path is None:
        return dict(texts), []
    where, inputs = option("--config", "config"), program.main.inputs
    images = [v.name for v in inputs if v.shape is not None and len(v.shape) == 4]
    name = "pixel_values" if "pixel_values" in images else images[0] if len(images) == 1 else ""
    if not name:
        found = f"several inputs of images: {', '.join(images)}" if images else "no input of images"
        raise InputError(f"{where}: the model has {found}; write the steps for each (--before)")
    steps = steps_of(os.fspath(path))
    first, _ = texts.get(name, ("", ""))
    text = ",".join(filter(None, [first, steps]))
    return {**texts, name: (text, where)}, [f"{name}: {text}"]


def _after(program: Program, options: Steps) -> Iterator[tuple[list[str], str, str]]:
    """Yields outputs, heads and the name of the option. Raises InputError."""
    known = [v.name for v in program.main.outputs]
    read = set[str]()
    for key, text in _by_name(options.after, known).items():
        where = _where("after", key)
        if not key and len(known) != 1:
            raise InputError(
                f"{where}: the model has the outputs {', '.join(known)}: write "
                f"{option('--after OUTPUT=STEPS', 'after={OUTPUT: STEPS}')}"
            )
        names = list(names_among(key, known, "after")) if key else known
        for name in names:
            if name not in known:
                raise InputError(
                    f"{where}: no output is called '{name}'{_near(key, name, known, AFTER)}"
                )
            if name in read:
                raise InputError(f"{where}: the output '{name}' has steps already")
            read.add(name)
        yield names, text, where
    for name in names_among(options.keep_output, known, "keep_output"):
        if name not in read:
            where = option(f"--keep-output {name}", f"keep_output={name!r}")
            raise InputError(
                f"{where}: no steps replace an output of this name{perhaps(name, read)}"
            )


def _near(key: str, name: str, known: Sequence[str], steps: Mapping[str, Any]) -> str:
    """Returns the end of a message on an unknown name in `key`, the text before a `=`: names like
    it, or how options of steps are given.
    """
    step, parenthesis, _ = key.rpartition(",")[2].partition("(")
    if parenthesis and step in steps:
        return f"; options of a step are in braces: {step}{{...}}"
    return perhaps(name, known, 3)


def _where(name: str, key: str) -> str:
    return option(f"--{name} {key}".strip(), f"{name}={{{key!r}: ...}}" if key else name)


# ---- the model -----------------------------------------------------------------------------------


def _joined(
    program: Program,
    before: Sequence[_Preparation],
    after: Sequence[_Ending],
    options: Steps,
) -> tuple[Program, list[dict[str, int]], list[str]]:
    """Returns the model with all steps, sizes of the new inputs for the proof, two for each, around
    the size that the model reads, and notes on symbols that have one size now. Raises InputError.
    """
    proto: ModelProto = copy_of(to_proto(program))
    free = Names()
    free.update(value_names(proto.graph), symbols(proto.graph))
    rename_values(proto.graph, {p.name: free.fresh(f"{p.name}_prepared") for p in before})
    for p in before:
        if any(v.name == p.name for v in program.main.outputs):
            raise InputError(f"the input '{p.name}' is an output as well, so it cannot change")
    made = program_of(proto, program.folder, None, program.digests)
    block, plans = made.main, [dict[str, int](), dict[str, int]()]
    places = {v.name: i for i, v in enumerate(program.main.inputs)}
    fixed = dict[str, int]()
    lengths = dict[Any, str]()
    with emitting(block, share=True, made_by="preprocess") as emitter:
        frames = []
        for p in before:
            own = block.inputs[places[p.name]]
            new = block.add_input(p.name, _type_for(p, own, free, lengths, plans))
            at = p.emit(new)
            fixed |= _sizes_fixed(at.value, own)
            frames += [at.frame] if at.frame is not None else []
            block.replace(own, _fitting(at.value, own, p.name))
            block.inputs = [new if v is own else v for v in block.inputs[:-1]]
        for ending in after:
            _end(made, ending, frames[0] if len(frames) == 1 else None, options)
        emitter.discard()
    block.touch()
    if not fixed:
        return made, plans, []
    sized = copy_of(to_proto(program))
    fix(sized, fixed)
    again = program_of(sized, program.folder, None, program.digests)
    made, plans, _ = _joined(again, before, after, options)
    return made, plans, [f"{symbol} is {size} now, by the steps" for symbol, size in fixed.items()]


def _sizes_fixed(x: Var, own: Var) -> dict[str, int]:
    """Returns the size that the steps give to each symbol of the model's input."""
    pairs = zip(x.shape or (), own.shape or (), strict=False)
    return {old: new for new, old in pairs if isinstance(new, int) and isinstance(old, str)}


def _type_for(
    p: _Preparation,
    own: Var,
    free: Names,
    lengths: dict[Any, str],
    plans: list[dict[str, int]],
) -> Any:
    """Returns the type of the new input, with new symbols for its sizes: one in `lengths` for all
    tokens that have one length in the model. Raises InputError.
    """
    image = p.source.kind == "image"
    shape, rank = own.shape, 4 if image else 2
    if shape is None or len(shape) != rank:
        what = "images [N,C,H,W] or [N,H,W,C]" if image else "tokens [N,T]"
        raise InputError(f"the input '{p.name}' is {own.type or 'of unknown type'}, not {what}")
    first = 1 if not image or any(isinstance(s, ChannelsLast) for s in p.steps) else 2
    sizes: list[Any] = list(shape[first : first + 2] if image else (shape[0], shape[1]))
    if any(step.resizes for step in p.steps):
        for i, word in enumerate(("height", "width")) if image else ((1, "length"),):
            old = sizes[i]
            usual = old if isinstance(old, int) else _USUAL
            sizes[i] = free.fresh(word) if image or old not in lengths else lengths[old]
            lengths[old] = sizes[i]
            # smaller and larger than the model's, and not square
            plans[0][sizes[i]] = max(1, usual * 3 // 4 - 1) if i else usual * 2 + 3
            plans[1][sizes[i]] = usual * 2 + 7 if i else usual + 5
    batch = free.fresh("batch") if shape[0] is None else shape[0]
    return p.source.type_for(own, (sizes[0], sizes[1]), batch)


def _fitting(x: Var, own: Var, name: str) -> Var:
    """Returns a value with the type of the model's input. Raises InputError if it does not fit."""
    assert own.shape is not None
    have = x.shape or (None,) * len(own.shape)
    fixed = list(zip(have, own.shape, strict=False))
    if len(have) != len(own.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in fixed
    ):
        raise InputError(
            f"the steps of '{name}' end in {x.type}, but the model reads {own.type}: resize, crop "
            "or pad to that"
        )
    if any(not isinstance(a, int) and isinstance(b, int) for a, b in fixed):
        raise InputError(
            f"the steps of '{name}' end in a size that depends on the image, but the model reads "
            f"{own.type}: crop or pad to that, or resize{{size=[H,W]}}"
        )
    return x if x.dtype == own.dtype else op.Cast(x, to=own.dtype)


def _end(made: Program, ending: _Ending, frame: Frame | None, options: Steps) -> None:
    """Emits the heads of outputs, which they replace."""
    block = made.main
    read = {v.name: v for v in block.outputs if v.name in ending.names}
    kept = names_among(options.keep_output, [v.name for v in block.outputs], "keep_output")
    values = ending.emit({name: read[name] for name in ending.names}, frame)
    for name, v in read.items():
        if name not in kept:
            block.remove_output(v)
    for name, v in values.items():
        if v.is_input or v.initializer is not None or v.returned or v in read.values():
            v = op.Identity(v)
        if v.name != name:
            inner = {w.name: w for w in block.vars() if not w.is_input and not w.returned}
            if name in inner:
                v.swap_names(inner[name])
            else:
                v.rename(made.names.fresh(name))
        block.add_output(v)
        ending.results[name] = v.name
