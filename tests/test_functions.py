"""The public functions: those whose keywords come from declarations, and what all of them refuse."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad import P, capture, train
from onnxgrad.errors import OnnxgradError
from onnxgrad.jobs.declared import REQUIRED, options_of
from onnxgrad.jobs.training import declarations as training
from scripts import make_stubs

MODEL = "models/training/mlp.onnx"
FUNCTIONS = {
    name: function
    for module in (onnxgrad, train)
    for name, function in ((n, getattr(module, n)) for n in module.__all__)
    if inspect.isfunction(function)
}
# what a call needs beside the argument that is wrong
NEEDED: dict[str, dict[str, Any]] = {
    "body": {"builder": len}, "casadi_derivative": {"kind": "adj"}, "check_product": {"of": "jvp"},
    "combine": {"by": len}, "convert_opset": {"to": 20}, "fix_dims": {"dims": {"N": 1}},
    "rewrite_bindings": {"rewriter": lambda matches: {}}, "rewrite_call": {"rewriter": lambda x: x},
    "vjp_all": {"formula": len}, "features": {"data": {"x": np.zeros((2, 16), np.float32)}, "at": "linear"},
    "load_adapters": {"adapters": "none.safetensors"}, "lora": {"targets": "*"},
    "export": {"values": {}}, "reduce": {"check": len}, "fit": {"data": {}}, "average": {"values": [{}]},
    "class_weights": {"labels": np.array([0, 1])},
}  # fmt: skip
# for parameters of these names anywhere
USUAL: dict[str, Any] = {
    "model": MODEL, "a": MODEL, "b": MODEL, "original": MODEL, "names": "{}_x", "name": "Op",
    "path": "no/such", "folder": "no/such", "reason": "why", "text": "mse",
}  # fmt: skip
WRONG = (object(), 2j)


def the_rest(name: str, function: Any, wrong: str) -> dict[str, Any]:
    """The arguments that the function needs beside the wrong one."""
    found = dict(NEEDED.get(name, {}))
    for p in inspect.signature(function).parameters.values():
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            found.setdefault(p.name, made(p.name))
    return {k: v for k, v in found.items() if k != wrong}


def made(name: str) -> Any:
    (x,) = (capture("x"),)
    many: dict[str, Any] = {"pattern": P.Neg(x), "cls": type, "targets": "*", "at": "linear"}
    if name == "step":
        return onnxgrad.training_step(MODEL, "loss")
    if name in ("program", "block"):
        program = onnxgrad.load(MODEL)
        return program.main if name == "block" else program
    if name == "context":
        return onnxgrad.PatternContext(P.Neg(x))
    return many[name] if name in many else USUAL.get(name)


CASES = [
    (name, p.name, p.kind)
    for name, function in FUNCTIONS.items()
    for p in inspect.signature(function).parameters.values()
    if p.kind is not p.VAR_KEYWORD
]


@pytest.mark.parametrize(("name", "parameter", "kind"), CASES)
def test_no_function_accepts_a_value_of_another_type(name: str, parameter: str, kind: Any) -> None:
    function = FUNCTIONS[name]
    for wrong in WRONG:
        with pytest.raises(OnnxgradError) as caught:
            if kind is inspect.Parameter.VAR_POSITIONAL:
                first = [USUAL["name"]] if name == "vjp" else []
                function(*first, wrong)
            else:
                function(**the_rest(name, function, parameter), **{parameter: wrong})
        said = str(caught.value)
        assert "\n" not in said and any(word in said for word in (parameter, "model", "no/such")), (
            said
        )


def keywords(method: Any) -> list[str]:
    return [*inspect.signature(method).parameters]


METHODS = [
    (name, p)
    for name, method in inspect.getmembers(onnxgrad.Trainer, inspect.isfunction)
    if (not name.startswith("_") or name == "__init__") and "options" not in keywords(method)
    for p in keywords(method)
    if p != "self"
]
BATCH = {"x": np.zeros((4, 16), np.float32), "target": np.zeros((4, 8), np.float32)}


@pytest.fixture(scope="module")
def trainer() -> Any:
    return onnxgrad.Trainer(onnxgrad.training_step(MODEL, "loss"))


@pytest.mark.parametrize(("name", "parameter"), METHODS)
def test_no_method_of_a_trainer_accepts_a_value_of_another_type(
    name: str, parameter: str, trainer: Any
) -> None:
    function = onnxgrad.Trainer if name == "__init__" else getattr(trainer, name)
    usual = {
        "deltas": [],
        "before": {},
        "step": trainer.task,
        "data": BATCH,
        "model": MODEL,
        "path": "no",
    }
    needed = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
    rest = {n: usual[n] for n in needed if n != parameter}
    for wrong in WRONG:
        with pytest.raises(OnnxgradError) as caught:
            function(**rest, **{parameter: wrong})
        said = str(caught.value)
        where = f"{'Trainer' if name == '__init__' else name}: {parameter}"
        assert said.startswith((where, f"a {parameter} must be")) and "\n" not in said, said
    with pytest.raises(OnnxgradError, match=f"has no option 'turtles'; it has {needed[0]}"):
        function(turtles=1)
    with pytest.raises(OnnxgradError, match=f"missing a required argument: '{needed[0]}'"):
        function()


def test_a_trainer_has_the_options_that_are_declared() -> None:
    for function, options in (
        (onnxgrad.Trainer, training.TrainerOptions),
        (onnxgrad.Trainer.fit, training.RunOptions),
        (onnxgrad.Trainer.evaluate, training.EvaluateOptions),
        (onnxgrad.Trainer.export, training.ExportOptions),
    ):
        found = inspect.signature(function).parameters
        declared = {o.name: o.default for o in options_of(options) if o.default is not REQUIRED}
        assert declared.items() <= {n: p.default for n, p in found.items()}.items()
        assert found.keys() - declared.keys() <= {"self", "step", "model", "data"}
    # `fit` shares them, but for the metrics that only Python can make
    declared = {
        o.name for cls in (training.TrainerOptions, training.RunOptions) for o in options_of(cls)
    }
    assert declared - {o.name for o in options_of(training.FitOptions)} == {"callbacks"}


def test_the_stub_is_that_of_the_declarations() -> None:
    """If it is not: python scripts/make_stubs.py"""
    for module, stub in make_stubs.STUBS.items():
        assert stub.read_text(encoding="utf-8") == make_stubs.text(module)
