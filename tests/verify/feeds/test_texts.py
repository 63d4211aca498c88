"""onnxgrad/verify/feeds/texts.py: texts that operators tell apart are among the generated ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.texts import matches
from tests.helpers import parse


@pytest.mark.parametrize(
    "pattern",
    [r"[a-z]+@[a-z]+[.]com", r"\d{3}-\d+", r"(foo|bar)?\s*[^x]*", r"^A.*\w$", r"(?:a|b){2,}", r"[^a-z\s]\D\W\S",
     r"a{65,}", r"(?P<n>x)|y", ""],
)  # fmt: skip
def test_texts_match_a_pattern_and_one_does_not(pattern: str) -> None:
    *hits, miss = matches(pattern)
    assert hits and all(re.fullmatch(pattern, text) for text in hits)
    assert miss not in hits


@pytest.mark.parametrize("pattern", ["(((", r"\p{L}+", "[[:alpha:]]+", r"(?=a)b"])
def test_a_pattern_that_is_not_understood_has_no_texts(pattern: str) -> None:
    assert matches(pattern) == []


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ('b = RegexFullMatch <pattern = "[0-9]{4}x"> (s)', lambda t: re.fullmatch("[0-9]{4}x", t)),
        ('b, c = StringSplit <delimiter = "|"> (s)', lambda t: "|" in t),
        ('b = StringNormalizer <stopwords = ["quux"]> (s)', lambda t: t == "quux"),
    ],
)
def test_generated_texts_are_told_apart(node: str, wanted: object) -> None:
    model = parse(f"g (string[40] s) => (int64[N] b) {{ {node} }}")
    made = Feeder(model).feeds(seed=0)["s"]
    assert isinstance(made, np.ndarray) and callable(wanted)
    found = [bool(wanted(text)) for text in made]
    assert any(found) and not all(found)
