"""Requirements of a recipe: bounds on the facts of the result.

MatMul = 72                     # exactly this count; "MatMul+Gemm" counts both
nodes = "<= 1500"
bytes = "<= -10%"               # relative to the input model: at least a tenth less
memory = "<= 200MB"             # at the peak of a run
parameters = "<= baseline"      # of the lock that `onnxgrad ci` keeps; or "<= baseline +5%"
latency = "<= 0.9"              # time over the input's; or "<= 1.1 of models/old.onnx"
opset = "<= 17"
interface = "== input"          # names and types of inputs and outputs; or "== baseline"
weights = "== baseline"         # constants of the input; or "may change"
checks = ["float64", "onnxruntime"]   # of the proof, which must have run in full
exact = ">= 90%"                # of the rewrites are the same algebra, by exact evaluation
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.var import Var
from onnxgrad.limits import read_size
from onnxgrad.results import Plain
from onnxgrad.verify import Report
from onnxgrad.vocabulary import CHECKS
from onnxgrad.wording import perhaps, told_apart

if TYPE_CHECKING:
    from onnxgrad.rewrite.exact_record import ExactReport

INPUT = "input"  # the input model, with which the result is compared


@frozen
class Latency(Plain):
    """The ratio of a time to that of the model `against`, measured in turns: the median with its
    quartiles. `clock`: "CPU", or "wall" on a device that computes while the CPU waits.
    """

    json_keys = "against ratio:.4g low:.4g high:.4g clock"

    against: str
    ratio: float
    low: float
    high: float
    clock: str = "CPU"

    @property
    def spread(self) -> str:
        """The quartiles, for messages."""
        return f"quartiles {self.low:.2f} to {self.high:.2f}"


@frozen
class Facts(Plain):
    """The facts of a model. Counts are those of `ir.protobufs.Stats`, types are as printed
    (`f32[N,4]`), opsets by domain.

    `worst`: the largest difference in the proof, relative to the largest value. `memory`: peak
    bytes of a run on the provider `memory_on`. These and `latency` are None if they were not
    measured.
    """

    json_keys = (
        "inputs outputs opset nodes operators=by_name parameters bytes worst:.2g latency "
        "memory memory_on"
    )

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    opset: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int
    bytes: int
    worst: float | None = None
    latency: Latency | None = None
    memory: int | None = None
    memory_on: str | None = None

    @property
    def by_name(self) -> dict[str, int]:
        """The counts of operators, sorted by name."""
        return dict(sorted(self.operators.items()))

    @property
    def nodes(self) -> int:
        """The number of nodes, those of nested graphs and functions included."""
        return sum(self.operators.values())


def facts_of(program: Program, proto: ModelProto) -> Facts:
    """Returns the facts of a program, which `proto` contains, without running it."""
    stats = stats_of(proto)
    return Facts(
        inputs={v.name: _type(v, default=v.initializer is not None) for v in program.main.inputs},
        outputs={v.name: _type(v) for v in program.main.outputs},
        opset={o.domain or "ai.onnx": o.version for o in proto.opset_import},
        operators=dict(sorted(stats.operators.items())),
        parameters=stats.parameters,
        bytes=stats.bytes,
    )


def _type(var: Var, *, default: bool = False) -> str:
    shown = "?" if var.type is None else str(var.type)
    return f"{shown} with default" if default else shown


def rounded(value: float, digits: int) -> float:
    """Returns a number with this many significant digits."""
    return float(f"{value:.{digits}g}")


BASELINE = "baseline"
EXACT = "exact"
# quantities that a requirement may bound, beside counts of operators
SIZES = ("bytes", "memory")
QUANTITIES = (
    "nodes", "parameters", *SIZES, "opset", "latency", "interface", "weights", "checks", EXACT
)  # fmt: skip
# quantities that `onnxgrad ci` measures by running models, or compares with its lock
MEASURED = ("latency", "memory", "weights")
MAY_CHANGE = "may change"
_WORDS = {
    "interface": (f"== {INPUT}", f"== {BASELINE}"),
    "weights": (f"== {BASELINE}", MAY_CHANGE),
}
WITHOUT_BASELINE = "it has no baseline: run `onnxgrad ci --update`"

# the last letters of units -> the quantities that they may belong to, if not only sizes
_UNITS = dict.fromkeys("kmgt", (*SIZES, "parameters"))

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_BOUND = re.compile(
    r"\s*(?P<sign><=|>=|==|!=|<|>)\s*"
    r"(?:(?P<base>baseline|input)?\s*(?P<percent>[+-]\s*\d{1,9}(?:\.\d{1,9})?)\s*%"
    r"|(?P<alone>baseline|input)"
    r"|(?P<number>\d{1,18}(?:\.\d{1,9})?)\s*(?P<unit>(?:[kmgt]i?)?b|[kmgt]i?)?"
    r"(?:\s+of\s+(?P<of>\S.*?))?)\s*",
    re.IGNORECASE,
)


_SHARE = re.compile(r"\s*(?P<sign>>=|>|==)\s*(?P<share>\d{1,3}(?:\.\d{1,9})?)\s*%\s*")


@frozen
class Bound:
    """`sign` `number`, or with a `base` (input, baseline) 1 + `number` times the value of the base;
    `of` is the file to which a latency is relative; `names` are the required checks.
    """

    sign: str = "=="
    number: float = 0.0
    base: str = ""
    of: str = ""
    names: tuple[str, ...] = ()
    unit: str = ""

    def __str__(self) -> str:
        if self.names:
            return ", ".join(self.names)
        if self.sign == MAY_CHANGE:
            return self.sign
        if not self.base:
            of = f" of {self.of}" if self.of else ""
            return f"{self.sign} {self.number:.15g}{self.unit}{of}"
        percent = f"{100 * self.number:+.9g}%" if self.number else ""
        base = "" if self.base == INPUT and percent else self.base
        return f"{self.sign} {' '.join(filter(None, (base, percent)))}"


@frozen
class Held(Plain):
    """One requirement and its result: the measured `value`, the `limit` as a number (both None if
    unknown or not numbers), and `why` the requirement is missed.
    """

    name: str
    bound: str
    value: float | None
    limit: float | None
    held: bool
    why: str = ""


def check_quantity(name: str) -> None:
    """Raises InputError for a key of `require` that names neither operators nor a quantity."""
    for part in map(str.strip, name.split("+")):
        if not part or (part in QUANTITIES and name != part):
            raise InputError(
                f"require: '{part}' does not stand for operators: name operators, or one of "
                f"{', '.join(QUANTITIES)} alone"
            )


def bound_of(name: str, text: Any) -> Bound:
    """Returns the bound of a quantity: text such as "<=164", an exact number, or a list of checks.
    Raises InputError.
    """
    if name in ("checks", EXACT):
        return _checks_of(text) if name == "checks" else _share_of(text)
    if name in _WORDS:
        words = "".join(text.split()) if isinstance(text, str) else ""
        for known in _WORDS[name]:
            if words == known.replace(" ", ""):
                sign, _, base = known.rpartition(" ")
                return Bound(MAY_CHANGE) if known == MAY_CHANGE else Bound(sign, base=base)
        legal = " or ".join(f'"{known}"' for known in _WORDS[name])
        raise InputError(f"cannot hold '{name}' to {repr(text)[:80]}: write {legal}")
    if isinstance(text, int) and not isinstance(text, bool):
        return Bound("==", text)
    match = _BOUND.fullmatch(text) if isinstance(text, str) else None
    if match is None or (name == "latency" and match["unit"]):
        legal = _A_RATIO if name == "latency" else f"write {_LEGAL}"
        raise InputError(f"cannot read the requirement {repr(text)[:80]} of '{name}': {legal}")
    bound = _bound(match)
    wrong = _misfit(name, bound, match)
    if wrong:
        raise InputError(f"cannot hold '{name}' to {text!r}: {wrong}; write {_LEGAL}")
    return bound


def _checks_of(text: Any) -> Bound:
    if not isinstance(text, list) or not text or not all(n in CHECKS for n in text):
        raise InputError(
            f"'checks' cannot be {repr(text)[:80]}: write a list of {', '.join(map(repr, CHECKS))}"
        )
    return Bound(names=tuple(text))


def _share_of(text: Any) -> Bound:
    share = _SHARE.fullmatch(text) if isinstance(text, str) else None
    if share is None or float(share["share"]) > 100:
        raise InputError(f"cannot hold 'exact' to {repr(text)[:80]}: write \">= 90%\"")
    return Bound(share["sign"], float(share["share"]), unit="%")


_A_RATIO = (
    'it is a ratio to the time of the input: write "<= 0.9", or "<= 1.1 of models/old.onnx", '
    '"<= baseline +5%"'
)
_LEGAL = (
    'a number or text such as "<= 164", "<= 200MB", "<= -10%" (of the input), "<= input", '
    '"<= baseline +5%"; signs are <= >= == != < >'
)


def _bound(match: re.Match[str]) -> Bound:
    sign, alone, percent = match["sign"], match["alone"], match["percent"]
    if alone:
        return Bound(sign, base=alone.lower())
    if percent:
        share = float(percent.replace(" ", "")) / 100
        return Bound(sign, share, base=(match["base"] or INPUT).lower())
    unit = match["unit"]
    number = read_size(match["number"] + unit) if unit else float(match["number"])
    return Bound(sign, number, of=match["of"] or "")


def _misfit(name: str, bound: Bound, match: re.Match[str]) -> str:
    """Returns why the bound does not fit the quantity, or an empty text."""
    if match["unit"] and name not in _UNITS.get(match["unit"][-1].lower(), SIZES):
        return f"only {' and '.join(SIZES)} have a unit, and parameters K, M, G and T"
    if bound.of and name != "latency":
        return "only latency is a ratio to another model"
    if not bound.base and name != "latency" and bound.number != int(bound.number):
        return "the number must be whole"
    if bound.base == INPUT and bound.number < -1:
        return "an upper bound of 0 cannot be met"
    return ""


def operators_of(program: Program) -> set[str]:
    """Returns the full names of the operators in a program, its nested graphs and its functions."""
    return {full_name(b.domain, b.op) for block in program.blocks() for b in block.bindings}


def check_operators(
    required: Iterable[str], known: Collection[str], where: str, *, others: bool = False
) -> None:
    """Raises InputError for the first required count of operators that neither a schema nor `known`
    has. With `others`, operators of a domain without schemas pass.
    """
    domains = {name.rpartition("::")[0] for name in _schemas()}
    for key in required:
        for name in () if key in QUANTITIES else map(str.strip, key.split("+")):
            allowed = others and name.rpartition("::")[0] not in domains
            if not allowed and name not in known and name not in _schemas():
                hint = perhaps(name, sorted({*known, *_schemas(), *QUANTITIES}))
                raise InputError(
                    f"{where}: require names '{name}', which is not an operator of the standard "
                    f"or of the model{hint}"
                )


@functools.cache
def _schemas() -> frozenset[str]:
    return frozenset(full_name(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history())


def _hold_checks(missing: Held, bound: Bound, proof: Report | None) -> Held:
    if proof is None:
        return replace(missing, why="nothing was proved")
    gaps = [f"{n} check was not requested" for n in bound.names if n not in proof.checks]
    gaps += [check.gap for check in proof.checks_of(bound.names) if check.gap]
    return replace(missing, held=not gaps, why="; ".join(gaps))


def _hold_exact(missing: Held, bound: Bound, exact: ExactReport | None) -> Held:
    if exact is None:
        return replace(missing, why="no rewrite was evaluated: verify.exact is false")
    share = 100 * exact.share
    held = _COMPARE[bound.sign](share, bound.number)
    why = "" if held else f"{share:.4g}% exact, not {bound}: {exact}"
    return replace(missing, value=share, limit=bound.number, held=held, why=why)


def hold(
    name: str,
    bound: Bound,
    result: Facts,
    given: Facts,
    *,
    baseline: Facts | None = None,
    proof: Report | None = None,
    exact: ExactReport | None = None,
) -> Held:
    """Returns whether `result` meets a bound; `given` are the facts of the model before
    rewriting.
    """
    missing = Held(name, str(bound), None, None, held=False)
    if name in ("checks", EXACT):
        checks = name == "checks"
        return _hold_checks(missing, bound, proof) if checks else _hold_exact(missing, bound, exact)
    if bound.base == BASELINE and baseline is None:
        return replace(missing, why=WITHOUT_BASELINE)
    if name == "interface":
        other = given if baseline is None or bound.base == INPUT else baseline
        why = _moved(other, result)
        return replace(missing, held=not why, why=why)
    value = _value(result, name)
    if value is None:
        return replace(missing, why="it could not be measured")
    base = {INPUT: given, BASELINE: baseline}.get(bound.base)
    # the latency of the input is its ratio to itself
    to_itself = base is None or (name == "latency" and bound.base == INPUT)
    reference = 1.0 if base is None or to_itself else _value(base, name)
    if reference is None or (
        bound.base == BASELINE and not _comparable(name, result, baseline or result)
    ):
        return replace(missing, value=value, why=f"the {bound.base} has no such value")
    limit = bound.number if base is None else reference * (1 + bound.number)
    held = _COMPARE[bound.sign](value, limit)
    if name == "latency" and result.latency is not None:
        return _within_quartiles(bound, result.latency, limit, held=held)
    comes_to = f" ({limit:,.10g})" if bound.base else ""
    why = "" if held else f"{value:,.10g} {name}, not {bound}{comes_to}"
    return Held(name, str(bound), value, limit, held, why)


def _within_quartiles(bound: Bound, found: Latency, limit: float, *, held: bool) -> Held:
    """Returns whether a latency meets a bound: it misses an upper or lower bound only if both
    quartiles do.
    """
    held = held or any(_COMPARE[bound.sign](edge, limit) for edge in (found.low, found.high))
    ratio, allowed = f"{found.ratio:.2f}", f"{limit:.2f}"
    if ratio == allowed:
        ratio, allowed = told_apart(found.ratio, limit, 2)
    comes_to = f" ({allowed})" if bound.base else ""
    why = f"{ratio} latency ({found.spread}), not {bound}{comes_to}"
    return Held("latency", str(bound), found.ratio, limit, held, "" if held else why)


def _moved(before: Facts, after: Facts) -> str:
    """Returns how names, types or the order of inputs and outputs changed, if they did."""
    found = []
    for kind, old, new in (
        ("inputs", before.inputs, after.inputs),
        ("outputs", before.outputs, after.outputs),
    ):
        if list(old.items()) != list(new.items()):
            shown = (", ".join(f"{name} {text}" for name, text in of.items()) for of in (old, new))
            found.append(f"{kind} changed: {' → '.join(shown)}")
    return "; ".join(found)


def _comparable(name: str, result: Facts, base: Facts) -> bool:
    """Whether two latencies are ratios to the same model by the same clock, or two memory sizes are
    of one provider.
    """
    if name == "memory":
        return result.memory_on == base.memory_on
    a, b = result.latency, base.latency
    return a is None or b is None or (a.against, a.clock) == (b.against, b.clock)


def _value(facts: Facts, name: str) -> float | None:
    if name == "latency":
        return None if facts.latency is None else facts.latency.ratio
    if name == "opset":
        return facts.opset.get("ai.onnx", 0)
    if name in QUANTITIES:
        found: float | None = getattr(facts, name)
        return found
    counts = Counter(facts.operators)
    return sum(counts[op.strip()] for op in name.split("+"))


def left_to_ci(required: Mapping[str, Any]) -> list[str]:
    """Returns the requirements that only `onnxgrad ci` can check, because they need a baseline or
    measurements.
    """
    return [
        name
        for name, text in required.items()
        if name in MEASURED or bound_of(name, text).base == BASELINE
    ]


def within_tolerance(limit: float | None, proof: Report | None) -> list[Held]:
    """Returns whether every difference is within the limit, relative to the largest value; an empty
    list without a limit or a proof.
    """
    if limit is None or proof is None:
        return []
    worst = max((d.rel for d in proof.differences), default=0.0)
    why = f"a difference of {worst:.2e} of max, tolerance = {limit:g}"
    held = worst <= limit
    return [Held("tolerance", f"<= {limit:g}", worst, float(limit), held, "" if held else why)]
