"""What the tests of single passes share: run passes on a model, look at the result, prove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.pipeline.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Report, verify


@dataclass
class Ran:
    """A model after some passes."""

    before: ModelProto
    program: Program
    trace: Trace

    @property
    def after(self) -> ModelProto:
        return to_proto(self.program)

    @property
    def text(self) -> str:
        """The main block, for golden files."""
        self.program.main.schedule()
        return str(self.program.main)

    @property
    def ops(self) -> list[str]:
        """The operators in order, those that make constants aside."""
        self.program.main.schedule()
        return [b.op for b in self.program.main.bindings if b.op != "Constant"]

    @property
    def count(self) -> Counter[str]:
        return Counter(b.op for b in self.program.main.walk())

    @property
    def reasons(self) -> str:
        """Every reason to decline, one a line."""
        return "\n".join(reason for _, _, reason in self.trace.declined)

    def prove(self, **options: Any) -> Report:
        """The proof, which must succeed in the onnxruntime leg."""
        for block in self.program.blocks():
            block.check()
        options.setdefault("float64_exact", not self.trace.rounded)
        report = verify(self.before, self.after, seeds=(0,), **options)
        assert report.ok, str(report)
        assert report.legs["onnxruntime"].ran
        return report


def ran(model: ModelProto, passes: str, merge: str = "always") -> Ran:
    """`passes` once over `model`, every rule declaring its measure checked."""
    program, trace = load(model), Trace(explain=True, check_measures=True)
    for p in Pipeline.of(passes=passes, merge=merge).passes:
        trace.pass_name = p.name
        p.run(program, trace)
    return Ran(model, program, trace)


def with_weights(model: ModelProto, sizes: Mapping[str, tuple[int, ...]], *, positive: str = "") -> ModelProto:
    """`model` with random initializers of these sizes; those named in `positive` lie in 0.5 .. 1.5."""
    random = np.random.default_rng(0)
    for name, shape in sizes.items():
        if name in positive.split():
            array = random.uniform(0.5, 1.5, shape)
        else:
            array = random.standard_normal(shape)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def weight(program: Program, name: str) -> np.ndarray[Any, Any]:
    """The value of an initializer."""
    found = program.main.initializers[name].const
    assert found is not None
    return found


def initializer(model: ModelProto, name: str) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))


__all__ = ["Ran", "initializer", "ran", "weight", "with_weights"]
