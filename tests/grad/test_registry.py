"""The table of rules: who is missing, who is refused, and how a rule gets what it asks for."""

import onnx
import pytest
from onnx import numpy_helper

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import vjp
from tests.grad.test_backward_walk import parse


def custom(body: str = "y = my.Twice <by = 3.0> (x)") -> onnx.ModelProto:
    return parse(f"m (float[2] x) => (float[2] y) {{ {body} }}", opset='"" : 18, "my" : 1')


def test_a_missing_rule_names_operator_domain_version_and_what_to_do() -> None:
    with pytest.raises(
        InputError, match=r"no gradient rule for my::Twice \(domain 'my', version 1\).*onnxgrad.vjp"
    ) as e:
        gradient(custom(), adjoint="input")
    assert "\n" not in str(e.value)


def test_a_rule_of_the_user_gets_attributes_by_name() -> None:
    vjp("my::Twice", lambda g, y, x, by, of=5.0: g * by * of)
    graph = gradient(custom(), adjoint="input")
    assert 15.0 in [float(numpy_helper.to_array(t)) for t in graph.graph.initializer if not t.dims]


def test_domains_are_not_ignored() -> None:
    with pytest.raises(InputError, match="no gradient rule for my::Tanh"):
        gradient(custom("y = my.Tanh (x)"), adjoint="input")


def test_two_rules_for_one_operator_are_refused() -> None:
    with pytest.raises(InputError, match="Tanh has a gradient rule already"):
        vjp("Tanh", lambda g, y, x: g)


@pytest.mark.parametrize("domain", ["ai.onnx.ml", "ai.onnx.preview.training"])
def test_an_operator_that_an_official_domain_does_not_have_is_unknown(domain: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20, "{domain}" : 1]> '
        f"g (float[2] x) => (float[2] y) {{ y = {domain}.Twice (x) }}"
    )
    with pytest.raises(InputError, match=f"unknown operator at .*{domain} has no operator 'Twice'"):
        gradient(model, "x", adjoint="input")
