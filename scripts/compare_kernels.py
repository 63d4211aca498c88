"""Compares our kernels of the float64 reference with their replacements: onnx.reference's class or
ONNX's function body.

Every single-node case of ONNX's backend suite whose operator has a kernel runs with and without the
kernel, in float64. The variants are: the suite's feeds, floats with their low bits filled (which
shows what rounds to float32), floats scaled by 1e3, floats with NaN, infinities and zeros, integers
if the schema allows them, an empty first axis, and every older opset that can express the case.
Then the case is made larger, and both are timed. The first word of a line is the reason for our
kernel. A kernel that agrees everywhere and is at most SLOW times faster should be removed.

python scripts/compare_kernels.py [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgrad.errors import OnnxgradError
from onnxgrad.verify.compare import compare, is_float
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.reference.kernels import KERNELS, WHY
from scripts.records import conditions
from tests.backend_suite import Case, usable

CLOSE = 1e-12  # of max|y|
SLOW = 5.0  # a kernel that is this many times faster stays
_LARGE = 1 << 15  # elements of an enlarged case
_ROUNDS = 5
_TIMED = 3  # cases of one operator that are timed
_PATIENCE = 1.0  # seconds for one run; a longer run is stopped
_CONTROLS = {
    "scales",
    "k",
    "ratio",
    "start",
    "limit",
    "delta",
    "sizes",
    "roi",
    "max_output_boxes_per_class",
}

Feeds = dict[str, Any]


@dataclass
class Account:
    """The results for one kernel."""

    cases: int = 0
    agree: int = 0
    # variant -> the first case that differs, and the difference
    wrong: dict[str, str] = field(default_factory=dict)
    small: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        small, large = (
            f"{statistics.median(times):6.1f}/{max(times):<6.1f}" if times else "     -       "
            for times in (self.small, self.large)
        )
        wrong = "; ".join(f"{variant}: {how}" for variant, how in self.wrong.items())
        return f"{name:32} {self.agree:3}/{self.cases:<3} small x{small} large x{large}  {wrong}"


def pair(model: onnx.ModelProto, key: tuple[str, str]) -> tuple[Reference, Reference]:
    """Returns the model compiled with and without our kernel. Raises Unsupported if the kernel has
    no replacement.
    """
    ours, kernel = Reference(model), KERNELS.pop(key)
    try:
        return ours, Reference(model)
    finally:
        KERNELS[key] = kernel


def difference(ours: Reference, theirs: Reference, feeds: Feeds) -> str | None:
    """Returns how the two differ on feeds ("" if they agree), or None if our kernel fails."""
    try:
        wanted = ours.run(feeds)
    except OnnxgradError:
        return None
    try:
        got = theirs.run(feeds)
    except OnnxgradError as error:
        return str(error)[:90]
    bad = [d for d in compare(wanted, got, CLOSE) if not d.ok]
    return f"{bad[0].reason or f'{bad[0].rel:.1e}'}" if bad else ""


def widened(case: Case) -> Feeds:
    return {n: v.astype(np.float64) if _is_real(v) else v for n, v in case.inputs.items()}


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )


def _whole(value: Any, kind: str) -> Any:
    return np.asarray(np.abs(value * 3) if kind.startswith("u") else value * 3).astype(kind)


def variants(case: Case) -> Iterator[tuple[str, Feeds]]:
    """Yields the case's feeds, and other valid feeds."""
    base = widened(case)
    rng = np.random.default_rng(0)
    yield "as given", base
    real = [n for n, v in base.items() if _is_real(v) and n not in _CONTROLS]

    def each(change: Callable[[Any], Any]) -> Feeds:
        return {n: change(v) if n in real else v for n, v in base.items()}

    if real:
        yield "low bits", each(lambda v: v * (1 + 1e-9 * rng.uniform(-1, 1, v.shape)))
        yield "times 1000", each(lambda v: v * 1e3)
        odd = np.array([np.nan, np.inf, -np.inf, 0.0])
        yield (
            "NaN and Inf",
            each(lambda v: np.where(rng.random(v.shape) < 0.3, rng.choice(odd, v.shape), v)),
        )
        schema = onnx.defs.get_schema(
            case.model.graph.node[0].op_type, _version(case), _domain(case)
        )
        kinds = {t for i in schema.inputs[:1] for t in i.types}
        for kind in ("int32", "int64", "uint8"):
            if f"tensor({kind})" in kinds:
                yield kind, {n: _whole(v, kind) if n in real else v for n, v in base.items()}
    tensors = [v for v in base.values() if isinstance(v, np.ndarray)]
    if real and all(v.ndim and len(v) == len(base[real[0]]) for v in tensors if _is_real(v)):
        yield "empty", each(lambda v: v[:0])


def _domain(case: Case) -> str:
    return case.model.graph.node[0].domain


def _version(case: Case) -> int:
    return next((i.version for i in case.model.opset_import if i.domain == _domain(case)), 1)


