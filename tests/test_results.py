"""Results become JSON by their fields."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.errors import InputError, InternalError
from onnxgrad.results import Plain, in_json


@dataclass(frozen=True, slots=True)
class Size(Plain):
    """Two numbers under other keys."""

    json_keys = "bytes=count share:.2f worst:.2g name? odd"

    count: int
    share: float
    worst: float | None = None
    name: str = ""

    @property
    def odd(self) -> bool:
        return self.count % 2 == 1


@dataclass
class Model(Plain):
    """Results within results."""

    json_keys = "format * last_bytes=last.count"

    sizes: tuple[Size, ...]
    counts: Counter[int] = field(default_factory=Counter)
    limits: dict[str, float] = field(default_factory=dict)
    error: InputError | None = None

    @property
    def format(self) -> str:
        return "test"

    @property
    def last(self) -> Size:
        return self.sizes[-1]


class Row(NamedTuple):
    """A row whose bytes are no JSON."""

    where: str
    rows: bytes = b""


def test_keys_follow_the_declaration() -> None:
    assert list(Size(3, 0.12345).to_dict().items()) == [
        ("bytes", 3), ("share", 0.12), ("worst", None), ("name", None), ("odd", True)
    ]  # fmt: skip
    assert Size(2, 1.0, 0.00123, "x").to_dict()["worst"] == 0.0012


def test_values_of_every_kind() -> None:
    found = Model((Size(1, 0.5),), Counter({3: 2}), {"a": float("inf")}, InputError("why"))
    assert found.to_dict() == {
        "format": "test",
        "sizes": [Size(1, 0.5).to_dict()],
        "counts": {"3": 2},
        "limits": {"a": "inf"},
        "error": "why",
        "last_bytes": 1,
    }
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
    assert in_json(Row("here", b"\x01")) == {"where": "here"}


def test_a_declaration_that_cannot_be_read() -> None:
    @dataclass
    class Wrong(Plain):
        json_keys = "a=b=c"

    with pytest.raises(InternalError, match="cannot read 'a=b=c'"):
        Wrong().to_dict()


RESULTS = [
    *(getattr(onnxgrad, n) for n in onnxgrad.__all__ if n.endswith(("Report", "Model"))),
    onnxgrad.Summary, onnxgrad.Weights, onnxgrad.Diff, onnxgrad.Fitted, onnxgrad.Trainer,
    train.TrainingStep, train.History, train.RangeTest, train.Adapters,
]  # fmt: skip


@pytest.mark.parametrize("cls", RESULTS, ids=lambda cls: cls.__name__)
def test_a_result_has_a_text_and_a_form_in_notebooks(cls: type) -> None:
    assert cls.__repr__ is not object.__repr__ and hasattr(cls, "_repr_html_")


def test_the_text_of_a_history_is_shown_in_notebooks() -> None:
    shown = train.History()._repr_html_()
    assert shown.startswith("<pre") and "History(0 steps)" in shown
