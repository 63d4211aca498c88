"""The table of gradient rules, keyed by domain and operator. `onnxgrad.grad.rules` says how to
write one.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.legalize import WITHOUT_FORM
from onnxgrad.options import known_keywords
from onnxgrad.wording import option

Formula = Callable[..., Any]
Kind = Literal["vjp", "vjp_all", "vjp_blocks", "zero", "body"]

# the domain of operators that stand in a graph only while its gradient is formed
INTERNAL = "onnxgrad"

# numpy broadcasting is undone for these; a partial of any other operator must have its operand's
# shape
_BROADCASTING = frozenset(
    {
        "Add",
        "BitShift",
        "Div",
        "Gemm",
        "MatMul",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "PRelu",
        "Pow",
        "Sub",
        "Sum",
        "Where",
    }
)


@dataclass(frozen=True)
class GradientRule:
    """How one operator is differentiated. `formulas`: one per operand (vjp), a single one (vjp_all,
    vjp_blocks), or what builds the body that is differentiated in the operator's place (body).
    `compares`: operands are compared with results, so both must come from one computation.
    """

    domain: str
    op: str
    kind: Kind
    formulas: tuple[Formula | None, ...] = ()
    fill: bool = False
    many: bool | None = None
    broadcasts: bool = False
    since: int = 1
    notes: str = ""
    compares: bool = False
    module: str = ""
    plans: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """`Op`, or `domain::Op` outside of the default domain."""
        return domains.full_name(self.domain, self.op)

    def has_formula(self, index: int) -> bool:
        """Whether operand `index` can receive anything."""
        if self.kind in ("vjp_all", "vjp_blocks", "body"):
            return True
        return index < len(self.formulas) and self.formulas[index] is not None


# onnxruntime's convolutions on blocked channels, which ORT_ENABLE_ALL writes into saved models
_BLOCKED_LAYOUT = "com.microsoft.nchwc"

RULES: dict[tuple[str, str], GradientRule] = {}


@known_keywords
def vjp(
    name: str,
    *formulas: Formula | None,
    fill: bool = False,
    many: bool | None = None,
    broadcasts: bool | None = None,
    since: int = 1,
    notes: str = "",
    compares: bool = False,
    replace: bool = False,
) -> None:
    """Register one formula per operand, in the schema's order; None, or none at the end: no
    gradient there.

    `name` is "Op" or "my.domain::Op". `notes` states the convention at kinks. `fill`: outputs
    without an adjoint arrive as zeros instead of None. `many`: `g` and `y` are tuples (default: the
    schema allows several outputs). `broadcasts`: operands broadcast against each other, the engine
    sums partials back. `since`: the version that the table of operators shows where ONNX has no
    schema. `compares`: a formula asks which operands equal a result, as that of a maximum does;
    under checkpointing it then reads both from one computation, for two may differ in the last bit.
    Raises InputError when the operator has a rule already and `replace` is not set.

    `g` is the adjoint of the output, of its shape; `y` the output; then the operands, None where
    left out. A partial has its operand's shape, before broadcasting is undone.

    >>> from onnxgrad import kernel, vjp
    >>> vjp("my.domain::Cube", lambda g, y, x: g * 3.0 * x * x)
    >>> _ = kernel("my.domain::Cube")(lambda x: x**3)
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] x) => (float[N] y) { y = my.domain.Cube (x) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    if not any(formulas):
        raise InputError(
            f'vjp("{name}") has no formula: declare it with zero("{name}") if its '
            "derivative is zero"
        )
    domain, op = domains.split_name(name)
    broad = (domain == "" and op in _BROADCASTING) if broadcasts is None else broadcasts
    _add(
        GradientRule(domain, op, "vjp", formulas, fill, many, broad, since, notes, compares),
        replace,
    )


@known_keywords
def vjp_all(
    name: str,
    formula: Formula,
    *,
    fill: bool = False,
    many: bool | None = None,
    broadcasts: bool | None = None,
    since: int = 1,
    notes: str = "",
    compares: bool = False,
    replace: bool = False,
) -> None:
    """Register one function `f(g, y, xs, attributes by name ...)` that returns a list with one
    partial per input.

    >>> from onnxgrad import kernel, vjp_all
    >>> vjp_all("my.domain::Total", lambda g, y, xs: [g for x in xs])
    >>> _ = kernel("my.domain::Total")(lambda *xs: sum(xs))
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] a, float[N] b) => (float[N] y) { y = my.domain.Total (a, b) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    domain, op = domains.split_name(name)
    broad = (domain == "" and op in _BROADCASTING) if broadcasts is None else broadcasts
    _add(
        GradientRule(domain, op, "vjp_all", (formula,), fill, many, broad, since, notes, compares),
        replace,
    )


def vjp_blocks(
    name: str, formula: Formula, *, since: int = 1, notes: str = "", replace: bool = False
) -> None:
    """Register a rule for an operator with nested blocks: `f(binding, g, wanted) -> {value read:
    its partial}`.

    `g` has one entry per output (None: absent); `wanted` are the values, operands and captures,
    whose partials are asked for.
    """
    domain, op = domains.split_name(name)
    _add(GradientRule(domain, op, "vjp_blocks", (formula,), since=since, notes=notes), replace)


@known_keywords
def body(
    name: str, builder: Formula, *, since: int = 1, notes: str = "", replace: bool = False
) -> None:
    """Register what an operator computes in terms of others: `builder(operands ..., *, attributes
    ...)` emits it.

    Positional parameters are operands (None where omitted), keyword-only ones attributes, `binding`
    the call. The answer is the result, or a tuple with one per output (None: not computed). Between
    the requested values and the target the call is replaced by what was emitted, which is
    differentiated in its stead; elsewhere it stays.

    >>> from onnxgrad import body, kernel, op
    >>> body("my.domain::Swish", lambda x, *, beta=1.0: x * op.Sigmoid(x * beta))
    >>> _ = kernel("my.domain::Swish")(lambda x, beta=1.0: x / (1 + np.exp(-beta * x)))
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] x) => (float[N] y) { y = my.domain.Swish <beta = 2.0> (x) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    domain, op = domains.split_name(name)
    _add(GradientRule(domain, op, "body", (builder,), since=since, notes=notes), replace)


@known_keywords
def zero(*names: str, notes: str = "") -> None:
    """Declare operators whose derivative is zero almost everywhere (or that have no float input
    at all).

    >>> onnxgrad.zero("my.domain::Bucket", "my.domain::Rank")
    """
    for name in names:
        domain, op = domains.split_name(name)
        _add(GradientRule(domain, op, "zero", notes=notes), replace=False)


def rule_of(binding: Binding) -> GradientRule | None:
    """The rule registered for the binding's domain and operator."""
    return RULES.get((binding.domain, binding.op))


def find(name: str) -> GradientRule | None:
    """The rule registered under "Op" or "domain::Op"."""
    return RULES.get(domains.split_name(name))


def rules() -> Iterator[GradientRule]:
    """Every rule, by domain and operator."""
    yield from (RULES[key] for key in sorted(RULES))


def missing(binding: Binding) -> InputError:
    """The error for a binding that stands between a requested value and the target and has no
    rule.
    """
    name = domains.full_name(binding.domain, binding.op)
    operands = ", ".join(f"x{i}" for i in range(len(binding.inputs)))
    if (binding.domain, binding.op) in WITHOUT_FORM:
        return InputError(
            f"no gradient rule for {name} at '{binding}': "
            f"{WITHOUT_FORM[binding.domain, binding.op]}"
        )
    if binding.domain == _BLOCKED_LAYOUT:
        return InputError(
            f"no gradient rule for {name} at '{binding}': onnxruntime optimised this file for the "
            "memory layout of one machine; save it with graph_optimization_level "
            "ORT_ENABLE_EXTENDED, or differentiate the original"
        )
    return InputError(
        f"no gradient rule for {name} (domain '{binding.domain or 'ai.onnx'}', version "
        f"{binding.version}) at "
        f"'{binding}': register one with onnxgrad.vjp(\"{name}\", lambda g, y, {operands}: ...), "
        "one formula per "
        f'operand, or onnxgrad.zero("{name}"){option(", in a file given with --plugin", "")}'
    )


@contextmanager
def naming(rule: GradientRule, binding: Binding) -> Iterator[None]:
    """Name the rule and the binding in an error of a rule that emits what does not type, or
    stumbles over operands.

    Nothing but the operator's own kernels knows what an operator without a schema takes: it may be
    its operands, and is an InputError. For any other it is an InternalError, as long as nobody
    finds that the model is not valid.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a rule is anybody's code
        untyped = _untyped(binding)
        if isinstance(error, OnnxgradError) and not isinstance(error, InternalError):
            if untyped and isinstance(error, InputError):
                raise InputError(f"the gradient of '{binding}' {untyped} ({error})") from error
            raise
        if untyped:
            raise InputError(f"the gradient of '{binding}' {untyped}") from error
        what = (
            str(error) if isinstance(error, OnnxgradError) else f"{type(error).__name__}: {error}"
        )
        text = f"the gradient rule of {rule.name} failed at '{binding}': {what}"
        if attributes.schema(binding.op, binding.version, binding.domain) is not None:
            raise InternalError(text) from error
        raise InputError(f"{text}; are these operands what {rule.name} takes?") from error


def _untyped(binding: Binding) -> str:
    """Which type is missing behind an operator that onnx does not know, and what to do; empty if
    none is.
    """
    for v in (*binding.inputs, *binding.outputs):
        source = v
        while source is not None and not _is_typed(source) and source.definition is not None:
            made = source.definition
            if attributes.schema(made.op, made.version, made.domain) is None:
                name = domains.full_name(made.domain, made.op)
                return (
                    f"needs the type of '{v.name if v else ''}', which is not known behind {name}: "
                    f"declare '{source.name}' in the model's value_info, or register what {name} "
                    "computes with onnxgrad.kernel"
                )
            source = next((x for x in made.inputs if x is not None and not _is_typed(x)), None)
    return ""


def _is_typed(v: Var) -> bool:
    return not isinstance(v.type, TensorType | None) or bool(v.dtype and v.shape is not None)


def _add(rule: GradientRule, replace: bool) -> None:
    key = (rule.domain, rule.op)
    if key in RULES and not replace:
        raise InputError(
            f"{rule.name} has a gradient rule already: pass replace=True to put "
            "another in its place"
        )
    module = _module_of_the_caller()
    # ours may be of operators newer than the onnx that is installed
    if not module.startswith("onnxgrad.") and (unknown := domains.unknown_operator(*key)):
        raise InputError(f"no gradient rule can be given: {unknown}")
    RULES[key] = dataclasses.replace(rule, module=module)


def _module_of_the_caller() -> str:
    """The module that called `vjp` or the like, behind the check of their keywords."""
    frame, module = sys._getframe(1), __name__
    while frame.f_back is not None and module in (__name__, known_keywords.__module__):
        frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
    return module
