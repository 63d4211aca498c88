"""Converts every operator of the default domain with a function body (and Trilu) from its opset to
each older one.

    python scripts/sweep_opened.py [--inline] [--only OP] [--every N]

With --inline, the body of the schema replaces the operator at its own opset, as `optimize --inline
OP` does. The variants are: sizes known, sizes open, each operand in other ranks, and each axis at
size 1, if onnxruntime runs the operator.

The models are the node cases of ONNX's backend suite, in each older version of the operator that
can express them, in their own dtype and with float32 as float16. A result must agree with
onnxruntime's of the original or with the suite's.
Prints what differs and counts for each operator; exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sweep_reference import forms  # noqa: E402  # runs from a checkout

from onnxgrad.errors import InputError, OnnxgradError  # noqa: E402
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.program import Program  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.passes.convert_opset import NEWEST, OLDEST, convert  # noqa: E402
from onnxgrad.passes.inline import Inline  # noqa: E402
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.reference.evaluate import reference  # noqa: E402
from onnxgrad.verify.running.session import run  # noqa: E402
from tests.backend_suite import Case, usable  # noqa: E402
from tests.suite_table import any_opset  # noqa: E402

_CLOSE = {"float16": 2e-2, "bfloat16": 5e-2}  # relative to max|y|; wider dtypes must agree to 1e-4


def has_body(op: str, opset: int) -> bool:
    """Whether `convert-opset` can open the operator at this opset."""
    if op == "Trilu" or not onnx.defs.has(op, max_inclusive_version=opset, domain=""):
        return op == "Trilu"
    schema: Any = onnx.defs.get_schema(op, opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def halved(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model with float16 for float32, and its feeds."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half, {
        n: v.astype(np.float16) if getattr(v, "dtype", None) == np.float32 else v
        for n, v in feeds.items()
    }


def twins(
    case: Case,
) -> Iterator[tuple[int, onnx.ModelProto, dict[str, Any], list[Any] | None, bool]]:
    """(opset, model, feeds, the suite's results, whether in half precision), unless invalid."""
    for opset, model, feeds, own in forms(case):
        if opset > NEWEST or not has_body(case.model.graph.node[0].op_type, opset):
            continue
        if not is_valid(model):
            continue
        yield opset, model, feeds, case.outputs if own else None, False
        if any(getattr(v, "dtype", None) == np.float32 for v in feeds.values()):
            half, narrow = halved(model, feeds)
            if is_valid(half):
                yield opset, half, narrow, case.outputs if own else None, True


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether onnx's checker accepts the model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def results(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any] | None:
    """Returns onnxruntime's results, or None if it does not run the model."""
    try:
        return list(run(model, feeds, timeout=60.0).values())
    except OnnxgradError:
        return None


def differ(got: list[Any], want: list[Any], half: bool) -> bool:
    """Whether results differ by more than rounding, or integers by more than one."""
    for a, b in zip(got, want, strict=True):
        if isinstance(a, list) and isinstance(b, list):
            if differ(a, b, half):
                return True
            continue
        x, y = (np.asarray(v) for v in (a, b))
        if x.shape != y.shape or x.dtype.kind != y.dtype.kind:
            return True
        if x.dtype.kind in "OUSb":
            if not np.array_equal(x, y):
                return True
            continue
        limit = 2e-2 if half else _CLOSE.get(x.dtype.name, 1e-4)
        # onnxruntime writes the lowest number, or sums of it, for -inf in scores of an Attention
        p, q = (_with_infinity(v) for v in (x, y))
        scale = max(1e-3, float(np.abs(q[np.isfinite(q)]).max(initial=0.0)))
        if not np.allclose(p, q, rtol=0, atol=limit * scale, equal_nan=True):
            return True
    return False


def variants(
    model: onnx.ModelProto, feeds: dict[str, Any], suite: list[Any] | None
) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], list[Any] | None]]:
    """The model, the same with open sizes, with constants for its small integers, and with a float
    operand of other ranks.
    """
    yield "", model, feeds, suite
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    for v in opened.graph.input:
        for i, d in enumerate(v.type.tensor_type.shape.dim):
            d.dim_param = f"{v.name}_{i}"
    yield "open", opened, feeds, suite
    small = {n: v for n, v in feeds.items() if isinstance(v, np.ndarray) and v.dtype.kind in "iu"}
    if small:
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        kept = [v for v in model.graph.input if v.name not in small]
        del fixed.graph.input[:]
        fixed.graph.input.extend(kept)
        fixed.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in small.items())
        yield "constant", fixed, {n: v for n, v in feeds.items() if n not in small}, suite
        yield from _reshaped(fixed, {n: v for n, v in feeds.items() if n not in small})
    yield from _reshaped(model, feeds)
    yield from _of_one(model, feeds)


