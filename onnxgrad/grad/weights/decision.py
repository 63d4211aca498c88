"""Which floating-point constants of a model are weights, by their readers, elements and names.

Training moves weights: filters, matrices, biases, embeddings. The role of a constant with each
reader distinguishes a weight from masks, rotary tables, initial states, statistics and the numbers
of formulas. The first role of `_ROLES` that fits decides: by the operand, the surrounding
computation, the elements and the name. In doubt, a constant that looks trained is a weight. Every
decision has a reason in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property, partial
from itertools import chain

from onnxgrad.frozen import frozen
from onnxgrad.grad.weights.evidence import (
    CONSTANT,
    Evidence,
    declared,
    evidence,
    is_formula_number,
    is_hiding,
    is_monotone,
    is_scripted,
    is_sinusoidal,
    is_uniform,
    pattern,
)
from onnxgrad.grad.weights.origins import names_parameter
from onnxgrad.grad.weights.readers import (
    FILTERS,
    NORM,
    OTHERS,
    SCALE,
    TABLE,
    WEIGHTS,
    Reader,
    before,
    columns,
    constants_only,
    in_front_of_softmax,
    is_one,
    is_rotary,
    is_state,
    makes_angles,
    operand,
    readers,
    scaled_again,
    standardises,
)
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

# the search for readers stops at these operators, even if all operands are constants
_ENDS = frozenset(WEIGHTS) | {"Sub", "Sqrt"}
# fewer elements than _FEW prove nothing alone; _SAMPLE elements of a large matrix are examined
_FEW, _SAMPLE = 8, 4096
# kinds of names that modules use for their own values
_OWNED = ("parameter", "attribute")


@frozen
class Decision:
    """Whether a constant is a weight, and why."""

    is_weight: bool
    why: str


def decide(program: Program, candidates: Collection[Var]) -> dict[Var, Decision]:
    """Returns the decision for each of the floating-point constants `candidates`. Reads elements,
    also of external data, if operand and name do not decide.
    """
    fixed = constants_only(program) | set(candidates)
    exported, scripted = declared(program.proto.graph), is_scripted(program.proto)
    # torch writes parameters as initializers: a Constant node makes none
    keeps_names = "PARAMETER" in exported.values() or (
        scripted and any(evidence(n, scripted) == "parameter" for n in program.main.initializers)
    )
    found = {}
    for v in candidates:
        c = _Constant(v, fixed, evidence(v.name, scripted and v.initializer is not None))
        kind = exported.get(v.name, "")
        made = v.name not in exported and v.name.endswith(f".{CONSTANT}")
        if made or (v.is_constant and v.initializer is None):
            kind = "CONSTANT" if keeps_names else kind
        elif kind == "CONSTANT" and _is_merged(v):
            kind = ""
        elif kind == "FOLDED" and not c.one:  # the name is the exporter's, the value is not
            c.name = "attribute" if c.array is not None and is_uniform(c.array) else ""
        found[v] = _decide(c, "" if kind == "FOLDED" else kind)
    return found


def _is_merged(v: Var) -> bool:
    """Whether several nodes read the value, one of them for a call that names a parameter, or for
    an unknown one: the exporter may have merged that parameter with an equal constant.
    """
    return len(v.users) > 1 and any(
        names_parameter(b) or not b.node.metadata_props for b in v.users
    )


class _Constant:
    """A constant, the evidence of its name, and its elements, read on demand; None if the file does
    not store them as floats.
    """

    def __init__(self, v: Var, fixed: Collection[Var], name: Evidence) -> None:
        self.v, self.fixed, self.name = v, fixed, name
        self.one = is_one(v)
        self.in_a_line = v.shape is not None and sum(n != 1 for n in v.shape) <= 1

    @cached_property
    def array(self) -> Array | None:
        if self.v.initializer is not None:
            return self.v.block.program.array(self.v.initializer)
        return self.v.const

    @cached_property
    def pattern(self) -> str:
        """The pattern of the elements; a few numbers under a meaningless name prove nothing."""
        few = self.name == "" and self.array is not None and self.array.size < _FEW
        if self.array is None or (few and not is_hiding(self.array) and not is_uniform(self.array)):
            return ""
        return pattern(self.array)

    @cached_property
    def named(self) -> bool:
        """Whether its name is a parameter's, or a module's own and all elements are equal, as many
        parameters are at the start.
        """
        return self.name == "parameter" or (
            self.name == "attribute" and self.array is not None and is_uniform(self.array)
        )


def _decide(c: _Constant, exported: str) -> Decision:
    """Returns the decision: a constant is a weight if it is one for any reader. The exporter's own
    record takes precedence.
    """
    answers = [
        next(
            (answer for role in _ROLES if (answer := role(c, by)) is not None),
            # an operand without a pattern was trained
            _yes(_TRAINED.get(by.binding.op, f"operand of {by.binding.op} that looks trained")),
        )
        for by in readers(c.v, c.fixed, _ENDS)
    ] or [_no("none of its readers passes a gradient")]
    scale = (a for a in answers if a.why == SCALE)
    found = next(chain(scale, (a for a in answers if a.is_weight)), answers[0])
    if not exported or found.is_weight == (exported == "PARAMETER"):
        return found
    if exported == "CONSTANT":
        return _no("a constant of the forward pass: the exporter made it from no parameter")
    return Decision(not found.is_weight, f"{exported.lower()} of the module that was exported")


_no, _yes = partial(Decision, False), partial(Decision, True)


# ---- roles: the decision for a constant and one of its readers, None if it has another role ------


def _buffer(c: _Constant, by: Reader) -> Decision | None:
    """A buffer by its name for any reader, or a statistic by its name if no product reads it."""
    is_buffer = c.name == "buffer" or (c.name == "statistic" and operand(by) in ("", TABLE))
    return _no(f"a {c.name} of a module, by its name") if is_buffer else None


def _no_weight_by_operand(c: _Constant, by: Reader) -> Decision | None:
    """Statistics, bounds, scales of quantisation and of Resize."""
    what = OTHERS.get(by.binding.op, {}).get(by.slot)
    if what is None and by.binding.op == "Clip" and c.name not in _OWNED:
        what = "bound of a Clip"
    return None if what is None else _no(what)


def _initial_state(c: _Constant, by: Reader) -> Decision | None:
    """An initial state. Most are zeros; one that looks trained was learned."""
    if not is_state(by.binding, by.slot) and not (
        by.binding.op in ("LSTM", "GRU", "RNN") and by.slot in (5, 6)
    ):
        return None
    if c.named or not c.pattern:
        return _yes("initial state that looks learned")
    return _no(f"initial state of a recurrence, {c.pattern}")


def _idle_normalisation(c: _Constant, by: Reader) -> Decision | None:
    """Ones or zeros that fill in for the missing scale or bias of a normalisation."""
    if operand(by) not in NORM.values() or c.name == "parameter" or c.array is None:
        return None
    idle = {NORM[1]: 1.0, NORM[2]: 0.0}[operand(by)]
    if is_uniform(c.array) and c.array.flat[0] == idle:
        if scaled_again(by.binding.out, c.fixed):
            return _no(f"all {idle:g} in a normalisation, and a scale follows")
        if c.name == "constant":
            return _no(
                f"all {idle:g}: written for a normalisation without a {'scale' if idle else 'bias'}"
            )
    return None


def _frequencies(c: _Constant, by: Reader) -> Decision | None:
    """Frequencies: multiplied by positions, they are the angles of Cos and Sin."""
    if (
        by.binding.op not in ("Mul", "Div", "MatMul", "Einsum")
        or c.name == "parameter"
        or not c.in_a_line
    ):
        return None
    in_order = c.one or (c.array is not None and is_monotone(c.array))
    return _no("frequencies of a Cos or Sin") if in_order and makes_angles(by.binding.out) else None


def _fixed_table(c: _Constant, by: Reader) -> Decision | None:
    """Sines of the position, or a filter with a pattern and a name that an exporter made up.

    Equal elements do not count as a pattern, because adapters start with them.
    """
    if not operand(by) or c.name in _OWNED or c.in_a_line or c.array is None:
        return None
    if is_sinusoidal(c.array):
        return _no(f"{operand(by)}, but sines of the position")
    if c.name == "constant" and operand(by) in FILTERS and not is_uniform(c.array):
        found = pattern(c.array.reshape(-1)[:: max(1, c.array.size // _SAMPLE)])
        if found and not found.startswith("all "):
            return _no(f"{operand(by)}, but {found}")
    return None


def _weight_by_operand(c: _Constant, by: Reader) -> Decision | None:
    """Filters, matrices, biases, scales, tables."""
    what = operand(by)
    # an expanded number is not a filter
    return _yes(what) if what and is_one(by.value) >= c.one else None


def _mask(c: _Constant, by: Reader) -> Decision | None:
    """A mask, which adds huge negative numbers to hide scores."""
    hides = c.array is not None and is_hiding(c.array)
    return _no("a mask of large negative numbers") if hides else None


def _rotary(c: _Constant, by: Reader) -> Decision | None:
    """A rotary table, as in x * cos + rotated(x) * sin."""
    rotary = not c.one and c.array is not None and is_rotary(by, c.array)
    return _no("cosines or sines of a rotary embedding") if rotary else None


def _bias_or_scale(c: _Constant, by: Reader) -> Decision | None:
    """A bias or scale: one number per feature, after a product or a normalisation."""
    if by.binding.op not in ("Add", "Sum", "Mul") or not c.in_a_line or not by.others:
        return None
    kind, source = before(by.others[0], c.fixed)
    if source is None or (
        c.one and (c.name == "constant" or not c.v.shape or columns(source) != 1)
    ):
        return None
    return _yes(f"{'scale' if by.binding.op == 'Mul' else 'bias'} after a {kind}")


def _number(c: _Constant, by: Reader) -> Decision | None:
    """One element: a parameter by its name, or a number that belongs to no known formula."""
    if not c.one:
        return None
    if c.v.is_constant and c.v.initializer is None and "." not in c.v.name:
        return _no("a constant of the formula, written by a node")  # whatever its name
    if c.name in _OWNED:
        return _yes("a number that has a parameter's name")
    if c.name == "constant" or c.v.is_constant > (c.v.initializer is not None):
        return _no("a constant of the formula")
    if c.array is not None and is_formula_number(float(c.array.flat[0])):
        return _no(f"a constant of the formula, {float(c.array.flat[0]):g}")
    return _yes("a number that belongs to no known formula")


def _position_bias(c: _Constant, by: Reader) -> Decision | None:
    """A bias of attention's scores that hides nothing."""
    if by.binding.op not in ("Add", "Sum") or not in_front_of_softmax(by.binding.out):
        return None
    if c.pattern and not c.named:
        return _no(f"added before a Softmax, {c.pattern}: a mask or distances")
    return _yes("added to scores: a learned position bias")