def older(case: Case) -> Iterator[tuple[int, onnx.ModelProto, Feeds]]:
    """Yields the case in each older opset with another schema of its operator.

    Operands become attributes if the older schema has them as attributes.
    """
    node = case.model.graph.node[0]
    newest = onnx.defs.get_schema(node.op_type, _version(case), node.domain)
    own = [
        s
        for s in onnx.defs.get_all_schemas_with_history()
        if (s.domain, s.name) == (node.domain, node.op_type)
    ]
    for version in sorted({s.since_version for s in own if s.since_version < newest.since_version}):
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        made, feeds = model.graph.node[0], widened(case)
        for place, formal in reversed(list(enumerate(newest.inputs))):
            if formal.name not in schema.attributes or place >= len(made.input):
                continue
            name = made.input[place]
            if name and place == len(made.input) - 1 and np.size(feeds.get(name, ())):
                value = np.asarray(feeds.pop(name))
                kept = [i for i in model.graph.input if i.name != name]
                del model.graph.input[:], made.input[place:]
                model.graph.input.extend(kept)
                made.attribute.append(onnx.helper.make_attribute(formal.name, value.tolist()))
            elif not name:
                del made.input[place:]
        takes = len(made.input) <= schema.max_input and len(made.output) <= schema.max_output
        if not takes or any(a.name not in schema.attributes for a in made.attribute):
            continue
        for entry in model.opset_import:
            if entry.domain == node.domain:
                entry.version = version
        yield version, model, feeds


def larger(case: Case) -> Iterator[Feeds]:
    """Yields the feeds with one axis of floats repeated: the first or last axis of all inputs or of
    one.
    """
    base = widened(case)
    real = [
        n
        for n, v in base.items()
        if isinstance(v, np.ndarray) and v.ndim and n not in _CONTROLS and v.size > 1
    ]
    real = [n for n in real if is_float(base[n])] or real
    if not real:
        return
    times = max(1, _LARGE // max(base[n].size for n in real))
    for axis in (0, -1):
        for chosen in (real, real[:1]):
            repeat = {n: [1] * base[n].ndim for n in chosen}
            for n in chosen:
                repeat[n][axis] = times
            yield {n: np.tile(v, repeat[n]) if n in repeat else v for n, v in base.items()}


class _TooLong(Exception):
    """A run took too long."""


def _stop(*_: object) -> None:
    raise _TooLong


def seconds(reference: Reference, feeds: Feeds) -> float:
    """Returns the seconds of one run, at most _PATIENCE."""
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    start = time.perf_counter()
    try:
        reference.run(feeds)
        return time.perf_counter() - start
    except (_TooLong, OnnxgradError) as error:
        if time.perf_counter() - start < _PATIENCE:
            raise error
        return _PATIENCE
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def ratio(ours: Reference, theirs: Reference, feeds: Feeds) -> float:
    """Returns their time over ours: the fastest of a few rounds each."""
    took = [(seconds(ours, feeds), seconds(theirs, feeds))]
    while len(took) < _ROUNDS and sum(map(sum, took)) < 0.3:
        took.append((seconds(ours, feeds), seconds(theirs, feeds)))
    return min(t for _, t in took) / min(t for t, _ in took)


def examine(case: Case, key: tuple[str, str], account: Account) -> None:
    """Adds the results of one case."""
    account.cases += 1

    def note(variant: str, how: str | None) -> bool:
        if how:
            account.wrong.setdefault(variant, f"{how} ({case.name})")
        return not how

    try:
        ours, theirs = pair(case.model, key)
    except OnnxgradError as error:
        note("as given", str(error)[:90])
        return
    fine = [note(variant, difference(ours, theirs, feeds)) for variant, feeds in variants(case)]
    account.agree += all(fine[:2])
    for version, model, feeds in older(case):
        try:
            old = pair(model, key)
        except OnnxgradError as error:
            note(f"opset {version}", str(error)[:90])
            continue
        note(f"opset {version}", difference(*old, feeds))
    if not fine[0] or len(account.small) >= _TIMED:
        return
    for times, sizes in ((account.small, [widened(case)]), (account.large, larger(case))):
        for feeds in sizes:
            with contextlib.suppress(OnnxgradError):  # these sizes do not fit together
                times.append(ratio(ours, theirs, feeds))
                break


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="operators (default: every one with a kernel)")
    names = parser.parse_args().names
    accounts: dict[tuple[str, str], Account] = {}
    cases: dict[tuple[str, str], list[Case]] = defaultdict(list)
    print(conditions())
    for case in usable():
        if case.kind == "node" and len(case.model.graph.node) == 1 and not case.model.functions:
            node = case.model.graph.node[0]
            cases["" if node.domain == "ai.onnx" else node.domain, node.op_type].append(case)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for key in sorted(KERNELS):
            if cases[key] and (not names or key[1] in names):
                accounts[key] = account = Account()
                for case in cases[key]:
                    examine(case, key, account)
                print(f"{WHY[key]:8}{account.line('::'.join(filter(None, key)))}", flush=True)
    whole = sum(a.agree == a.cases for a in accounts.values())
    print(f"{len(accounts)} kernels with cases, {whole} agree on all as given and with low bits")


if __name__ == "__main__":
    main()
