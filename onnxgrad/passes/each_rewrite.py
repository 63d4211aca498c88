"""`--verify each`: cuts every rewrite out of the graph, and runs the old and the new form on the
same feeds.

The proof of a whole model sees only differences that reach an output: a branch that is not taken, a
factor of 0 or an ArgMax can hide a wrong rule. Here the operands of each rewrite are fed directly.
A rewrite may depend on the nodes that compute its operands (a value is never negative, two sizes
are equal). So if the two forms of a region differ, the region is extended upwards, step by step,
before its rewrite is reported as wrong. The report counts the regions that were extended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from onnx import ModelProto, TypeProto

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import load_weights
from onnxgrad.ir.types import type_to_proto
from onnxgrad.results import Plain
from onnxgrad.rewrite.trace import Rewrite, Trace
from onnxgrad.verify import Report, verify
from onnxgrad.verify.changed_region import NoRegion, Region, scopes
from onnxgrad.verify.compare import DIFFERENT
from onnxgrad.wording import counted

_Nodes: TypeAlias = "defaultdict[str, set[Binding]]"
# how many steps upwards a region grows each time that its two forms differ or do not run
_STEPS = (1, 1, 2, 4, 8, 16, 1 << 20)


@dataclass
class EachReport(Plain):
    """Counts of the rewrites. Rewrites `alone` agree on their operands; rewrites `in_context` agree
    if the bindings that compute these operands are included.
    """

    json_keys = "alone in_context skipped=reasons"

    alone: int = 0
    in_context: int = 0
    skipped: dict[int, str] = field(default_factory=dict)  # number of the rewrite -> why
    widened: set[int] = field(default_factory=set)  # the numbers of those in context

    @property
    def reasons(self) -> Counter[str]:
        """How many rewrites were skipped for each reason."""
        return Counter(self.skipped.values())

    def __str__(self) -> str:
        checked = self.alone + self.in_context
        context = (
            f", {self.in_context} of them with the nodes that compute their operands"
            if self.in_context
            else ""
        )
        reasons = ", ".join(f"{count} {why}" for why, count in self.reasons.most_common())
        skipped = f"; {len(self.skipped)} skipped ({reasons})" if self.skipped else ""
        return f"{counted(checked, 'rewrite')} equal on their own{context}{skipped}"


class FiringDiffers(NotProved):
    """The old and the new form of a rewrite differ. `optimize_program` always catches it."""

    def __init__(self, rewrite: Rewrite, report: Report) -> None:
        super().__init__(rewrite, report)
        self.rewrite = rewrite
        self.report = report


@dataclass
class EachTrace(Trace):
    """A trace that proves each rewrite before the next one.

    Every pass reads `stopped` between two rewrites. The program is complete at that time, so both
    forms are recorded there.
    """

    program: Program | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    report: EachReport = field(default_factory=EachReport)
    _before: tuple[ModelProto, _Nodes] | None = None
    _settled: int = 0
    _rounded_before: bool = False

    def watch(self, program: Program, options: Mapping[str, Any]) -> None:
        """Begins with this program; `options` are the options of `verify` for the runtime and its
        provider.
        """
        self.program, self.options = program, options
        self._before = _snapshot(program)

    @property
    def stopped(self) -> bool:
        """As `Trace.stopped`. Raises FiringDiffers if the last rewrite was wrong."""
        self.settle()
        return super().stopped

    def settle(self) -> None:
        """Proves the rewrites since the last call."""
        if self.program is None or self._before is None or len(self.rewrites) == self._settled:
            return
        fired, self._settled = self.rewrites[self._settled :], len(self.rewrites)
        after = _snapshot(self.program)
        rounded, self.rounded = self.rounded or self.rounding, False
        self._prove(fired, self._before, after, exact=not rounded)
        self._before = after
        self._rounded_before = self._rounded_before or rounded

    def finish(self) -> None:
        """Proves the last rewrite, and sets `rounded` as a plain trace does."""
        self.settle()
        self.rounded = self.rounded or self._rounded_before

    def _prove(
        self,
        fired: list[Rewrite],
        old: tuple[ModelProto, _Nodes],
        new: tuple[ModelProto, _Nodes],
        *,
        exact: bool,
    ) -> None:
        (before, nodes_before), (after, nodes_after) = old, new
        types = _types(self.program) if self.program is not None else {}
        context, why = False, "no value that is read has changed"
        ran = False
        for scope in scopes(
            before, after, lambda name: not nodes_before[name].isdisjoint(nodes_after[name])
        ):
            try:
                context |= self._one(Region(before, after, scope, types.get), fired, exact)
                ran = True
            except NoRegion as error:
                why = str(error)
        if not ran:
            self.report.skipped.update({f.number: why for f in fired})
        elif context:
            self.report.in_context += len(fired)
            self.report.widened.update(f.number for f in fired)
        else:
            self.report.alone += len(fired)

    def _one(self, region: Region, fired: list[Rewrite], exact: bool) -> bool:
        """Compares the two forms of a region, which grows until they agree. Returns whether it
        grew.
        """
        report, why, program = None, "", self.program
        # the folder and the digests of the program's weights
        weights = (None, None) if program is None else (program.folder, program.digests)
        for i, levels in enumerate((0, *_STEPS)):
            if i and not region.widen(levels):
                break
            a, b = region.cut()
            try:
                for model in (a, b):
                    load_weights(model, *weights)
                report = self._compare(a, b, exact)
            except InputError as error:  # no feeds satisfy these operands together
                why = str(error)
                continue
            if report.ok:
                return i > 0
            if report.verdict != DIFFERENT:  # NaN on these feeds, or a limit was reached
                why, report = report.summary, None
        if report is None:
            raise NoRegion(f"cannot be run alone: {why.split(';')[0][:120]}")
        raise FiringDiffers(fired[0], report)

    def _compare(self, a: ModelProto, b: ModelProto, exact: bool) -> Report:
        """Compares in float64 if possible, because that is fast and finds the smallest differences;
        else in onnxruntime.
        """
        weights = "same" if exact else "rounded"
        if "checks" in self.options:
            return verify(a, b, weights=weights, **self.options)
        try:
            return verify(a, b, checks=("float64",), weights=weights, **self.options)
        except InputError:
            return verify(a, b, checks=("onnxruntime",), **self.options)


def _snapshot(program: Program) -> tuple[ModelProto, _Nodes]:
    """The program between two rewrites, and its bindings by the name of their first result.

    Writing the protobuf would sort the bindings. Their order is restored for the running pass.
    """
    before = {block: block.bindings for block in program.blocks()}
    proto = to_proto(program)
    nodes: _Nodes = defaultdict(set)
    for block, bindings in before.items():
        block.bindings = bindings
        for b in bindings:
            if b.outputs and b.outputs[0] is not None:
                nodes[b.outputs[0].name].add(b)
    return proto, nodes


def _types(program: Program) -> dict[str, TypeProto]:
    """The known types of values by name, without names that two values share."""
    found: dict[str, TypeProto | None] = {}
    for block in program.blocks():
        if block.is_function:
            continue
        for v in block.vars():
            made = type_to_proto(v.type)
            tensor, is_tensor = made.tensor_type, made.HasField("tensor_type")
            is_known = not is_tensor or (tensor.elem_type and tensor.HasField("shape"))
            known = made if is_known else None
            found[v.name] = known if v.name not in found or found[v.name] == known else None
    return {name: made for name, made in found.items() if made is not None}
