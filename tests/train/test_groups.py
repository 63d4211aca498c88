"""Which optimiser updates which weights."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, AdamW
from onnxgrad.train.groups import Group, grouped, members

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
        ({"*": {"weight_decay": -1.0}}, "weight_decay must be at least 0"),
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
    with pytest.raises(InputError, match="no multiple of the optimiser's"):
        grouped({"*": {"lr": 0.1}}, AdamW(lr=0.0))


def test_a_group_of_nothing() -> None:
    with pytest.raises(
        InputError, match=r"group 'hed\.weight' means no weight.*did you mean 'head.weight'"
    ):
        members(grouped({"hed.weight": {}}, AdamW()), NAMES)
    with pytest.raises(InputError, match="in no group before it"):
        members(grouped({"*": {}, "head.*": {}}, AdamW()), NAMES)
