"""Fields of dataclasses are checked against what they declare, in Python and from text."""

from __future__ import annotations

import inspect
import math
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.errors import InputError
from onnxgrad.named_options import build, read
from onnxgrad.options import Range, check_fields, checked, described, from_text, kinds_of, several
from onnxgrad.passes.base import Merge, Provider, all_passes
from onnxgrad.passes.pipeline import parse_passes
from onnxgrad.train.losses.registry import LOSSES
from onnxgrad.train.metrics import METRICS
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.schedules import SCHEDULES
from onnxgrad.vocabulary import MERGE, PROVIDERS


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (int, 3, 3), (int, np.int32(3), 3), (int, 3.0, 3), (float, 2, 2.0), (float, np.float32(0.5), 0.5),
        (bool, np.bool_(True), True), (str, "a", "a"), (float | None, None, None), (int | str, "a", "a"),
        (tuple[str, ...], ["a", "b"], ("a", "b")), (tuple[float, float], [1, 2], (1.0, 2.0)),
        (Sequence[int], [1], [1]), (Literal["a", "b"], "b", "b"), (Annotated[int, Range(1)], 1, 1),
        (float, math.inf, math.inf), (Any, object, object), (dict[str, int], {"a": 1.0}, {"a": 1}),
    ],
)  # fmt: skip
def test_what_fits_is_taken_as_declared(kind: Any, value: Any, found: Any) -> None:
    answer = checked(kind, value, "f: x")
    assert answer == found and type(answer) is type(found)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "3", "a whole number, not '3'"), (int, 3.5, "a whole number"), (int, True, "a whole number"),
        (int, math.inf, "a whole number"), (float, "nan", "a number"), (float, math.nan, "a number, not nan"),
        (bool, 1, "true or false, not 1"), (bool, "off", "true or false, not 'off'"), (str, b"a", "text"),
        (tuple[str, ...], "abc", "a list, not 'abc'"), (Sequence[str], "abc", "a list"), (Sequence[int], ["a"], "a whole"),
        (tuple[float, float], (1,), "2 values"), (Literal["auto", "always"], "Always", "did you mean 'always'"),
        (Literal["a"], ["a"], "one of a, not"), (Annotated[int, Range(1)], 0, "at least 1, not 0"),
        (Annotated[float, Range(0, 1)], 2, "from 0 to 1"), (Annotated[int, Range(high=-1)], 9, "at most -1, not 9"), (float | None, "x", "a number"), (Mapping[str, int], 3, "a table"), (os.PathLike[str], 3, "a path"), (int | str, None, "a whole number or text"), (int, "9" * 999, r"9\.\.\.$"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"^f: x must be .*{message}"):
        checked(kind, value, "f: x")


def test_text_is_read_by_the_declared_type() -> None:
    assert [from_text(k, t) for k, t in (("int", "3"), (bool, "False"), (str, "3"), (str | None, "none"))] == [
        3, False, "3", None,
    ]  # fmt: skip
    assert from_text(Literal["none", "all"], "none") == "none"
    assert from_text(tuple[int, ...], "[1,2]") == [1, 2]


def test_names() -> None:
    assert several("abc", "f") == ("abc",) and several(["a", "b"], "f") == ("a", "b")
    for wrong in (3, b"a", [1]):
        with pytest.raises(InputError, match="f must be names, not"):
            several(wrong, "f")


def test_a_class_whose_annotations_cannot_be_read_is_left_alone() -> None:
    @dataclass(frozen=True)
    class Odd:
        a: NoSuchType = 3  # type: ignore[name-defined]  # noqa: F821
        b: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            check_fields(self, "odd")

    assert Odd().a == 3 and kinds_of(Odd) == {"a": Any, "b": list[str]}


def test_words_of_the_command_line_are_those_of_the_passes() -> None:
    assert set(get_args(Merge)) == set(MERGE) and set(get_args(Provider)) == set(PROVIDERS)


# what each declared type refuses, as text
_WRONG: dict[Any, tuple[str, ...]] = {
    bool: ("off", "no", "1", "maybe", "[true]", "none"),
    int: ("many", "0.5", "true", "nan", "[1]", "none"),
    float: ("fast", "true", "nan", "[1]", "none"),
}


