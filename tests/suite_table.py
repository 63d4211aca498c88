"""What onnxruntime makes of the ONNX backend suite, measured once for a version and kept in tests/data/backend_suite.

`python -m tests.suite_table` measures the installed version and writes its file; a slow test does the same and compares.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import OnnxgradError
from onnxgrad.verify.running.child_process import close
from onnxgrad.verify.running.session import run, versions
from tests.backend_suite import FLOATS, Case, case, clamp_ir, usable
from tests.helpers import DATA_DIR, onnxruntime_version

TABLES = DATA_DIR / "backend_suite"
RELEASED_ONLY = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
FLOAT_NAMES = ("float16", "bfloat16", "float32", "float64")
Run = Callable[[Case, "dict[str, Any] | None"], "list[Any]"]
# What onnx.reference raises for cases it has no implementation for, or a wrong one.
REFERENCE_ERRORS = (
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    KeyError,
    AssertionError,
)


@contextmanager
def any_opset() -> Iterator[None]:
    """Inside, onnxruntime also loads models of opsets newer than it guarantees."""
    before = os.environ.get(RELEASED_ONLY)
    os.environ[RELEASED_ONLY] = "0"
    close()  # a child reads its environment when it starts
    try:
        yield
    finally:
        if before is None:
            del os.environ[RELEASED_ONLY]
        else:
            os.environ[RELEASED_ONLY] = before
        close()


def run_case(
    case: Case, model: ModelProto | None = None, inputs: dict[str, Any] | None = None
) -> list[Any]:
    """Outputs of `model` (default: the case's own) in onnxruntime. Raises OnnxgradError as `run` does."""
    found = run(model or case.model, case.inputs if inputs is None else inputs, timeout=60.0)
    return [found[o.name] for o in case.model.graph.output]


def matches(case: Case, outputs: list[Any]) -> bool:
    """Whether outputs have the expected dtypes, shapes and, to the case's tolerance, values."""
    return _similar(outputs, case.outputs, case.rtol, case.atol)


def _similar(got: Any, want: Any, rtol: float, atol: float) -> bool:
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(got) == len(want)
            and all(_similar(g, w, rtol, atol) for g, w in zip(got, want))
        )
    if want is None or got is None or isinstance(got, list):
        return want is None and got is None
    got = np.asarray(got)
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "OUS":
        return bool(np.array_equal(got.astype(object), want.astype(object)))
    if got.dtype != want.dtype:
        return False
    if want.dtype.kind in "biu":
        return bool(np.array_equal(got, want)) or bool(np.allclose(got, want, rtol=rtol, atol=atol))
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2.0**-6)  # two units in the last place
    if want.dtype.name not in (
        "float16",
        "float32",
        "float64",
    ):  # ml_dtypes: numpy cannot compare them
        got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        return bool(np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True))


def is_right(case: Case, model: ModelProto | None = None) -> bool:
    """Whether onnxruntime loads and runs the model, survives, and gives what the case expects."""
    try:
        return matches(case, run_case(case, model))
    except OnnxgradError:
        return False


def floats_in_and_out(case: Case) -> bool:
    """Whether the graph has a floating-point tensor input that is fed and a floating-point tensor output."""

    def is_float(value: onnx.ValueInfoProto) -> bool:
        return value.type.tensor_type.elem_type in FLOATS

    graph = case.model.graph
    return any(is_float(i) and i.name in case.inputs for i in graph.input) and any(
        map(is_float, graph.output)
    )


def is_single_node(case: Case) -> bool:
    return len(case.model.graph.node) == 1


def moves_with_input(case: Case, outputs_of: Run) -> bool:
    """Whether a float output moves when all float inputs move a little, at two steps in one direction.

    Comparing the two steps with each other, not with the start, leaves out an input that sits right on a jump.
    """
    try:
        near, far = outputs_of(case, _stepped(case, 0.5)), outputs_of(case, _stepped(case, 1.0))
    except (OnnxgradError, *REFERENCE_ERRORS):
        return False
    return any(
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and a.dtype.name in FLOAT_NAMES
        and not (
            a.shape == b.shape
            and np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True)
        )
        for a, b in zip(near, far)
    )


