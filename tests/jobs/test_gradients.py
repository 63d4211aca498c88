"""Gradients, products with derivatives and their checks have one declaration and one driver each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main, parser_for
from onnxgrad.cli.commands import completion
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs import gradient_declarations as declared
from onnxgrad.jobs.declared import Declaration, from_flags, option, options_of
from onnxgrad.jobs.gradient_declarations import (
    CheckGradientOptions,
    GradientForm,
    GradientOptions,
    GradOptions,
    JacobianOptions,
)
from onnxgrad.jobs.gradients import derive
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.options import Range
from onnxgrad.plugins.casadi import CasadiOptions
from onnxgrad.plugins.function_gradient import FunctionGradientOptions
from scripts import make_stubs

MLP = "models/training/mlp.onnx"
HELP = "how many turtles stand below"
FUNCTIONS = {
    onnxgrad.gradient: GradientOptions,
    onnxgrad.jvp: declared.JvpOptions,
    onnxgrad.hessian_vector_product: declared.HessianProductOptions,
    onnxgrad.jacobian: JacobianOptions,
    onnxgrad.casadi_derivative: CasadiOptions,
    onnxgrad.mark_checkpoints: declared.MarkOptions,
    onnxgrad.function_gradient: FunctionGradientOptions,
    onnxgrad.check_gradient: CheckGradientOptions,
    onnxgrad.check_product: declared.CheckProductOptions,
}


@frozen(kw_only=True)
class MoreGrad(GradOptions):
    """A copy with one option more."""

    turtles: Annotated[int, Range(1, 9)] = option(3, HELP)


@frozen(kw_only=True)
class MoreCheck(CheckGradientOptions):
    """Another."""

    turtles: Annotated[int, Range(1, 9)] = option(3, HELP)


@pytest.mark.parametrize(("command", "more"), [("grad", MoreGrad), ("check-grad", MoreCheck)])
def test_an_option_is_declared_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    more: type[Declaration],
) -> None:
    @from_keywords(more)
    def stand(model: Any, *, options: Any) -> Any:
        """Return how many."""
        return options.turtles

    assert (stand(MLP), stand(MLP, "params", turtles=4)) == (3, 4)
    assert f"turtles: {HELP}" in str(stand.__doc__)
    assert "turtles: Annotated[int, Range(1, 9)] = 3" in make_stubs.stub({"stand": stand})
    with pytest.raises(InputError, match=f"^{more.job}: turtles must be from 1 to 9, not 0$"):
        stand(MLP, turtles=0)
    monkeypatch.setitem(COMMANDS, command, replace(COMMANDS[command], job=more))
    words = [command, MLP, *(["-o", "no/such"] if command == "grad" else [])]
    args = parser_for(words).parse_args([*words, "--turtles", "5"])
    assert from_flags(more, args).settings()["turtles"] == 5
    with pytest.raises(InputError, match="--turtles must be from 1 to 9, not 10"):
        parser_for(words).parse_args([*words, "--turtles", "10"])
    with pytest.raises(SystemExit):
        parser_for([command]).parse_args([command, "--help"])
    assert f"--turtles N {HELP}" in " ".join(capsys.readouterr().out.split())
    completion._table.cache_clear()
    try:
        assert "--turtles" in completion.SHELLS["bash"]()
    finally:
        completion._table.cache_clear()


@pytest.mark.parametrize(("function", "options"), FUNCTIONS.items())
def test_a_function_has_the_options_of_its_job(
    function: Callable[..., Any], options: type[Declaration]
) -> None:
    found = dict(inspect.signature(function).parameters)
    del found["model"]
    assert {*found} == {o.name for o in options_of(options)}
    assert f"def {function.__name__}(" in make_stubs.text() + make_stubs.text(make_stubs.plugins)
    with pytest.raises(InputError, match=f"{function.__name__} has no option 'turtle'"):
        function(MLP, turtle=1)


def test_positional_arguments() -> None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = {
        f.__name__: [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds]
        for f in FUNCTIONS
    }
    assert places.pop("casadi_derivative") == ["model", "kind", "wrt", "target"]
    assert places.pop("function_gradient") == ["model", "name"]
    assert all(names == ["model", "wrt", "target"] for names in places.values())


def test_the_commands_have_the_defaults_of_the_functions() -> None:
    """But for the adjoint, which a command chooses for you."""
    for command, form in ((GradOptions, GradientOptions), (CheckGradientOptions, GradientForm)):
        own = {o.name: o.default for o in options_of(command)}
        for o in options_of(form):
            assert own[o.name] == o.default or o.name == "adjoint"
    jacobian = {o.name: o.default for o in options_of(JacobianOptions)}
    assert all(jacobian[name] == own[name] for name in ("wrt", "target"))


SAME: list[tuple[str, Callable[[], Any]]] = [
    ("--wrt params,!*.bias --target loss --names d_{}",
     lambda: onnxgrad.gradient(MLP, "params,!*.bias", "loss", names="d_{}")),
    ("--wrt params --target loss --no-simplify --stop relu --checkpoint auto",
     lambda: onnxgrad.gradient(
         MLP, "params", "loss", simplify=False, stop="relu", checkpoint="auto")),
    ("--wrt x --target linear_2", lambda: onnxgrad.gradient(MLP, "x", "linear_2", adjoint="auto")),
    ("--wrt params --target loss --form small",
     lambda: onnxgrad.gradient(MLP, "params", "loss", form="small")),
    ("--wrt x --target 0 --checkpoint start:linear@relu --checkpoint end:linear_1",
     lambda: onnxgrad.gradient(
         MLP, "x", 0, checkpoint=onnxgrad.Checkpoint([("linear", "relu")], ["linear_1"]))),
    ("--jvp --wrt x --target linear_2", lambda: onnxgrad.jvp(MLP, "x", "linear_2")),
    ("--hvp --wrt 4.bias --target loss --names h_{}",
     lambda: onnxgrad.hessian_vector_product(MLP, "4.bias", "loss", names="h_{}")),
    ("--jacobian --wrt x --target linear_2 --per-sample --mode forward",
     lambda: onnxgrad.jacobian(MLP, "x", "linear_2", per_sample=True, mode="forward")),
    ("--casadi adj --wrt x --target loss",
     lambda: onnxgrad.casadi_derivative(MLP, "adj", "x", "loss")),
    ("--mark --wrt params --target loss --checkpoint linear",
     lambda: onnxgrad.mark_checkpoints(MLP, "params", "loss", checkpoint=["linear"])),
]  # fmt: skip


@pytest.mark.parametrize(("words", "call"), SAME)
def test_flags_and_keywords_make_the_same_model(
    tmp_path: Path, words: str, call: Callable[[], Any]
) -> None:
    out = tmp_path / "g.onnx"
    assert main(["grad", MLP, "-o", str(out), "--no-verify", "-q", *words.split()]) == 0
    assert onnx.load(out) == call()


def test_hooks_take_part() -> None:
    """A program that they refuse is not written."""
    written: list[Any] = []
    options = GradientOptions.from_settings({"wrt": "params", "target": "loss"})
    stages: list[str] = []
    hooks = Hooks(on_stage=stages.append, write=lambda program: not written.append(program))
    proof = GradOptions()
    done = derive(MLP, options, hooks, proof)
    assert done.ok and written == [done.found.program]
    assert stages == ["gradient against differences"]
    assert done.report is not None and len(done.report.values) == 6

    def refuse(program: Any) -> None:
        raise InputError("not this one")

    with pytest.raises(InputError, match="not this one"):
        derive(MLP, options, Hooks(on_read=refuse, write=hooks.write), proof)
    assert len(written) == 1


def test_a_check_reads_files_and_runs_on_several_threads(tmp_path: Path) -> None:
    x, target = np.ones((4, 16), np.float32), np.zeros((4, 8), np.float32)
    np.savez(tmp_path / "in.npz", x=x, target=target)
    by_file = onnxgrad.check_gradient(MLP, "x", "loss", inputs=tmp_path / "in.npz", threads=2)
    by_name = onnxgrad.check_gradient(MLP, "x", "loss", inputs={"x": x, "target": target})
    assert by_file.ok and by_file.values[0].name == by_name.values[0].name == "x"
    np.testing.assert_allclose(by_file.values[0].gradient, by_name.values[0].gradient, rtol=1e-4)
    with pytest.raises(InputError, match="one set of arrays, not 2"):
        onnxgrad.check_gradient(MLP, "x", "loss", inputs=[{"x": x}, {"x": x}])
    with pytest.raises(InputError, match="missing a required argument: 'of'"):
        onnxgrad.check_product(MLP)  # type: ignore[call-arg]


def test_two_parts_are_proved_at_sizes_at_which_the_model_runs(tmp_path: Path) -> None:
    """The adjoint has no known shape, and a reflected Pad needs room."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
      g (float[batch,1,sequence] x) => (float[] y) <int64[1] one = {1}, int64[6] pads = {0,0,0,0,0,64}> {
        d = Pad <mode = "reflect"> (x, pads)  v = Sigmoid (d)  s = Shape (v)  n = Gather (s, one)  e = Equal (n, one)
        i = If (e) <then_branch = a () => (float[] p) { p = Squeeze (v, one) },
                    else_branch = b () => (float[] q) { q = Identity (v) }>
        y = ReduceMean <keepdims = 0> (i, one) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    parts = [str(tmp_path / name) for name in ("forward.onnx", "backward.onnx")]
    words = ["grad", str(tmp_path / "m.onnx"), "--target", "y", "--split", *parts, "-q"]
    assert main(words) == 0
    assert main([*words, "--dim", "sequence=8"]) == 2  # too small, whatever the batch
