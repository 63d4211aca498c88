"""`training_step`, `train-step` and `fit` have one declaration and one driver."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import onnx
import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.cli.app import parser_for
from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.save import to_bytes
from onnxgrad.jobs.declared import add_flags, from_flags, options_of
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.training.declarations import FitOptions, option
from onnxgrad.jobs.training.step import check_step, make_step
from onnxgrad.jobs.training.step_declarations import StepOptions, TrainStepOptions
from onnxgrad.options import Range
from scripts import make_stubs
from tests.helpers import parse

MLP = "models/training/mlp.onnx"


@frozen(kw_only=True)
class More(StepOptions):
    """A copy with one option more."""

    turtles: Annotated[int, Range(1, 9)] = option(3, "how many turtles stand below")


@from_keywords(More)
def stand(model: Any, *, options: More) -> Any:
    """Return how many."""
    return options.turtles


def test_an_option_is_declared_once() -> None:
    assert (stand(MLP), stand(MLP, turtles=4)) == (3, 4)
    assert "turtles: Annotated[int, Range(1, 9)] = 3" in make_stubs.stub({"stand": stand})
    with pytest.raises(InputError, match="training_step: turtles must be from 1 to 9, not 0"):
        stand(MLP, turtles=0)
    parser = parser_for([])
    add_flags(parser, More)
    args = parser.parse_known_args(["--turtles", "5", "doctor"])[0]
    assert from_flags(More, args).turtles == 5


def test_the_function_has_the_options_of_the_commands() -> None:
    assert train.training_step is onnxgrad.training_step
    found = inspect.signature(onnxgrad.training_step).parameters
    names = {o.name for o in options_of(StepOptions)}
    assert {*found} == {"model", *names}
    for command in (TrainStepOptions, FitOptions):
        own = {o.name: o for o in options_of(command)}
        assert all(own[name].default == found[name].default for name in names)


def test_the_form_of_the_gradient() -> None:
    """The fewest nodes, as those of `grad --form small`, with the same numbers."""
    nodes = [
        len(onnxgrad.training_step("models/training/cnn.onnx", form=form).train.main.bindings)
        for form in ("fast", "small")
    ]
    assert nodes[1] < nodes[0]
    with pytest.raises(InputError, match="form must be one of fast, small"):
        onnxgrad.training_step(MLP, form="tiny")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [train.Trainer.fit, train.Trainer])
def test_a_trainer_has_the_defaults_of_fit(function: Any) -> None:
    others = {"data", "rate", *(o.name for o in options_of(StepOptions))}
    own = {o.name: o.default for o in options_of(FitOptions) if o.name not in others}
    found = inspect.signature(function).parameters
    shared = own.keys() & found.keys()
    assert len(shared) >= 4
    assert {n: own[n] for n in shared} == {n: found[n].default for n in shared}


FLAGS = [
    (["--loss", "loss"], {"loss": "loss"}),
    (["--optimizer", "sgd{lr=0.1}"], {"optimizer": train.SGD(lr=0.1)}),
    (
        ["--wrt", "*.bias", "--metric", "gradient_norm"],
        {"wrt": "*.bias", "metrics": "gradient_norm"},
    ),
    (["--group", "*.bias=lion{lr=0.1}"], {"groups": {"*.bias": train.Lion(lr=0.1)}}),
    (["--group", "*.bias=lion"], {"groups": [("*.bias", "lion")]}),
    (["--schedule", "constant{lr=0.1}"], {"schedule": "constant{lr=0.1}"}),
    (["--average", "0.9"], {"average": train.ExponentialMovingAverage(0.9)}),
    (["--loss-scale", "8"], {"loss_scale": train.LossScaling(8.0, dynamic=False)}),
    (["--loss-scale", "dynamic"], {"loss_scale": train.LossScaling()}),
    (["--clip-norm", "1", "--accumulate", "2"], {"clip_norm": 1, "accumulate": 2}),
    (["--checkpoint", "linear"], {"checkpoint": ["linear"]}),
    (
        ["--checkpoint", "start:linear@relu", "--checkpoint", "end:linear_1"],
        {"checkpoint": onnxgrad.Checkpoint([("linear", "relu")], ["linear_1"])},
    ),
]


@pytest.mark.parametrize(("words", "keywords"), FLAGS)
def test_flags_and_keywords_make_the_same_step(words: list[str], keywords: dict[str, Any]) -> None:
    command = ["train-step", MLP, "-o", "no/such", "--loss", "loss", *words]
    args = parser_for(command).parse_args(command)
    by_flags = make_step(MLP, from_flags(TrainStepOptions, args))
    by_keywords = onnxgrad.training_step(MLP, **{"loss": "loss", **keywords})
    assert to_bytes(by_flags.train) == to_bytes(by_keywords.train)
    assert by_flags.manifest == by_keywords.manifest


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[N,1,T] x) => (float[N,2,U] y) <float[2,1,64] w = {%s}> { y = Conv<kernel_shape = [64]>(x, w) }",
        "g (float[N,T,4] x) => (float[1,U,4] y) <float[4,4] w = {%s}, float[1,1,4] z = {1, 2, 3, 4}>"
        " { a = MatMul(x, w) y = Concat<axis = 1>(a, z) }",
    ],
    ids=["a kernel of 64", "a batch of 1"],
)
def test_the_check_of_a_step_searches_sizes_that_run(graph: str) -> None:
    numbers = ", ".join(str(i % 7 / 7) for i in range(128 if "Conv" in graph else 16))
    step = onnxgrad.training_step(parse(graph % numbers, opset=17), loss="mse{output=y}")
    assert check_step(step, TrainStepOptions()).ok


def test_the_check_of_a_step_with_weights_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights are judged as the others, although they are constants in a file."""
    step = onnxgrad.training_step(MLP, loss="loss")
    inside = check_step(step, TrainStepOptions())
    for module in ("onnxgrad.jobs.training.step", "onnxgrad.ir.storage.shared_weights"):
        monkeypatch.setattr(f"{module}.LARGE", 1)
        monkeypatch.setattr(f"{module}.LARGE_FILE", 1)
    outside = check_step(step, TrainStepOptions())
    assert inside.ok and outside.ok
    assert [v.name for v in outside.values] == [v.name for v in inside.values]
    assert all(v.judged for v in outside.values)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onnxgrad.ir.storage.shared_weights.Files.hold", full)
    assert [*check_step(step, TrainStepOptions()).values] == [*inside.values]


def test_the_check_of_a_step_beside_frozen_weights_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("onnxgrad.jobs.training.step", "onnxgrad.ir.storage.shared_weights"):
        monkeypatch.setattr(f"{module}.LARGE", 1)
        monkeypatch.setattr(f"{module}.LARGE_FILE", 1)
    names = [t.name for t in onnx.load(MLP).graph.initializer]
    step = onnxgrad.training_step(MLP, loss="loss", wrt=names[:1])
    report = check_step(step, TrainStepOptions())
    assert report.ok and [v.name for v in report.values] == names[:1]
