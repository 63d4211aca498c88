"""Steps as text."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields

import pytest

from onnxgrad import help
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.images import Image, Tokens
from onnxgrad.transform.preprocessing.registry import (
    AFTER,
    BEFORE,
    HEADS,
    PRESETS,
    steps_after,
    steps_before,
)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_steps(name: str) -> None:
    assert steps_before(name, "before") == steps_before(PRESETS[name], "before")


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_its_steps(name: str) -> None:
    assert steps_after(name, "after") == steps_after(HEADS[name], "after")


def test_the_source_follows_from_the_steps() -> None:
    assert steps_before("to-float", "before")[0] == Image()
    assert steps_before("pad-tokens{length=3}", "before")[0] == Tokens()
    assert steps_before("image{layout=chw},bgr", "before")[0] == Image(layout="chw")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize", "resize needs the option size or max_size"),
        ("to-float,image", "before: image describes the input, so it must be the first"),
        ("image,pad-tokens{length=3}", "before: pad-tokens does not work on an image"),
        ("softmax", "unknown step 'softmax'; softmax belongs on the other side of the model"),
        ("imagenet{size=3}", "imagenet has no options; write its steps instead: resize"),
        ("letterbx", r"unknown step 'letterbx' \(did you mean 'letterbox'"),
        ("resize{size=3,mod=x}", r"resize has no option 'mod' \(did you mean 'mode'"),
        ("", "before: no steps are named"),
        ("a b", "cannot read the steps of before at 'a b'"),
    ],
)
def test_text_that_is_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        steps_before(text, "before")


def test_names_are_of_one_side() -> None:
    assert not {*BEFORE, *PRESETS} & {*AFTER, *HEADS}


def test_another_source_before_a_preset() -> None:
    source, steps = steps_before("image{layout=hwc},yolo", "before")
    assert (source, steps) == (Image(layout="hwc"), steps_before("yolo", "before")[1])


def as_text(default: object) -> str:
    """A default as the help shows it, nothing if there is none."""
    if default in (MISSING, None, ()):
        return ""
    text = str(list(default) if isinstance(default, tuple) else default)
    return text.lower() if isinstance(default, bool) else text.replace(" ", "")


def test_the_help_lists_each_step_with_its_options() -> None:
    page = help.page("preprocessing")
    for name, cls in (BEFORE | AFTER).items():
        (row,) = re.findall(rf"^\| `{name}(?:\{{(.*)\}})?` \|", page, re.MULTILINE)
        listed = [word.partition("=") for word in re.split(r",(?![\d.]+\])", row) if word]
        assert [option for option, *_ in listed] == [f.name for f in fields(cls)], name
        for option, equals, value in listed:
            default = next(f.default for f in fields(cls) if f.name == option)
            assert value == as_text(default), option
            assert bool(equals) == (default not in (MISSING, None, ())), option
    for name, steps in (PRESETS | HEADS).items():
        assert f"| `{name}` | `{steps}` |" in page