def _statistic(c: _Constant, by: Reader) -> Decision | None:
    """A statistic: means are subtracted, spreads divide; weights are added or multiplied."""
    if by.binding.op == "Sqrt" and by.binding.out in c.fixed:
        return _no("operand of a square root: a variance")
    divides = by.binding.op == "Div"
    if by.slot != 1 or not (divides or by.binding.op == "Sub") or c.name in _OWNED:
        return None
    if c.name != "constant" and not standardises(by, c.fixed):
        return None
    return _no(
        "standard deviation of data: a divisor" if divides else "mean of data: it is subtracted"
    )


def _with_a_pattern(c: _Constant, by: Reader) -> Decision | None:
    """Masks, grids, windows, positions."""
    table = c.pattern and not c.named
    return _no(f"a table that was not trained: {c.pattern}") if table else None


_TRAINED = {
    "Add": "added to activations: learned positions or a bias",
    "Sum": "added to activations: learned positions",
    "Mul": "multiplied by activations: a learned scale",
    "Concat": "concatenated with activations: a learned token",
    "Where": "inserted by a mask: a learned token",
}


Role = Callable[[_Constant, Reader], "Decision | None"]
# from the certain to the likely: the first that is not None decides
_ROLES: tuple[Role, ...] = (
    _buffer,
    _no_weight_by_operand,
    _initial_state,
    _idle_normalisation,
    _frequencies,
    _fixed_table,
    _weight_by_operand,
    _mask,
    _rotary,
    _bias_or_scale,
    _number,
    _position_bias,
    _with_a_pattern,
    _statistic,
)
