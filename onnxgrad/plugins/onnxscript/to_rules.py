"""Converts laws and passes to rewrite rules of onnxscript."""

from __future__ import annotations

from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.options import known_keywords
from onnxgrad.passes.base import RulePass
from onnxgrad.passes.pipeline import parse_passes
from onnxgrad.plugins.onnxscript.laws import onnxscript_rule
from onnxgrad.rewrite.worklist import Rule


@known_keywords
def to_onnxscript_rules(*laws: Rule | RulePass | str) -> Any:
    """Converts laws to a RewriteRuleSet of onnxscript. Accepts your own rules, and passes as
    objects or by name, as `optimize` does.

    Use the result wherever onnxscript accepts rules. Each law becomes one rule. It sees its pattern
    and a few nodes above it, with the types of the onnx_ir model: infer shapes first. Nothing is
    proved, and nothing stops laws that undo each other. Raises InputError if onnxscript is not
    installed, and for anything but laws with one root: a family of branches, an outlined pattern, a
    pass that is a program. Call `optimize` for those; it accepts an onnx_ir model too.

    >>> from onnxscript import rewriter
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[2,3] x) => (float[2,3] y) {
    ...   t = Transpose <perm = [1, 0]> (x)  y = Transpose <perm = [1, 0]> (t) }''')
    >>> rules = onnxgrad.to_onnxscript_rules("simplify-transpose")
    >>> [n.op_type for n in rewriter.rewrite(model, rules).graph.node]
    ['Identity']
    """
    try:
        from onnxscript.rewriter import RewriteRuleSet
    except ImportError:
        raise InputError("onnxscript is not installed: pip install onnxscript") from None

    found = dict.fromkeys(law for given in laws for law in _laws(given))
    if not found:
        raise InputError("no law is given: name a pass that is a list of laws, or pass a rule")
    return RewriteRuleSet([onnxscript_rule(law) for law in found])


def _laws(given: Any) -> list[Rule]:
    if isinstance(given, Rule):
        return [given]
    found: list[Rule] = []
    for each in parse_passes(given) if isinstance(given, str) else [given]:
        if not isinstance(each, RulePass):
            name = getattr(each, "name", type(each).__name__)
            raise InputError(
                f"{name} is not a list of laws with one root each, and onnxscript has rules "
                "for those only: call onnxgrad.optimize on the onnx_ir.Model"
            )
        found += each.laws
    return found