def _of_one(
    model: onnx.ModelProto, feeds: dict[str, Any]
) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], None]]:
    """Yields variants with an axis of size 1: in one operand, and in all that have the axis."""
    arrays = {n: v for n, v in feeds.items() if isinstance(v, np.ndarray)}
    for axis in range(max((v.ndim for v in arrays.values()), default=0)):
        longer = [n for n, v in arrays.items() if v.ndim > axis and v.shape[axis] > 1]
        for names in ([longer] if len(longer) > 1 else []) + [[n] for n in longer]:
            yield (
                f"{names} of one at {axis}",
                *_with_feeds(model, feeds, {n: arrays[n].take([0], axis) for n in names}),
                None,
            )


def _with_feeds(
    model: onnx.ModelProto, feeds: dict[str, Any], changed: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Returns the model with these feeds declared and no shapes of results, and all feeds."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        if value.name in changed:
            del value.type.tensor_type.shape.dim[:]
            for d in changed[value.name].shape:
                value.type.tensor_type.shape.dim.add(dim_value=d)
    for value in made.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return made, {**feeds, **changed}


def _reshaped(
    model: onnx.ModelProto, feeds: dict[str, Any]
) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], None]]:
    """Operands of other ranks: the first axis split off, the last two joined, one element."""
    for name, v in feeds.items():
        if not isinstance(v, np.ndarray) or v.dtype.kind not in "fiu":
            continue
        wider = {(1, *v.shape), (*v.shape, 1), (*v.shape[:-2], -1)}
        for shape in sorted(wider if v.size != 1 else {(), (1,)}):
            moved = v.reshape(shape)
            if moved.shape == v.shape:
                continue
            yield f"{name}{list(moved.shape)}", *_with_feeds(model, feeds, {name: moved}), None


def all_inlined(
    model: onnx.ModelProto, feeds: dict[str, Any], suite: list[Any] | None, half: bool
) -> Iterator[tuple[str, str]]:
    """Yields the outcome and the name of each variant that onnxruntime runs."""
    for what, form, fed, known in variants(model, feeds, suite):
        own = results(form, fed)
        if what and not own:
            continue
        for value, result in zip(form.graph.output, own or ()):
            of_tensor = value.type.tensor_type
            if isinstance(result, np.ndarray) and not of_tensor.HasField("shape"):
                of_tensor.shape.CopyFrom(onnx.TensorShapeProto())
                for d in result.shape:
                    of_tensor.shape.dim.add(dim_value=d)
        if is_valid(form):
            found = inlined(form, fed, [r for r in (own, known) if r], half)
            if found == "WRONG":  # onnxruntime's own kernel may be
                found = inlined(form, fed, [list(reference(form, fed).values())], half)
            yield found, f"{what} {half=}"


def converted(
    opset: int, model: onnx.ModelProto, feeds: dict[str, Any], suite: list[Any] | None, half: bool
) -> Iterator[tuple[str, str]]:
    """Yields the outcome at each older opset. If an opset is refused, the lower ones are, too."""
    wanted = [r for r in (results(model, feeds), suite) if r]
    found = ""
    for to in range(opset - 1, OLDEST - 1, -1):
        found = found if found.startswith("refused") else judged(model, to, feeds, wanted, half)
        yield found, f"-> {to} {half=}"


