"""Recipes as they are read: what has no meaning is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.recipe import find, parse, read


def test_a_pyproject_without_our_table_is_none_of_our_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert find(None) is None
    (tmp_path / "pyproject.toml").write_text("not toml at all [")
    assert find(None) is None
    with pytest.raises(InputError, match="not TOML"):
        find("pyproject.toml")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"pases": "x"}, "unknown key 'pases'; did you mean 'passes'"),
        ({"xyz": "x"}, "unknown key 'xyz'; there are preset"),
        ({"preset": 3}, "'preset' has the wrong type"),
        ({"require": {"MatMul": "about 3"}}, "cannot read the requirement 'about 3'"),
        ({"require": {"MatMul": True}}, "cannot read the requirement True"),
        ({"verify": {"sedes": [1]}}, "unknown key 'verify.sedes'"),
        ({"verify": {"seeds": [-1]}}, "cannot have -1"),
        ({"verify": {"legs": ["left"]}}, "cannot have 'left'"),
        ({"verify": {"tolerance": "small"}}, "wrong type"),
        ({"models": {"*": {"models": {}}}}, "unknown key 'models'"),
        ({"models": []}, r"such as \[models.\"\*.onnx\"\]; the list .* stands in \[ci\]"),
        ([], "is a table"),
        ({"ci": {"models": "x.onnx"}}, "'models' has the wrong type: 'x.onnx'; a list is wanted"),
        ({"require": {"MatMul+bytes": 10}}, "'bytes' does not stand for operators"),
        ({"require": {"": 10}}, "'' does not stand for operators"),
        ({"require": {"bytes": "small"}}, "cannot read the requirement 'small' of 'bytes'"),
        ({"merge": True}, "'merge' has the wrong type"),
        ({"target_opset": True}, "'target_opset' has the wrong type"),
        ({"ci": []}, "'ci' is no table"),
        ({"ci": {"model": ["x"]}}, "ci: unknown key 'model'; did you mean 'models'"),
        ({"ci": {"models": [1]}}, "ci: 'models' cannot be"),
        ({"ci": {"out": ""}}, "ci: 'out' cannot be ''"),
        ({"models": {"*": {"ci": {}}}}, "unknown key 'ci'"),
        ({"bench": {"seconds": -1}}, "'bench.seconds' must be a positive number"),
        ({"verify": {"tolerance": -1e-6}}, "'verify.tolerance' must be a finite number from 0 on"),
        ({"verify": {"tolerance": float("nan")}}, "'verify.tolerance' must be a finite number"),
        ({"verify": {"tolerance": float("inf")}}, "'verify.tolerance' must be a finite number"),
        ({"verify": {"seeds": []}}, "'verify.seeds' is empty: name at least one, or leave it out"),
        ({"verify": {"legs": []}}, "'verify.legs' is empty: name at least one, or leave it out"),
        ({"verify": {"rtol": -1.0}}, "rtol: a number from 0 on is wanted, not -1.0"),
        ({"verify": {"atol": {"y": "1"}}}, "atol: a number from 0 on is wanted"),
        ({"verify": {"rtol": float("inf")}}, "rtol: a number from 0 on is wanted"),
        ({"verify": {"metric": "cosine"}}, "'cosine': write cosine=LEAST"),
        ({"verify": {"metric": [1]}}, "'verify.metric' is text such as"),
        ({"bench": {"rounds": 0}}, "'bench.rounds' must be at least 1"),
        ({"require": {"MatMul+nodes": 10}}, "'nodes' does not stand for operators"),
        ({"verify": {"allow_empty": [1]}}, "cannot have 1"),
    ],
)
def test_mistakes_are_named(table: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(table, "r.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("passes = [1]", "'passes' is a list of names"),
        ('passes = [["a"]]', "'passes' is a list of names"),
        ("passes = " + "[" * 5000 + "]" * 5000, "not TOML"),
        ("verify.threads = " + "9" * 5000, "not TOML"),
        ("verify.threads = 100000", "'verify.threads' must be a number from 1 to 256"),
        ("verify.timeout = inf", "'verify.timeout' must be a positive number"),
        ('verify.max_memory = "much"', "no size of memory"),
        ("verify.inputs = [1]", "'verify.inputs' cannot have 1"),
        ("verify.seeds = [18446744073709551616]", "'verify.seeds' cannot have 1844"),
        ('require = {nodes = "<=' + "9" * 5000 + '"}', "cannot read the requirement"),
    ],
)
def test_recipes_that_python_itself_stumbles_over(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        find(str(tmp_path / "r.toml"))


def test_a_model_in_the_place_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a\xf4")
    with pytest.raises(
        InputError, match=r'such as onnxgrad.toml, names it: \[ci\] models = \["m.onnx"\]'
    ):
        find(str(tmp_path / "m.onnx"))


def test_options_of_a_model_are_those_of_every_glob_that_means_it() -> None:
    recipe = parse(
        {
            "preset": "clean", "require": {"MatMul": 1},
            "models": {"b*.onnx": {"merge": "never", "require": {"Gemm": 2}}, "*/big.onnx": {"preset": "default"}},
        },
        "r.toml",
    )  # fmt: skip
    assert recipe.of("a.onnx") == {"preset": "clean", "require": {"MatMul": 1}}
    assert recipe.of("x/big.onnx") == {
        "preset": "default",
        "merge": "never",
        "require": {"MatMul": 1, "Gemm": 2},
    }
    assert recipe.unmet(["b.onnx"]) == ["*/big.onnx"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b'\xef\xbb\xbfmerge = "never"\r\n')
    assert read(file).common["merge"] == "never"
