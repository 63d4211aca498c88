"""onnxgrad/testing.py: what is registered inside is gone afterwards, and what was replaced is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.grad import find
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import PASSES, Pass
from onnxgrad.passes.user_laws import run_plugins
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.reference.kernels import KERNELS, WHY
from onnxgrad.verify.reference.kernels.registry import kernel
from tests.helpers import parse

TANH = "g (float[1] x) => (float[1] y) { y = Tanh (x) }"


class Nothing(Pass):
    """x = x."""

    name: ClassVar[str] = "nothing-at-all"

    def run(self, program: Program, trace: Trace) -> None:
        pass


def slope(model: onnx.ModelProto) -> float:
    feeds = {"x": np.zeros(1, np.float32), "y_grad": np.ones(1, np.float32)}
    return float(reference(onnxgrad.gradient(model, adjoint="input"), feeds)["x_grad"][0])


def register_a_kernel() -> None:
    kernel("Tanh", why="wrong")(lambda call, x: x + 5.0)


REGISTER: list[tuple[str, Callable[[], object]]] = [
    ("my::Op", lambda: onnxgrad.vjp("my::Op", lambda g, y, x: g)),
    ("my::Op", lambda: onnxgrad.vjp_all("my::Op", lambda g, y, xs: [g])),
    ("my::Op", lambda: onnxgrad.zero("my::Op")),
    ("my::Op", lambda: onnxgrad.body("my::Op", lambda x: x)),
    ("nothing-at-all", lambda: onnxgrad.register(Nothing)),
]


def known(name: str) -> bool:
    return name in PASSES or find(name) is not None


@pytest.mark.parametrize(("name", "register"), REGISTER)
def test_what_is_registered_inside_is_gone(name: str, register: Callable[[], object]) -> None:
    for _ in range(2):  # a second time is no "has a rule already"
        with onnxgrad.temporary_rules():
            register()
            assert known(name)
        assert not known(name)


def test_what_is_replaced_is_back() -> None:
    with onnxgrad.temporary_rules():
        onnxgrad.vjp("Tanh", lambda g, y, x: g * 3.0, replace=True)
        assert slope(parse(TANH)) == 3.0
    assert slope(parse(TANH)) == 1.0


def test_kernels_too() -> None:
    one = {"x": np.ones(1, np.float32)}
    tables: list[dict[Any, Any]] = [KERNELS, WHY]
    before = [dict(table) for table in tables]
    with onnxgrad.temporary_rules():
        register_a_kernel()
        assert reference(parse(TANH), one)["y"] == 6.0
    assert reference(parse(TANH), one)["y"] == np.tanh(1.0)
    assert [dict(table) for table in tables] == before


def test_a_plugin_that_was_run_inside(tmp_path: Path) -> None:
    path = tmp_path / "my_rules.py"
    path.write_text(
        "import onnxgrad\nonnxgrad.zero('my::Op')\nx = onnxgrad.capture('x')\n"
        "@onnxgrad.rewrite(onnxgrad.P.Abs(onnxgrad.P.Abs(x)))\ndef twice(x):\n    return onnxgrad.op.Abs(x)\n"
    )
    with onnxgrad.temporary_rules():
        run_plugins([str(path)])
        assert known("my::Op") and known("my-rules")
    assert not known("my::Op") and not known("my-rules")


def test_also_when_something_is_raised_and_one_inside_another() -> None:
    with onnxgrad.temporary_rules():
        onnxgrad.zero("my::Outer")
        with pytest.raises(ZeroDivisionError), onnxgrad.temporary_rules():
            onnxgrad.zero("my::Inner")
            raise ZeroDivisionError
        assert known("my::Outer") and not known("my::Inner")
    assert not known("my::Outer")


def test_the_tables_stay_the_ones_that_others_hold() -> None:
    held = PASSES
    with onnxgrad.temporary_rules():
        onnxgrad.register(Nothing)
    assert held is PASSES and "fold-constant" in held and len(KERNELS) == len(WHY) > 50
