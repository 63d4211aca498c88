"""Float16 parameters follow the float32 weights that an optimiser updates in their stead."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.train.optimizers import SGD, Adafactor, AdamW, Moment, NAdam, Optimizer
from onnxgrad.train.optimizers.master import Master
from onnxgrad.verify.running.run import run
from tests.helpers import parse
from tests.train.optimizers.problem import START, by_graph

P = np.linspace(-2, 2, 6).reshape(2, 3).astype(np.float16)
G = np.linspace(0.5, -0.25, 6).reshape(2, 3).astype(np.float16)


@pytest.mark.parametrize("inner", [SGD(momentum=0.9), AdamW(), NAdam(), Adafactor()])
@pytest.mark.parametrize("unscaled", [np.float16, np.float32])
def test_updates_are_those_of_float32(inner: Optimizer, unscaled: type) -> None:
    master, state = P.astype(np.float32), inner.state(P.astype(np.float32))
    narrow, held = P, Master(inner).state(P)
    for step in range(1, 6):
        master, state = inner.apply(master, G.astype(np.float32), state, step=step, rate=1e-5)
        narrow, held = Master(inner).apply(narrow, G.astype(unscaled), held, step=step, rate=1e-5)
        assert narrow.dtype == np.float16 and {v.dtype for v in held.values()} == {
            np.dtype(np.float32)
        }
        np.testing.assert_array_equal(held["master"], master)
        np.testing.assert_array_equal(narrow, master.astype(np.float16))


def test_small_updates_add_up() -> None:
    p, held = np.float16([1.0]), Master(SGD()).state(np.float16([1.0]))
    alone = p
    for step in range(1, 101):
        p, held = Master(SGD()).apply(p, np.float16([1.0]), held, step=step, rate=1e-4)
        alone, _ = SGD().apply(alone, np.float16([1.0]), {}, step=step, rate=1e-4)
    np.testing.assert_allclose(p, 0.99, rtol=1e-3)
    assert alone == 1.0


def test_the_same_in_a_graph() -> None:
    program = load(
        parse(
            "g (float16[2, 3] p, float16[2, 3] g, float[2, 3] m, float r) => (float16[2, 3] q) { q = Identity (p) }"
        )
    )
    p, g, m, r = program.main.inputs
    with emitting(program.main, share=True):
        at = Moment(r, op.Cast(1.0, to=TensorProto.DOUBLE), op, p.dtype)
        new, kept = Master(SGD()).update(p, g, {"master": m}, at)
    program.main.add_output(new)
    program.main.add_output(kept["master"])
    found = run(
        to_proto(program), {"p": P, "g": G, "m": P.astype(np.float32), "r": np.float32(1e-5)}
    )
    expected, state = Master(SGD()).apply(P, G, Master(SGD()).state(P), step=1, rate=1e-5)
    np.testing.assert_array_equal(found[new.name], expected)
    np.testing.assert_array_equal(found[kept["master"].name], state["master"])


def test_it_is_what_it_holds() -> None:
    master = Master(AdamW(lr=0.5, maximize=True))
    assert (master.name, master.lr, master.maximize, master.elementwise) == (
        "adamw",
        0.5,
        True,
        True,
    )
    assert not Master(Adafactor()).elementwise
    assert master.to_dict() == {**AdamW(lr=0.5, maximize=True).to_dict(), "master": "float32"}


@pytest.mark.parametrize("inner", [SGD(momentum=0.9), AdamW(), NAdam(), Adafactor()])
def test_a_step_of_a_float16_model(inner: Optimizer) -> None:
    values, step = by_graph(inner, 2**-9, dtype=np.float16)
    expected, _ = by_graph(inner, 2**-9)
    for name in START:
        assert values[name].dtype == np.float16 and values[f"{name}.master"].dtype == np.float32
        np.testing.assert_array_equal(values[name], values[f"{name}.master"].astype(np.float16))
        np.testing.assert_allclose(values[f"{name}.master"], expected[name], atol=3e-3)
    assert {f.dtype for f in step.manifest.of_role("state")} == {"float32"}
