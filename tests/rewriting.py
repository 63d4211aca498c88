"""What the tests of passes and laws share: a graph given as text, passes run on it, what became of it, and whether the
results are the same: in onnxruntime within rounding, to the last bit, or by the whole proof.

    done = apply(model_of(text, weights(w=(4, 3))), "fold-constant,remove-unused")
    assert done.ops == ["MatMul"] and done.fired("some_law") == 1
    assert_same_results(done)  # or assert_same_bits(done, x=special(2, 4)), or done.prove()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.journal import Recorder, digest_of
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Report, feeds_for, run, verify
from onnxgrad.verify.feeds.dims import dim_plans
from onnxgrad.verify.interface import interface_differences
from onnxgrad.verify.reference.evaluate import reference
from tests.helpers import parse

Array = np.ndarray[Any, Any]
TOLERANCE = {np.dtype(np.float16): 4e-3, np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}
SPECIAL = [np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-7, -1e-7, 1.5, -1.5, 7.0, -7.0, 6.0, 1.0, 60000.0]
NUMPY = {"float": np.float32, "double": np.float64, "float16": np.float16}

# one chain in a branch, and again in a function, whose values have no types
ABS_OF_NEG_TWICE = """
<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
g (float[3] x, bool c) => (float[3] y) {
  b = If (c) <then_branch = t () => (float[3] a) { n = Neg(x) a = Abs(n) },
              else_branch = e () => (float[3] d) { d = my.F(x) }>
  y = Relu(b)
}
<domain: "my", opset_import: ["" : 20]>
F (x) => (y) { n = Neg(x) y = Abs(n) }
"""


@dataclass(frozen=True)
class Done:
    """A graph before and after some passes."""

    before: ModelProto
    after: ModelProto
    program: Program
    trace: Trace

    @property
    def block(self) -> BindingBlock:
        return self.program.main

    @property
    def text(self) -> str:
        """The main block, as golden text shows it."""
        return str(self.block)

    @property
    def ops(self) -> list[str]:
        """The operators of the main graph in order, those that make constants aside."""
        return [b.op for b in self.block.bindings if b.op != "Constant"]

    @property
    def counts(self) -> Counter[str]:
        """How often each operator stands in the main graph and the blocks nested there."""
        return Counter(b.op for b in self.block.walk())

    def count(self, *ops: str) -> int:
        """Bindings of these operators, in nested blocks and functions too."""
        return sum(b.op in ops for block in self.program.blocks() for b in block.bindings)

    def fired(self, rule: str) -> int:
        return self.trace.counts[rule].applied if rule in self.trace.counts else 0

    def reasons(self, rule: str) -> list[str]:
        """Why this rule declined, each time that it did."""
        return [reason for name, _, reason in self.trace.declined if name == rule]

    @property
    def declined(self) -> str:
        """Every reason to decline, one a line."""
        return "\n".join(reason for _, _, reason in self.trace.declined)

    def prove(self, **options: Any) -> Report:
        """The proof, which must succeed and must have run onnxruntime."""
        options.setdefault("weights", "rounded" if self.trace.rounded else "same")
        report = verify(self.before, self.after, seeds=(0,), **options)
        assert report.ok, str(report)
        assert report.checks["onnxruntime"].ran
        return report


def weights(
    sizes: Mapping[str, Sequence[int]] | None = None, *, positive: str = "", **more: Sequence[int]
) -> dict[str, Any]:
    """Random float32 arrays of these shapes, the same ones each time; those named in `positive` lie in 0.5 .. 1.5."""
    rng = np.random.default_rng(7)
    found = {}
    for name, shape in {**(sizes or {}), **more}.items():
        inside = name in positive.split()
        array = rng.uniform(0.5, 1.5, tuple(shape)) if inside else rng.standard_normal(tuple(shape))
        found[name] = array.astype(np.float32)
    return found


def special(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """NaN, infinities, zeros of both signs and numbers, as many as onnxruntime has ways to work on them."""
    return np.random.default_rng(seed).choice(np.array(SPECIAL, dtype), shape)


def model_of(
    given: str | ModelProto,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
    ir_version: int = 10,
) -> ModelProto:
    """A model, most often from text, with `constants` as initializers."""
    model = parse(given, opset=opset, ir_version=ir_version) if isinstance(given, str) else given
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def initializer(model: ModelProto, name: str) -> Array:
    """The value of an initializer."""
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))


def apply(
    model: ModelProto | str,
    *passes: Pass | str,
    rounds: int = 1,
    opset: int = 20,
    merge: str = "always",
    **options: Any,
) -> Done:
    """Run passes in order on a graph, with every declared measure checked, the block's invariants afterwards, and
    the record of changes, which must lead to the result.
    """
    before = parse(model, opset=opset) if isinstance(model, str) else model
    trace = Trace(explain=True, check_measures=True)
    program = load(before)
    recorder = Recorder(program)
    assert recorder.digest == digest_of(program.proto)
    pipeline = Pipeline.of(passes=list(passes) or None, merge=merge, **options)
    for _ in range(rounds):
        for p in pipeline.passes:
            trace.pass_name = p.name
            p.run(program, trace)
    for block in program.blocks():
        block.schedule()
        block.check()
    after = to_proto(program)
    recorder.settle()
    recorder.stop()
    assert recorder.chains and recorder.digest == digest_of(after), "a change was not recorded"
    assert not interface_differences(before, after)
    return Done(before, after, program, trace)


def emitted(
    model: ModelProto, build: Callable[[dict[str, Var]], Sequence[Var]], feeds: Mapping[str, Any]
) -> list[Array]:
    """What `build` emits, given the values of the main graph by name, in the float64 reference."""
    program = load(model)
    block = program.main
    outputs = len(block.outputs)
    with emitting(block):
        for v in build({v.name: v for v in block.vars()}):
            block.add_output(op.Identity(v))
    block.schedule()
    block.check()
    return list(reference(to_proto(program), feeds).values())[outputs:]


def rewritten(
    text: str, passes: str, constants: Mapping[str, Any] | None = None, **options: Any
) -> Done:
    """What passes make of a graph, with nothing left that nobody reads."""
    return apply(model_of(text, constants, **options), f"{passes},remove-unused")


def assert_same_results(
    done: Done, *, feeds: dict[str, Any] | None = None, exact: bool = False
) -> None:
    """Before (optimisations off) and after (as deployed) agree at two sizes of every symbol."""
    for dims in dim_plans(done.before)[:2]:
        given = feeds if feeds is not None else feeds_for(done.before, seed=3, dims=dims)
        want = run(done.before, given, optimize=False)
        got = run(done.after, given)
        assert list(want) == list(got)
        for name, w in want.items():
            assert_close(name, w, got[name], exact)
        if feeds is not None:
            return


def assert_close(name: str, want: Any, got: Any, exact: bool = False) -> None:
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), name
        for w, g in zip(want, got):
            assert_close(name, w, g, exact)
        return
    assert (want is None) == (got is None), name
    if want is None:
        return
    assert got.dtype == want.dtype and got.shape == want.shape, name
    if exact or want.dtype not in TOLERANCE:
        assert got.tobytes() == want.tobytes(), name
        return
    scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[want.dtype] * scale, err_msg=name)


def assert_same_bits(done: Done, **feeds: Any) -> None:
    """The same results before and after, whatever the bits are, without onnxruntime's own optimisations."""
    assert bits(done.before, feeds) == bits(done.after, feeds)


def bits(model: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    found = run(model, feeds, optimize=False)
    return {
        name: (v.dtype, v.shape, v.tobytes())
        for name, v in found.items()
        if isinstance(v, np.ndarray)
    }
