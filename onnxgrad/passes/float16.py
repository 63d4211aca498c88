"""Converts float32 weights and computations to float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.derivations import Derivations, Predicate
from onnxgrad.ir.function_bodies import called, callees
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.laws.float16.convert import LAW, Conversion
from onnxgrad.laws.float16.forms import has_floats
from onnxgrad.laws.float16.keeping import before_integers, is_edge, only_integers, plan
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import Inline
from onnxgrad.passes.remove_unused import names_function
from onnxgrad.rewrite.trace import Trace


@register
@frozen
class Float16(Pass):
    """f(x) = float32(f16(float16(x))): weights and computations of float32 in float16.

    These stay in float32: sums, powers, positions and indices; operators without a float16 form;
    `large` values, which passed 65504 in a run; values computed from these and a few numbers alone;
    and whatever `keep` names (nodes, values, operators or globs of these, separated by spaces);
    `stay`, results of bindings, each with its reason. `convert` names bindings to convert anyway,
    unless they could not run in float16. `io`: convert inputs and outputs too. Masks beyond 65504
    become -65504. Local functions with floats are inlined, because their bodies have no types.
    """

    name: ClassVar[str] = "float16"
    keep: str = ""
    io: bool = False
    large: tuple[str, ...] = ()
    convert: str = ""
    stay: tuple[tuple[str, str], ...] = ()

    def run(self, program: Program, trace: Trace) -> None:
        """Converts the program, one rewrite for each binding. Raises InputError for a name in
        `keep` or `convert` that matches nothing.
        """
        if not program.opset:  # without the default domain there is no Cast
            return
        self._open_functions(program, trace)
        for block in blocks_in(program.main):
            block.schedule()
        found = plan(
            program, self.keep.split(), frozenset(self.large), self.convert.split(), dict(self.stay)
        )
        trace.of(LAW).tried += len(found.forms) + len(found.staying)
        trace.of(LAW).matched += len(found.forms)
        for b, why in found.staying.items():
            if not is_edge(b):
                trace.missed(LAW, b, why)
        conversion = Conversion(found)
        for b in found.forms:
            if trace.stopped:
                return
            results = [v.name for v in b.outputs[:1] if v is not None]
            _fire(trace, str(b), results, found.facts[b])
            conversion.in_float16(b)
        for v, made in found.constants.items():
            trace.notes.update(dict.fromkeys(f"{v.name}: {note}" for note in made.notes))
        _note_defaults(program, trace)
        if self.io:
            _interface(program, conversion, trace)

    def _open_functions(self, program: Program, trace: Trace) -> None:
        """Inlines the functions that compute with floats."""
        work = [
            key for b in program.main.walk() if (key := called(b)) is not None and has_floats(b)
        ]
        chosen: dict[FunctionKey, None] = {}
        while work:
            key = work.pop()
            if key not in chosen and not any(names_function(p, key) for p in self.keep.split()):
                chosen[key] = None
                work += callees(program.functions[key])
        if chosen:
            names = " ".join(f"{domain}::{name}::{overload}" for domain, name, overload in chosen)
            Inline(names=names).run(program, trace)


def _fire(
    trace: Trace, where: str, results: Sequence[str] = (), facts: Sequence[Predicate] = ()
) -> None:
    if isinstance(trace.derivations, Derivations):
        trace.derivations.pending += facts
    trace.fired(LAW, where, results)
    trace.rounded = True


def _note_defaults(program: Program, trace: Trace) -> None:
    """Notes the weights that callers may override."""
    for v in program.main.inputs:
        if v.overridable and v.dtype == TensorProto.FLOAT:
            trace.notes[f"{v.name}: this weight is also an input, and stays float32"] = None


def _interface(program: Program, conversion: Conversion, trace: Trace) -> None:
    """Converts inputs and outputs to float16."""
    block, to_integers = program.main, before_integers(program)
    for v in list(block.outputs):
        if v.dtype == TensorProto.FLOAT and not v.is_input and not trace.stopped:
            _fire(trace, f"output {v.name}")
            conversion.output(v, block)
    for x in block.inputs:
        if x.dtype == TensorProto.FLOAT and not trace.stopped:
            if only_integers([x], to_integers):
                trace.notes[f"{x.name}: this input stays float32, its values become integers"] = (
                    None
                )
                continue
            _fire(trace, f"input {x.name}")
            conversion.input(x)
