"""The table of gradient rules, keyed by domain and operator. `onnxgrad.grad.rules` shows how to
write one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, get_type_hints

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.extensions import built_in, plugged
from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import NUMERIC
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.table import BODIES
from onnxgrad.laws.quantized.legalize import LAWS
from onnxgrad.options import known_keywords
from onnxgrad.wording import option

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python has it from 3.11 on

F = TypeVar("F", bound=Callable[..., Any])
Formula = Callable[..., Any]
Kind = Literal["vjp", "vjp_all", "vjp_blocks", "zero", "body"]

Form = Literal["fast", "small"]
# the choice of rules with several formulas: the fastest, or the one with the fewest bindings
FORM: ContextVar[Form] = ContextVar("onnxgrad_form", default="fast")

# the domain of operators that exist only while a gradient is formed
INTERNAL = "onnxgrad"

# operators whose partials are summed over broadcast axes; the partials of any other operator must
# have the shapes of their operands
_BROADCASTING = frozenset((*NUMERIC, "BitShift", "Gemm", "MatMul"))


@frozen
class GradientRule:
    """How one operator is differentiated.

    formulas: one per operand (vjp), one for all (vjp_all, vjp_blocks), or the builder of the body
    that is differentiated in the operator's place (body). compares: a formula compares operands
    with results, so both must come from one computation.
    """

    domain: str
    op: str
    kind: Kind
    formulas: tuple[Formula | None, ...]
    fill: bool
    many: bool | None
    broadcasts: bool
    since: int
    notes: str
    compares: bool

    @property
    def name(self) -> str:
        """`Op`, or `domain::Op` outside of the default domain."""
        return domains.full_name(self.domain, self.op)

    @property
    def formula(self) -> Formula:
        """The first formula."""
        return cast(Formula, self.formulas[0])

    @property
    def module(self) -> str:
        """The module that defines its formulas; empty if there is none."""
        return next((f.__module__ for f in self.formulas if f is not None), "")

    def has_formula(self, index: int) -> bool:
        """Whether operand `index` can receive a partial."""
        if self.kind in ("vjp_all", "vjp_blocks", "body"):
            return True
        return index < len(self.formulas) and self.formulas[index] is not None


# onnxruntime's convolutions on blocked channels, which ORT_ENABLE_ALL writes into saved models
_BLOCKED_LAYOUT = "com.microsoft.nchwc"

RULES: dict[tuple[str, str], GradientRule] = {}
# the domains whose plug-ins were looked for
LOOKED_FOR: dict[str, bool] = {"": True, INTERNAL: True}


class Declaration(TypedDict, total=False):
    """Keywords of every registration."""

    since: int
    notes: str
    replace: bool


class Convention(Declaration, total=False):
    """Further keywords of a registration of formulas: their arguments and results."""

    fill: bool
    many: bool | None
    broadcasts: bool | None
    compares: bool


_DEFAULTS: dict[str, Any] = {
    "since": 1,
    "notes": "",
    "replace": False,
    "fill": False,
    "many": None,
    "broadcasts": None,
    "compares": False,
}


def _registration(keywords: type[Declaration]) -> Callable[[F], F]:
    """Shows the keywords in the signature of `f(..., **options)`, and refuses others."""

    def shown(function: F) -> F:
        given = list(inspect.signature(function).parameters.values())[:-1]
        given += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=kind)
            for name, kind in get_type_hints(keywords).items()
        ]
        function.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        return known_keywords(function)

    return shown


@_registration(Convention)
def vjp(name: str, *formulas: Formula | None, **options: Unpack[Convention]) -> None:
    """Registers one formula per operand, in the schema's order. None, or leaving out the last ones,
    means no gradient.

    `name` is "Op" or "my.domain::Op". `notes` states the convention at kinks. `fill`: outputs
    without an adjoint arrive as zeros instead of None. `many`: `g` and `y` are tuples (default: if
    the schema allows several outputs). `broadcasts`: operands broadcast against each other, and the
    engine sums partials back. `since`: the version that the table of operators shows if ONNX has no
    schema. `compares`: a formula compares operands with results, as a maximum's does; under
    checkpointing it then reads both from one computation, because two may differ in the last bit.
    Raises InputError if the operator has a rule and `replace` is not set.

    `g` is the adjoint of the output, of its shape; `y` the output; then the operands, None if left
    out. A partial has its operand's shape, before broadcasting is undone.

    >>> from onnxgrad import kernel, vjp
    >>> vjp("my.domain::Cube", lambda g, y, x: g * 3.0 * x * x)
    >>> _ = kernel("my.domain::Cube")(lambda x: x**3)
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] x) => (float[N] y) { y = my.domain.Cube (x) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    _register("vjp", name, formulas, options)


@_registration(Convention)
def vjp_all(name: str, formula: Formula, **options: Unpack[Convention]) -> None:
    """Registers one function `f(g, y, xs, attributes by name ...)` that returns a list with one
    partial per input.

    >>> from onnxgrad import kernel, vjp_all
    >>> vjp_all("my.domain::Total", lambda g, y, xs: [g for x in xs])
    >>> _ = kernel("my.domain::Total")(lambda *xs: sum(xs))
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] a, float[N] b) => (float[N] y) { y = my.domain.Total (a, b) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    _register("vjp_all", name, (formula,), options)


@_registration(Declaration)
def vjp_blocks(name: str, formula: Formula, **options: Unpack[Declaration]) -> None:
    """Registers a rule for an operator with nested blocks: `f(binding, g, wanted) -> {value read:
    its partial}`.

    `g` has one entry per output (None: absent). `wanted` are the operands and captures that need
    partials.
    """
    _register("vjp_blocks", name, (formula,), options)


@_registration(Declaration)
def body(name: str, builder: Formula, **options: Unpack[Declaration]) -> None:
    """Registers what an operator computes in terms of others: `builder(operands ..., *, attributes
    ...)` emits it.

    Positional parameters are operands (None if omitted), keyword-only ones attributes, `binding` is
    the call. The builder returns the result, or a tuple with one per output (None: not computed).
    Between requested values and target, the emitted body replaces the call and is differentiated;
    elsewhere the call stays. `inline` and `vmap` open the body as well.

    >>> from onnxgrad import body, kernel, op
    >>> body("my.domain::Swish", lambda x, *, beta=1.0: x * op.Sigmoid(x * beta))
    >>> _ = kernel("my.domain::Swish")(lambda x, beta=1.0: x / (1 + np.exp(-beta * x)))
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[N] x) => (float[N] y) { y = my.domain.Swish <beta = 2.0> (x) }''')
    >>> onnxgrad.check_gradient(model).verdict
    'agrees'
    """
    gradient_body(name, builder, **options)
    BODIES[domains.split_name(name)] = builder, ""


def gradient_body(name: str, builder: Formula, **options: Unpack[Declaration]) -> None:
    """Registers a body for the gradient alone: one that is also in the table of bodies, one that
    contains the operator, or one whose values may differ in the last digits.
    """
    _register("body", name, (builder,), options)


@known_keywords
def zero(*names: str, notes: str = "") -> None:
    """Declares operators whose derivative is zero almost everywhere, or that have no float input.

    >>> onnxgrad.zero("my.domain::Bucket", "my.domain::Rank")
    """
    for name in names:
        _register("zero", name, (), {"notes": notes})


def _register(
    kind: Kind, name: str, formulas: Sequence[Formula | None], options: Mapping[str, Any]
) -> None:
    """Puts a rule into the table.

    Raises InputError for an operator that has a rule, and for one that its domain lacks.
    """
    if kind != "zero" and not any(formulas):
        raise InputError(
            f'{kind}("{name}") has no formula: declare it with zero("{name}") if its derivative '
            "is zero"
        )
    domain, op = key = domains.split_name(name)
    given = {**_DEFAULTS, **options}
    if given["broadcasts"] is None:
        given["broadcasts"] = domain == "" and op in _BROADCASTING
    if domain in built_in("gradients"):
        rule_for(*key)
    if not given.pop("replace") and key in RULES:
        raise InputError(
            f"{domains.full_name(domain, op)} has a gradient rule already: pass replace=True to "
            "put another in its place"
        )
    unknown = domains.unknown_operator(domain, op)
    if unknown and not attributes.is_of_onnxruntime(op, 1):
        raise InputError(f"no gradient rule can be given: {unknown}")
    RULES[key] = GradientRule(domain, op, kind, tuple(formulas), **given)


def rule_of(binding: Binding) -> GradientRule | None:
    """Returns the rule for the binding's domain and operator, or None."""
    return rule_for(binding.domain, binding.op)


def rule_for(domain: str, op: str) -> GradientRule | None:
    """Returns the rule for a domain and an operator, or None. Calls the plug-in that registers the
    rules of the domain, once; rules that the caller registered before stay.
    """
    if (domain, op) not in RULES and domain not in LOOKED_FOR:
        LOOKED_FOR[domain] = True
        register = plugged("gradients", domain)
        if register is not None:
            callers = {key: RULES.pop(key) for key in [*RULES] if key[0] == domain}
            register()
            RULES.update(callers)
    return RULES.get((domain, op))


def find(name: str) -> GradientRule | None:
    """Returns the rule registered under "Op" or "domain::Op", or None."""
    return rule_for(*domains.split_name(name))


def rules() -> Iterator[GradientRule]:
    """Yields every rule in order of domain and operator, those of built-in plug-ins included."""
    for domain in built_in("gradients"):
        rule_for(domain, "")
    yield from (RULES[key] for key in sorted(RULES))


def legalize_first() -> str:
    """Returns the advice for an operator that computes with integers."""
    first = option(
        "run `onnxgrad optimize MODEL --passes legalize -o OUT` first, then differentiate OUT with "
        "--ste",
        'differentiate `optimize(model, passes="legalize")` with ste=True',
    )
    return f"it computes with integers: {first}"


def missing(binding: Binding) -> InputError:
    """Returns the error for a binding without a rule between a requested value and the target."""
    name = domains.full_name(binding.domain, binding.op)
    operands = ", ".join(f"x{i}" for i in range(len(binding.inputs)))
    reason = legalize_first() if (binding.domain, binding.op) in LAWS else ""
    if (binding.domain, binding.op) == ("com.microsoft", "DynamicQuantizeLSTM"):
        ste = option("--ste", "ste=True")
        reason = f"it rounds; {ste} takes the gradient of the LSTM in floats, an estimate"
    if binding.domain == _BLOCKED_LAYOUT:
        reason = (
            "onnxruntime optimised this file for the memory layout of one machine; save it with "
            "graph_optimization_level ORT_ENABLE_EXTENDED, or differentiate the original"
        )
    unknown = domains.unknown_operator(binding.domain, binding.op)
    if unknown:
        return InputError(f"unknown operator at '{binding}': {unknown}")
    if reason:
        return InputError(f"no gradient rule for {name} at '{binding}': {reason}")
    return InputError(
        f"no gradient rule for {name} (domain '{binding.domain or 'ai.onnx'}', version "
        f"{binding.version}) at "
        f"'{binding}': register one with onnxgrad.vjp(\"{name}\", lambda g, y, {operands}: ...), "
        "one formula per "
        f'operand, or onnxgrad.zero("{name}"){option(", in a file given with --plugin", "")}'
    )


@contextmanager
def naming(rule: GradientRule, binding: Binding) -> Iterator[None]:
    """Adds the rule and the binding to errors that a rule raises, such as mismatching types.

    Raises InputError for an operator without a schema, because its operands may be the cause, and
    InternalError for any other operator, unless the model turns out to be invalid.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a rule is the user's code
        # a body computes the types of the results
        read = binding.inputs if rule.kind == "body" else (*binding.inputs, *binding.outputs)
        untyped = _untyped(read)
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


def _untyped(values: Sequence[Var | None]) -> str:
    """Returns a text that names a missing type behind an operator that onnx does not know, and a
    remedy; empty if no type is missing.
    """
    for v in values:
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
