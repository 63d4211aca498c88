"""Runs every node case of ONNX's backend suite in the float64 reference, at every opset at which
onnxruntime runs it.

    python scripts/sweep_reference.py [--only OP] [--every N]

A case is written in every older version of its operator that can express it, at the first and the
last opset of that version. If onnxruntime runs it, the reference must run, and agree with
onnxruntime or with the suite. Prints failures and counts; exit code 1 if something failed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compare_kernels import older  # noqa: E402  # runs from a checkout

from onnxgrad.errors import NodeFailed, OnnxgradError  # noqa: E402
from onnxgrad.verify.compare import compare  # noqa: E402
from onnxgrad.verify.feeds.generate import feeds_for  # noqa: E402
from onnxgrad.verify.onnxruntime_check import as_computed  # noqa: E402
from onnxgrad.verify.reference.evaluate import reference  # noqa: E402
from onnxgrad.verify.running.session import run  # noqa: E402
from tests.backend_suite import Case, clamp_ir, usable  # noqa: E402
from tests.suite_table import any_opset  # noqa: E402

# versions of operators that no case of the suite can express: opsets, signature, nodes
_OLD = "float[2,3,4] x) => (float[A,B,C] y)"
_IMAGE = "float[1,2,3,4] x, float[4] s, float[0] r) => (float[1,2,H,W] y)"
_FACTORS = {"s": np.float32([1, 1, 2, 3]), "r": np.zeros(0, np.float32)}
_REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
)
_WRITTEN: tuple[tuple[tuple[int, ...], str, str], ...] = (
    ((2, 10), _OLD, "y = Pad <pads = [0, 1, 2, 0, 1, 1], value = 1.5> (x)"),
    ((2, 10), _OLD, "y = Pad <pads = [0, 1, 0, 0, 1, 1], mode = 'edge'> (x)"),
    ((1, 9), _OLD, "y, i = TopK <axis = 2, k = 2> (x)"),
    ((10,), _IMAGE, "y = Resize <mode = 'linear'> (x, s)"),
    ((10,), _IMAGE, "y = Resize <mode = 'nearest'> (x, s)"),
    ((10,), _IMAGE, "h = Constant <value = float[4] {1, 1, 0.7, 0.5}> () y = Resize (x, h)"),
    *(
        (
            (11, 12),
            _IMAGE,
            f"y = Resize <mode = '{mode}', coordinate_transformation_mode = '{at}'> (x, r, s)",
        )
        for mode in ("nearest", "linear", "cubic")
        for at in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    ),
    ((11,), _IMAGE, "z = Constant <value_ints = [1, 2, 6, 8]> () y = Resize (x, r, r, z)"),
    ((9,), _IMAGE, "y = Upsample <mode = 'linear'> (x, s)"),
    (
        (10, 15, 16),
        "float[1,2,8,8] x, float[2,4] r) => (float[2,2,2,2] y)",
        "b = Constant <value = int64[2] {0, 0}> () "
        "y = RoiAlign <output_height = 2, output_width = 2> (x, r, b)",
    ),
    (
        (18, 20),
        "float[2,6,4] x, float[2] s, float[2] b) => (float[2,6,4] y)",
        "y = GroupNormalization <num_groups = 2> (x, s, b)",
    ),
    (
        (9, 10),
        "float[3,4] x, float[2,4] u) => (float[3,4] y)",
        "i = Constant <value = int64[2,4] {0,1,2,0,2,0,1,2}> () y = Scatter (x, i, u)",
    ),
    (
        (9, 11, 16, 19, 21, 23, 24, 25),
        "float[3,4] x, float[4] s) => (float[4] t, float[3,4] y)",
        "t, y = Scan <num_scan_inputs = 1, body = b (float[4] p, float[4] q) => "
        "(float[4] o, float[4] v) { o = Add(p, q) v = Mul(o, q) }> (s, x)",
    ),
    (
        (11, 13, 16, 19, 21, 23, 24, 25),
        "bool c, float[4] x) => (float[4] y)",
        "y = If <then_branch = t () => (float[4] a) { a = Neg(x) }, "
        "else_branch = e () => (float[4] b) { b = Abs(x) }> (c)",
    ),
    (
        (11, 13, 16, 19, 21, 23, 24, 25),
        "float[4] x) => (float[4] y, float[K,4] z)",
        "n = Constant <value = int64 {3}> () y, z = Loop <body = l (int64 i, bool k, float[4] a) "
        "=> (bool o, float[4] b, float[4] d) { o = Identity(k) b = Add(a, x) d = Neg(b) }> "
        "(n, , x)",
    ),
    *(
        ((8, 10, 12), _OLD, f"y = {op} (x)")
        for op in ("Softmax", "LogSoftmax", "Hardmax", "Dropout", "Identity")
    ),
    (
        (7, 8, 9, 14, 15),
        "float[2,3,4] x, float[3] s, float[3] b, float[3] m) => (float[2,3,4] y)",
        "v = Constant <value = float[3] {0.5, 1, 2}> () y = BatchNormalization (x, s, b, m, v)",
    ),
    *(((1, 11, 12), _OLD, f"y = {op} <axes = [1]> (x)") for op in _REDUCTIONS.split()),
    ((1, 11, 12), "float[2,1,4] x) => (float[A,B] y)", "y = Squeeze <axes = [1]> (x)"),
    ((1, 11, 12), "float[2,4] x) => (float[A,B,C] y)", "y = Unsqueeze <axes = [0]> (x)"),
    ((1, 9), _OLD, "y = Slice <axes = [2], starts = [1], ends = [3]> (x)"),
    ((1, 9, 11), "float[2,3,4] x) => (float[A,B] y)", "y = Flatten <axis = 2> (x)"),
)

_CLOSE = {"float16": 2e-2, "bfloat16": 5e-2}  # relative to max|y|; wider dtypes must agree to 1e-4
_DRAWS = {"Bernoulli", "Dropout"}  # onnxruntime draws other numbers
# onnxruntime deviates here from the suite, at every version
_DEVIATES = {"Resize"}


def forms(case: Case) -> Iterator[tuple[int, onnx.ModelProto, dict[str, Any], bool]]:
    """Yields (opset, model, feeds, whether the suite's results apply) for one case."""
    node = case.model.graph.node[0]
    yield _version(case.model, node.domain), clamp_ir(case.model), dict(case.inputs), True
    if len(case.model.graph.node) > 1 or case.model.functions:
        return
    versions = sorted(
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if (s.domain, s.name) == (node.domain, node.op_type)
    )
    for version, model, feeds in older(case):
        last = next((v for v in versions if v > version), version + 1) - 1
        fed = {n: _narrow(v, case.inputs.get(n)) for n, v in feeds.items()}
        for opset in dict.fromkeys((version, last)):
            for entry in model.opset_import:
                if entry.domain == node.domain:
                    entry.version = opset
            yield opset, clamp_ir(model), fed, False


def as_it_is(case: Case) -> tuple[int, onnx.ModelProto, dict[str, Any], bool]:
    """A model of `_WRITTEN`, as `forms` yields it."""
    return _version(case.model, ""), case.model, case.inputs, False


def _version(model: onnx.ModelProto, domain: str) -> int:
    return next((i.version for i in model.opset_import if i.domain == domain), 1)


def _narrow(value: Any, like: Any) -> Any:
    """Returns a value in the case's dtype."""
    return value.astype(like.dtype) if isinstance(like, np.ndarray) else value


def written() -> Iterator[Case]:
    """The models of `_WRITTEN` with generated feeds."""
    for opsets, signature, nodes in _WRITTEN:
        for opset in opsets:
            head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
            body = nodes.replace("'", '"')
            model = onnx.parser.parse_model(f"{head} g ({signature} {{ {body} }}")
            feeds = feeds_for(model, seed=0, given=_FACTORS if signature is _IMAGE else None)
            name = f"written {model.graph.node[-1].op_type}"
            yield Case(name, "node", model, feeds, [])


def judged(model: onnx.ModelProto, feeds: dict[str, Any], want: list[Any] | None) -> str:
    """Returns "right", the fault, or "" if onnxruntime does not run the model."""
    try:
        computed = run(model, feeds, timeout=60.0)
    except OnnxgradError:
        return ""
    try:
        exact = reference(model, feeds)
    except NodeFailed as error:
        return f"FAILS {error}"
    except OnnxgradError as error:
        return f"LACKS {error}"
    expected = [computed]
    if want is not None:
        expected.append(dict(zip(computed, want, strict=True)))
    for results in expected:
        found = compare(results, _snapped(as_computed(exact, results), results), _limits(results))
        if all(d.ok for d in found):
            return "right"
    if any(node.op_type in _DRAWS for node in model.graph.node):
        return "draws"
    return f"DIFFERS {next(d for d in found if not d.ok)}"


def _snapped(exact: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces 8-bit integers that differ from onnxruntime's by one: ties of rounding."""
    return {n: _near(v, results[n]) for n, v in exact.items()}


def _near(value: Any, like: Any) -> Any:
    if getattr(like, "dtype", None) not in (np.uint8, np.int8) or value.shape != like.shape:
        return value
    return np.where(abs(value.astype(int) - like.astype(int)) <= 1, like, value).astype(value.dtype)


def _limits(results: Mapping[str, Any]) -> dict[str, float]:
    return {n: _limit(v[0] if isinstance(v, list) and v else v) for n, v in results.items()}


def _limit(value: Any) -> float:
    name = np.asarray(value).dtype.name
    return _CLOSE.get(name, 1e-4 if "float" in name else 0.0)


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    operators: set[tuple[str, str]] = set()
    left: dict[tuple[str, str], list[str]] = defaultdict(list)
    cases = [*written(), *(c for c in usable() if c.kind == "node")]
    cases = [c for c in cases if given.only in ("", c.model.graph.node[0].op_type)]
    with any_opset():
        for case in cases[:: given.every]:
            node = case.model.graph.node[-1]
            of_suite = bool(case.outputs)
            for opset, model, feeds, own in forms(case) if of_suite else [as_it_is(case)]:
                suite = of_suite and (own or node.op_type in _DEVIATES)
                found = judged(model, feeds, case.outputs if suite else None)
                counts[found.split(" ")[0] or "not run by onnxruntime"] += 1
                operators.update({(node.op_type, str(opset))} if found else ())
                if found not in ("", "right", "draws"):
                    left[node.op_type, found.split(" ")[0]].append(f"{case.name} {opset}: {found}")
    for (op, what), all_of_them in sorted(left.items()):
        print(f"{op}: {what} in {len(all_of_them)}, first {all_of_them[0][:300]}")
    print(f"{len({op for op, _ in operators})} operators, {len(operators)} with opsets, {counts}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
