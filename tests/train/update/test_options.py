"""Which optimiser updates which weights."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, AdamW
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.schedules import Constant
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage
from onnxgrad.train.update.options import Group, grouped, members
from tests.train.common import step

NAMES = ["body.weight", "body.bias", "head.weight", "head.bias"]


def test_the_first_glob_decides_and_the_last_group_has_the_rest() -> None:
    groups = grouped({"*.bias": {"weight_decay": 0.0}, "head.*": SGD(lr=0.5)}, AdamW(lr=0.25))
    found = members(groups, NAMES)
    assert [found[name].glob for name in NAMES] == ["*", "*.bias", "head.*", "*.bias"]
    assert found["body.bias"] == Group("*.bias", AdamW(lr=0.25, weight_decay=0.0), 1.0)
    assert found["head.weight"].factor == 2.0
    assert found["body.weight"].optimizer == AdamW(lr=0.25)


def test_a_list_is_as_good_and_a_name_may_have_brackets() -> None:
    groups = grouped([("w[0]", {"lr": 0.01})], AdamW(lr=0.1))
    assert members(groups, ["w[0]", "w0"])["w[0]"].factor == pytest.approx(0.1)


def test_no_groups_are_one() -> None:
    assert grouped({}, SGD()) == (Group("*", SGD()),)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"*": {"weight_decy": 0.0}}, r"has no 'weight_decy' \(did you mean 'weight_decay'\?\)"),
        ({"*": {"weight_decay": -1.0}}, "weight_decay must be a finite number, at least 0"),
        ({"*": 3}, r"group '\*' must be an optimiser or hyperparameters"),
        (["*"], "a group must be a glob with"),
        ("*", "groups must be like"),
        (3, "groups must be like"),
        ([(3, {})], "a group must be a glob with"),
    ],
)
def test_what_is_no_group(groups: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        grouped(groups, AdamW())


def test_a_rate_that_is_no_multiple() -> None:
    with pytest.raises(InputError, match="not a multiple of the optimiser's"):
        grouped({"*": {"lr": 0.1}}, AdamW(lr=0.0))


def test_a_group_of_nothing() -> None:
    with pytest.raises(
        InputError,
        match=r"group 'hed\.weight' matches no trained weight.*did you mean 'head.weight'",
    ):
        members(grouped({"hed.weight": {}}, AdamW()), NAMES)
    with pytest.raises(InputError, match="in no earlier group"):
        members(grouped({"*": {}, "head.*": {}}, AdamW()), NAMES)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("clip_value", 0, "training_step: clip_value must be a finite number above 0, not 0"),
        ("clip_value", "a", "clip_value must be a number, not 'a'"),
        ("clip_norm", float("nan"), "clip_norm must be a number, not nan"),
        ("clip_norm", True, "clip_norm must be a number, not True"),
        ("accumulate", 0, "accumulate must be at least 1, not 0"),
        ("accumulate", 2.5, "accumulate must be a whole number"),
        ("accumulate", None, "accumulate must be a whole number"),
        ("average", 1.5, "average: decay must be from 0 to 1"),
        ("average", "much", "unknown average 'much': choose from ema, swa"),
        ("average", "swa{every=0}", "average: every must be at least 1, not 0"),
        ("loss_scale", -1, "init_scale must be a finite number above 0"),
        ("loss_scale", "static", "loss_scale must be one of dynamic or a number or a LossScaling"),
        ("schedule", 0.1, "schedule must be a Schedule or text, not 0.1"),
        (
            "metrics",
            ["logit"],
            r"'logit' is not an output of the model \(did you mean 'logits'\?\)",
        ),
        ("optimizer", 0.1, "optimizer must be an Optimizer or text, not 0.1"),
        ("optimizer", AdamW, "optimizer must be an Optimizer or text, not"),
        (
            "optimizer",
            "Adam",
            r"unknown optimiser 'Adam' \(did you mean 'adam'.*: choose from adadelta, ",
        ),
        ("optimizer", "adam{rate=1}", "adam has no option 'rate'"),
        ("groups", {"x*": {}}, r"group 'x\*' matches no trained weight .*; there are "),
    ],
)
def test_an_option_that_is_none(option: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        step(**{option: value})
    assert "\n" not in str(error.value)


def test_the_manifest_says_what_was_chosen() -> None:
    made = step(
        groups={"b*": {"weight_decay": 0.0}}, clip_norm=1.0, clip_value=2.0, accumulate=3,
        average=0.5, loss_scale=128, schedule=Constant(0.25),
    )  # fmt: skip
    told = Manifest.from_json(made.manifest.to_json())
    assert [(g["glob"], g["factor"]) for g in told.groups] == [("b*", 1.0), ("*", 1.0)]
    assert (told.clip_norm, told.clip_value, told.accumulate, told.average) == (1.0, 2.0, 3, 0.5)
    assert (told.update, told.gradient_norm) == ("update.onnx", "gradient_norm")
    assert told.schedule == {"name": "constant", "lr": 0.25}
    assert told.loss_scaling is not None and told.loss_scaling["init_scale"] == 128
    assert told.of_role("learning_rate") == []
    assert [f.group for f in told.of_role("parameter")] == [1, 0, 1, 0]


def test_an_optimizer_may_be_text() -> None:
    told = step("sgd{lr=0.1,momentum=0.9}")  # type: ignore[arg-type]
    assert told.manifest.optimizer["name"] == "sgd"
    assert (told.manifest.optimizer["lr"], told.manifest.optimizer["momentum"]) == (0.1, 0.9)
    assert repr(told) == "TrainingStep(sgd on 4 weights; a batch holds x, labels)"


def test_objects_are_taken_as_they_are() -> None:
    made = step(AdamW(), average=ExponentialMovingAverage(0.9), loss_scale=LossScaling(2.0))
    assert made.manifest.average == 0.9
    assert made.initial["loss.scale"] == 2.0