def _stepped(case: Case, factor: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    inputs = dict(case.inputs)
    for name, value in case.inputs.items():
        if isinstance(value, np.ndarray) and value.dtype.name in FLOAT_NAMES:
            start = value.astype(np.float64)
            finite = np.abs(start[np.isfinite(start)])
            step = (1e-3 if value.itemsize >= 4 else 2e-2) * max(
                1.0, float(finite.max(initial=0.0))
            )
            moved = start + factor * step * rng.uniform(0.5, 1.0, value.shape)
            inputs[name] = np.asarray(moved).astype(value.dtype)
    return inputs


def in_onnxruntime(case: Case, inputs: dict[str, Any] | None = None) -> list[Any]:
    """Outputs in onnxruntime of the case with its IR version clamped. Raises OnnxgradError as `run` does."""
    return run_case(case, clamp_ir(case.model), inputs)


def in_reference(case: Case, inputs: dict[str, Any] | None = None) -> list[Any]:
    """Outputs in onnx's reference implementation. Raises one of REFERENCE_ERRORS where that cannot run the case."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(case.model).run(None, case.inputs if inputs is None else inputs)
    return [np.asarray(v) if not isinstance(v, list) and v is not None else v for v in found]


def right_in_reference(case: Case) -> bool:
    """Whether onnx.reference runs the case and gives what it expects."""
    try:
        return matches(case, in_reference(case))
    except REFERENCE_ERRORS:
        return False


def measure() -> dict[str, Any]:
    """The table, from scratch: a minute or two."""
    cases = list(usable())
    shipped = [c.name for c in cases if is_right(c)]
    with any_opset():
        clamped = {c.name for c in cases if is_right(c, clamp_ir(c.model))}
        candidates = [c for c in cases if is_single_node(c) and floats_in_and_out(c)]
        moving = [
            c.name for c in candidates if c.name in clamped and moves_with_input(c, in_onnxruntime)
        ]
    others = [c for c in candidates if c.name not in clamped and right_in_reference(c)]
    return {
        "onnx": onnx.__version__,
        "onnxruntime": versions()["onnxruntime"],
        "cases": len(cases),
        "right_as_shipped": sorted(shipped),
        "right_clamped": sorted(clamped),
        "single_node_moving": sorted(moving),
        "single_node_moving_reference_only": sorted(
            c.name for c in others if moves_with_input(c, in_reference)
        ),
    }


@functools.cache
def table() -> dict[str, Any]:
    """The kept table, as `measure` gives it, of the newest onnxruntime that is not newer than the installed one."""
    kept = [p for p in TABLES.glob("*.json") if _version(p) <= onnxruntime_version()]
    path = max(kept, key=_version)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _version(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.stem.split(".")))


def right_as_shipped() -> list[Case]:
    """The cases that onnxruntime gets right as they are."""
    return _select("right_as_shipped")


def right_clamped() -> list[Case]:
    """The cases that onnxruntime gets right with `clamp_ir` and, for new opsets, inside `any_opset`."""
    return _select("right_clamped")


def single_node_moving() -> list[Case]:
    """Of `right_clamped`: one node, floats in and out, and an output that moves with its inputs."""
    return _select("single_node_moving")


def single_node_moving_reference_only() -> list[Case]:
    """Of the cases that onnxruntime does not get right: the same choice, made with onnx.reference, which does."""
    return _select("single_node_moving_reference_only")


def _select(key: str) -> list[Case]:
    known = {c.name for c in usable()}
    return [case(name) for name in table()[key] if name in known]


def operators(cases: list[Case]) -> set[tuple[str, str]]:
    """(domain, operator) of every node in the cases' main graphs."""
    return {(n.domain, n.op_type) for c in cases for n in c.model.graph.node}


def main() -> None:
    """Measure and rewrite the table."""
    found = measure()
    path = TABLES / f"{'.'.join(map(str, onnxruntime_version()))}.json"
    path.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8", newline="\n")
    print({key: len(value) if isinstance(value, list) else value for key, value in found.items()})


if __name__ == "__main__":
    main()
