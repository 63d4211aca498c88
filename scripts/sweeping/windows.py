"""Windows of the built-in laws: the models of the tests, before and after one application of a law.

`harvest` runs the tests of laws and passes with this module as a plugin of pytest. The plugin keeps
the smallest models of each law, and leaves out the proofs of the tests.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.save import to_proto
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Decline
from onnxgrad.verify.exact.window import Window

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ("tests/laws", "tests/passes", "tests/grad/test_finish.py")
_SKIPPED = "not random and not every_law and not suite and not on_models and not real"
_FILE = "ONNXGRAD_WINDOWS"
_MOST_NODES, _MOST_BYTES = 60, 1 << 20
_KEPT = 6  # windows of each law


@dataclass(frozen=True)
class Found:
    """One application of a law: the bytes of the models before and after, and the test."""

    law: str
    test: str
    before: bytes
    after: bytes

    @property
    def window(self) -> Window:
        """Both models as a window: the outputs are equal, and new initializers were computed."""
        old, new = ModelProto.FromString(self.before), ModelProto.FromString(self.after)
        had = {t.name for t in old.graph.initializer}
        made = tuple(t.name for t in new.graph.initializer if t.name not in had)
        claims = tuple((o.name, o.name) for o in old.graph.output)
        return Window(old, new, claims, made=made, rule=self.law)


def harvest(tests: Sequence[str] = TESTS) -> dict[str, list[Found]]:
    """Returns the smallest windows of each law in these tests, by the law's name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "windows.pickle"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.sweeping.windows",
                   "-p", "no:xdist", "-p", "no:cacheprovider", "--many-cases", "-k", _SKIPPED,
                   *tests]  # fmt: skip
        environment = {**os.environ, _FILE: str(file), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)
        found: dict[str, list[Found]] = pickle.loads(file.read_bytes())
    return found


# ---- the plugin ----------------------------------------------------------------------------------

_windows: dict[str, dict[bytes, Found]] = {}


def pytest_configure() -> None:
    """Watches every attempt of a law."""
    answered, called = Attempt._answer, Attempt.__call__
    before: list[ModelProto | None] = [None]

    def watched_answer(attempt: Attempt, *args: Any) -> Any:
        emitter, answer = answered(attempt, *args)
        fires = answer and not isinstance(answer, Decline)
        before[0] = _model(attempt) if fires else None
        return emitter, answer

    def watched(attempt: Attempt, *args: Any) -> Any:
        done = called(attempt, *args)
        if done is not None and before[0] is not None:
            _keep(attempt, before[0])
        return done

    Attempt._answer = watched_answer  # type: ignore[assignment, method-assign]
    Attempt.__call__ = watched  # type: ignore[assignment, method-assign]
    rewriting = importlib.import_module("tests.rewriting")
    for name in ("assert_same_results", "assert_same_bits"):
        setattr(rewriting, name, _nothing)
    rewriting.Done.prove = _nothing


def _nothing(*_: Any, **__: Any) -> Any:
    """Stands for a proof."""


def _model(attempt: Attempt) -> ModelProto | None:
    if len(attempt.block.root.bindings) > _MOST_NODES:
        return None
    try:
        found = to_proto(attempt.block.program)
    except OnnxgradError:
        return None
    _drop_unused(found.graph)  # a law emits before it replaces
    return found if found.ByteSize() <= _MOST_BYTES else None


def _drop_unused(graph: GraphProto) -> None:
    read, kept = {o.name for o in graph.output}, list[NodeProto]()
    for node in reversed(graph.node):
        if read.intersection(node.output):
            kept.insert(0, NodeProto.FromString(node.SerializeToString()))
            read.update(_names_read(node))
    constants = [t for t in graph.initializer if t.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)


def _names_read(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for a in node.attribute:
        for graph in (a.g, *a.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _names_read(inner)


def _keep(attempt: Attempt, old: ModelProto) -> None:
    new = _model(attempt)
    before = old.SerializeToString()
    after = b"" if new is None else new.SerializeToString()
    if not after or after == before:
        return
    kept = _windows.setdefault(attempt.law, {})
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    kept.setdefault(before, Found(attempt.law, test, before, after))
    if len(kept) > _KEPT:
        del kept[max(kept, key=lambda b: (len(b), b))]


def pytest_unconfigure() -> None:
    """Writes the windows."""
    if file := os.environ.get(_FILE):
        found = {law: sorted(kept.values(), key=lambda f: (len(f.before), f.before))
                 for law, kept in _windows.items()}  # fmt: skip
        Path(file).write_bytes(pickle.dumps(found))