def inlined(
    model: onnx.ModelProto, feeds: dict[str, Any], wanted: list[list[Any]], half: bool
) -> str:
    """Returns the outcome of inlining an operator: right, refused, unjudged or WRONG."""
    trace, program = Trace(explain=True), load(model)
    Inline(names=model.graph.node[0].op_type).run(program, trace)
    if not trace.rewrites:
        reasons = [re.sub("[0-9]+", "N", why) for _, _, why in trace.declined]
        return f"refused: {reasons[0] if reasons else 'nothing to inline'}"
    return judged_result(program, model, feeds, wanted, half)


def _with_infinity(v: Any) -> Any:
    wide = v.astype(np.float64)
    lowest = -6e4 if v.dtype.name == "float16" else -1e38
    return np.where(wide < lowest, -np.inf, wide)


def judged(
    model: onnx.ModelProto, to: int, feeds: dict[str, Any], wanted: list[list[Any]], half: bool
) -> str:
    """Returns the outcome of one conversion: right, refused, unjudged or WRONG."""
    try:
        program = load(model)
        convert(program, to)
    except InputError as reason:
        inner = re.search(r"= (\w+)\(", str(reason))
        why = str(reason).rpartition(": ")[2]
        return f"refused {inner[1] if inner else ''}: {re.sub('[0-9]+', 'N', why)}"
    return judged_result(program, model, feeds, wanted, half)


def judged_result(
    program: Program,
    model: onnx.ModelProto,
    feeds: dict[str, Any],
    wanted: list[list[Any]],
    half: bool,
) -> str:
    """Returns whether the program computes the expected results."""
    for block in program.blocks():
        block.schedule()
        block.check()
    made = to_proto(program)
    if not is_valid(made):
        return "WRONG: onnx's checker refuses the result"
    got = results(made, feeds)
    if got is None and results(model, feeds) is None:
        return "unjudged: onnxruntime runs neither"
    if got is None:
        return "unrun: onnxruntime does not run the result"
    if not wanted:
        return "unjudged: onnxruntime does not run the original"
    if model.graph.node[0].op_type == "Bernoulli":
        return "right"  # it draws random numbers
    return "WRONG" if all(differ(got, want, half) for want in wanted) else "right"


def main() -> int:
    """Returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    newest = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    able = {op for op in newest if any(has_body(op, v) for v in range(OLDEST, NEWEST + 1))}
    able -= {"Trilu"} if given.inline else set()
    cases = [c for c in usable() if c.kind == "node" and len(c.model.graph.node) == 1]
    cases = [c for c in cases if (n := c.model.graph.node[0]).op_type in able and not n.domain]
    cases = [c for c in cases if given.only in ("", c.model.graph.node[0].op_type)]
    with any_opset():
        for case in cases[:: given.every]:
            op = case.model.graph.node[0].op_type
            for opset, *twin in twins(case):
                found = all_inlined(*twin) if given.inline else converted(opset, *twin)
                for verdict, where in found:
                    counts[op][verdict.split()[0].rstrip(":")] += 1
                    if verdict.startswith(("WRONG", "unrun")):
                        print(f"{case.name} {opset} {where}: {verdict}", flush=True)
                    elif not verdict.startswith("right"):
                        reasons[f"{op} {verdict}"] += 1
    for op, of in sorted(counts.items()):
        print(f"{op}: {', '.join(f'{n} {k}' for k, n in sorted(of.items()))}")
    for reason, n in sorted(reasons.items()):
        print(f"  {n} {reason}")
    print(f"all {len(counts)} operators: {dict(sum(counts.values(), Counter()))}")
    return 1 if any(of["WRONG"] for of in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