def _plain(kind: Any) -> tuple[Any, bool]:
    """The type without bounds, and whether it is a choice."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind, get_origin(kind) is Literal


def _bad(kind: Any) -> tuple[str, ...]:
    plain, choice = _plain(kind)
    low = [b.low for b in get_args(kind)[1:]] if get_origin(kind) is Annotated else []
    below = tuple(str(int(b) - 1) for b in low if b > -1e30)
    return (*_WRONG.get(plain, ()), *below, *(("sometimes", "TRUE", "3") if choice else ()))


def test_no_pass_takes_a_value_of_another_type() -> None:
    tried = 0
    for name, cls in all_passes().items():
        for option, kind in kinds_of(cls).items():
            for text in _bad(kind) if described(kind) else ():
                tried += 1
                with pytest.raises(InputError, match=f"pass '{name}': {option} "):
                    parse_passes(f"{name}{{{option}={text}}}")
    assert tried > 150


@pytest.mark.parametrize(
    "classes",
    [OPTIMIZERS, LOSSES, SCHEDULES, METRICS],
    ids=["optimisers", "losses", "schedules", "metrics"],
)
def test_nothing_of_training_takes_a_value_of_another_type(classes: dict[str, Any]) -> None:
    tried = 0
    for name, cls in classes.items():
        needed = {
            f.name: "1" for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
        }  # fmt: skip
        for option, kind in kinds_of(cls).items():
            if get_origin(kind) in (Sequence, tuple):
                continue
            for text in _bad(kind):
                tried += 1
                written = ",".join(f"{k}={v}" for k, v in {**needed, option: text}.items())
                with pytest.raises(InputError, match=option):
                    build(name, cls, written)
    assert tried > (60 if len(classes) > 6 else 10)


def test_an_optimiser_goes_down_unless_it_is_told_to_go_up() -> None:
    """Any word but false was true: `maximize=off` trained uphill."""
    p, g = np.array([1.0]), np.array([0.5])
    for text, end in (
        ("sgd{lr=0.1}", 0.95),
        ("sgd{lr=0.1,maximize=false}", 0.95),
        ("sgd{lr=0.1,maximize=true}", 1.05),
    ):
        optimizer = read(text, OPTIMIZERS, "optimiser")
        assert optimizer.apply(p, g, optimizer.state(p), step=1)[0] == pytest.approx(end)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, one: onnxgrad.extract(m, outputs=one("linear_2"), verify=False),
        lambda m, one: onnxgrad.float16(m, keep=one("Gemm"), verify=False),
        lambda m, one: onnxgrad.optimize(m, without=one("fold-constant"), verify=False),
        lambda m, one: onnxgrad.verify(m, m, checks=one("float64"), allow_empty=one("loss")).verdict,
        lambda m, one: onnxgrad.check_gradient(m, allow_empty=one("target")).verdict,
        lambda m, one: onnxgrad.training_step(m, "loss", metrics=one("gradient_norm")).manifest,
        lambda m, one: onnxgrad.set_metadata(m, unset=one("absent")),
    ],
    ids=["extract", "float16", "optimize", "verify", "check_gradient", "training_step", "set_metadata"],
)  # fmt: skip
def test_a_name_alone_is_one_name(call: Any, models_dir: Path) -> None:
    """Python walks the letters of text, which named nothing, or something else."""
    answers = []
    for one in (lambda name: name, lambda name: [name]):
        try:
            answers.append(call(models_dir / "training" / "mlp.onnx", one))
        except InputError as error:
            answers.append(str(error))
            assert "'absent' to unset does not exist" in str(error)
    assert answers[0] == answers[1]


def _public() -> list[Any]:
    found = [getattr(module, name) for module in (onnxgrad, train) for name in module.__all__]
    return [f for f in found if inspect.isfunction(f) and f.__module__.startswith("onnxgrad.")]


def test_an_unknown_keyword_is_named_with_the_nearest() -> None:
    tried = 0
    for function in _public():
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            continue
        tried += 1
        with pytest.raises(
            InputError, match=f"^{function.__name__} has no option 'no_such_option'"
        ):
            function(no_such_option=1)
        assert pickle.loads(pickle.dumps(function)) is function
    assert tried > 45
    with pytest.raises(
        InputError,
        match=r"optimize has no option 'pases' \(did you mean 'passes'.*; it has model",
    ):
        onnxgrad.optimize("m.onnx", pases="clean")  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"'chekpoint' \(did you mean 'checkpoint'"):
        onnxgrad.check_gradient("models/training/mlp.onnx", chekpoint="auto")
    for cls in (
        *OPTIMIZERS.values(),
        *LOSSES.values(),
        *SCHEDULES.values(),
        *all_passes().values(),
    ):
        with pytest.raises(InputError, match=f"^{cls.__name__} has no option 'no_such_option'"):
            cls(no_such_option=1)
