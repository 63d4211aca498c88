"""Both models of a proof in the float64 reference, within one time budget."""

from __future__ import annotations

import math
import time

import numpy as np

from onnxgrad.errors import OnnxgradError, Unsupported
from onnxgrad.limits import LimitReached, current, size_text
from onnxgrad.verify.compare import is_float
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.reference.in_child import Float64
from onnxgrad.verify.running.pool import pooled
from onnxgrad.verify.subject import Subject
from onnxgrad.verify.values import Value


class Oracle:
    """Results in float64, or None where there are none; then `why` says what happened."""

    def __init__(self, original: Subject, candidate: Subject, budget: float) -> None:
        self.subjects = {"original": original, "candidate": candidate}
        self.budget = budget
        self.left = budget
        self.why = ""
        self._made: dict[str, Float64] = {}
        pooled("float64")  # which starts while onnxruntime loads the original

    def original(self, feeds: Results, jitter: float = 0.0, seed: int = 0) -> Results | None:
        """The original's outputs; with `jitter` under another order of summation, chosen by `seed`."""
        return self._run("original", feeds, jitter, seed)

    def candidate(self, feeds: Results) -> Results | None:
        """The candidate's outputs."""
        return self._run("candidate", feeds)

    def _run(self, which: str, feeds: Results, jitter: float = 0.0, seed: int = 0) -> Results | None:
        if self.left <= 0:
            return None
        started = time.monotonic()
        try:
            return self._evaluator(which).run(feeds, seconds=self.left, jitter=jitter, seed=seed)
        except LimitReached:
            raise
        except OnnxgradError as error:
            self.why = f"the {which}: {error}"
            return None
        finally:
            self.left -= time.monotonic() - started
            if self.left <= 0:
                self.why = f"over its budget of {self.budget:g} s"

    def _evaluator(self, which: str) -> Float64:
        if which not in self._made:
            subject = self.subjects[which]
            # both models at once, each as the file has it (up to 8 bytes an element) and in float64
            needed = 4 * 8 * sum(math.prod(t.dims) for t in subject.proto.graph.initializer)
            memory = current().memory
            if needed > memory:
                raise Unsupported(
                    f"the weights would need {size_text(needed)} in float64, more than {size_text(memory)} "
                    "(--max-memory)"
                )
            self._made[which] = Float64(subject.source)
        return self._made[which]


def as_computed(exact: Results, computed: Results) -> Results:
    """Float64 results in the dtypes that onnxruntime answered in."""
    return {name: _cast_like(exact.get(name), value) for name, value in computed.items()}


def _cast_like(value: Value, like: Value) -> Value:
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_cast_like(v, w) for v, w in zip(value, like)]
    if isinstance(value, np.ndarray) and isinstance(like, np.ndarray) and is_float(like):
        return value.astype(like.dtype)
    return value
