"""What the tests of passes share: run passes on a graph given as text, and compare results in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.base import Pass
from onnxgrad.pipeline.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import feeds_for, run
from onnxgrad.verify.feeds.dims import dim_plans
from onnxgrad.verify.interface import interface_differences
from tests.helpers import parse

TOLERANCE = {np.dtype(np.float16): 4e-3, np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}


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

    def fired(self, rule: str) -> int:
        return self.trace.counts[rule].applied if rule in self.trace.counts else 0

    def reasons(self, rule: str) -> list[str]:
        return [reason for name, _, reason in self.trace.declined if name == rule]

    def count(self, *ops: str) -> int:
        """Bindings of these operators, in nested blocks and functions too."""
        return sum(b.op in ops for block in self.program.blocks() for b in block.bindings)


def weights(**shapes: Sequence[int]) -> dict[str, Any]:
    """Random float32 arrays of these shapes, the same ones each time."""
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(tuple(shape)).astype(np.float32) for name, shape in shapes.items()}


def model_of(
    text: str, constants: dict[str, Any] | None = None, *, opset: int = 20, ir_version: int = 10
) -> ModelProto:
    """A model from text, with `constants` as initializers."""
    model = parse(text, opset=opset, ir_version=ir_version)
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def apply(model: ModelProto | str, *passes: Pass | str, rounds: int = 1, opset: int = 20, **options: Any) -> Done:
    """Run passes in order on a graph, with every declared measure checked, and the block's invariants afterwards."""
    before = parse(model, opset=opset) if isinstance(model, str) else model
    trace = Trace(explain=True, check_measures=True)
    program = load(before)
    pipeline = Pipeline.of(passes=list(passes) or None, **options)
    for _ in range(rounds):
        for p in pipeline.passes:
            trace.pass_name = p.name
            p.run(program, trace)
    for block in program.blocks():
        block.schedule()
        block.check()
    after = to_proto(program)
    assert not interface_differences(before, after)
    return Done(before, after, program, trace)


def assert_same_results(done: Done, *, feeds: dict[str, Any] | None = None, exact: bool = False) -> None:
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


def before_and_after(text: str, *passes: Pass | str, **options: Any) -> str:
    """For golden files: the block before, an empty line, the block after."""
    model = parse(text)
    before = str(load(model).main)
    return f"{before}\n\n{apply(model, *passes, **options).block}"
