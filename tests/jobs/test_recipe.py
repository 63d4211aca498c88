"""Recipes as they are read: what has no meaning is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.declarations import OptimizeOptions
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
        ({"weights": "may change"}, "it belongs into `require`, as in require = { weights"),
        ({"preset": 3}, "'preset' must be text, not 3"),
        ({"preset": "fast"}, "'preset' must be one of clean, default, .*, not 'fast'"),
        ({"require": {"MatMul": "about 3"}}, "cannot read the requirement 'about 3'"),
        ({"require": {"MatMul": True}}, "cannot read the requirement True"),
        ({"verify": {"sedes": [1]}}, "unknown key 'verify.sedes'"),
        ({"verify": {"seeds": [-1]}}, "'verify.seeds' must be at least 0, not -1"),
        (
            {"verify": {"checks": ["left"]}},
            "'verify.checks' must be one of float64, onnxruntime or a list, not",
        ),
        ({"verify": {"tolerance": "small"}}, "must be a number, not 'small'"),
        ({"models": {"*": {"models": {}}}}, "unknown key 'models'"),
        ({"models": []}, r"such as \[models.\"\*.onnx\"\]; the list .* is in \[ci\]"),
        ([], "must be a table"),
        ({"ci": {"models": "x.onnx"}}, "ci: 'models' must be a list, not 'x.onnx'"),
        ({"require": {"MatMul+bytes": 10}}, "'bytes' does not stand for operators"),
        ({"require": {"": 10}}, "'' does not stand for operators"),
        ({"require": {"bytes": "small"}}, "cannot read the requirement 'small' of 'bytes'"),
        ({"merge": True}, "'merge' must be text, not True"),
        ({"target_opset": True}, "'target_opset' must be a whole number, not True"),
        ({"ci": []}, "'ci' must be a table"),
        ({"ci": {"model": ["x"]}}, "ci: unknown key 'model'; did you mean 'models'"),
        ({"ci": {"models": [1]}}, "ci: 'models' must be text, not 1"),
        ({"ci": {"out": ""}}, "ci: 'out' is empty"),
        ({"models": {"*": {"ci": {}}}}, "unknown key 'ci'"),
        ({"bench": {"seconds": -1}}, "'bench.seconds' must be above 0 .*, not -1"),
        ({"verify": {"tolerance": -1e-6}}, "'verify.tolerance' must be at least 0, not -1e-06"),
        ({"verify": {"tolerance": float("nan")}}, "'verify.tolerance' must be a number, not nan"),
        (
            {"verify": {"tolerance": float("inf")}},
            "'verify.tolerance' must be finite, not inf",
        ),
        ({"verify": {"seeds": []}}, "'verify.seeds' is empty: name at least one, or leave it out"),
        (
            {"verify": {"checks": []}},
            "'verify.checks' is empty: name at least one, or leave it out",
        ),
        ({"verify": {"rtol": -1.0}}, "'verify.rtol' must be a number from 0 on, not -1.0"),
        ({"verify": {"atol": {"y": "1"}}}, "'verify.atol' must be a number or a table"),
        ({"verify": {"rtol": float("inf")}}, "'verify.rtol' must be a number from 0 on, not inf"),
        ({"verify": {"metric": "cosine"}}, "'cosine': write cosine=LEAST"),
        ({"verify": {"metric": [1]}}, "'verify.metric' must be text or a list"),
        ({"bench": {"rounds": 0}}, "'bench.rounds' must be at least 1, not 0"),
        ({"require": {"MatMul+nodes": 10}}, "'nodes' does not stand for operators"),
        ({"verify": {"allow_empty": [1]}}, "'verify.allow_empty' must be text or a list"),
    ],
)
def test_mistakes_are_named(table: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(table, "r.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("passes = [1]", "'passes' must be text or a list"),
        ('passes = [["a"]]', "'passes' must be text or a list"),
        ("passes = " + "[" * 5000 + "]" * 5000, "not TOML"),
        ("verify.threads = " + "9" * 5000, "not TOML"),
        ("verify.threads = 100000", "'verify.threads' must be from 1 to 256, not 100000"),
        ("verify.timeout = inf", "'verify.timeout' must be above 0"),
        ('verify.max_memory = "much"', "not an amount of memory"),
        ("verify.inputs = [1]", "'verify.inputs' must be text or a list"),
        (
            "verify.seeds = [18446744073709551616]",
            "'verify.seeds' must be at most 9.22337e.18, not 1844",
        ),
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
    stem = parse({"models": {"big": {"preset": "clean"}}}, "r.toml")
    assert stem.of("x/big.onnx") == {"preset": "clean"} and stem.of("x/bigger.onnx") == {}
    assert stem.unmet(["big.onnx"]) == []


def test_a_required_share_of_exact_rewrites_asks_for_exact_evaluation() -> None:
    recipe = parse({"models": {"a*": {"require": {"exact": ">= 90%"}}}}, "r.toml")
    assert recipe.options("a.onnx", OptimizeOptions()).exact
    assert not recipe.options("b.onnx", OptimizeOptions()).exact
    assert not recipe.options("a.onnx", OptimizeOptions.from_settings({"exact": False})).exact
    off = parse({"require": {"exact": ">= 90%"}, "verify": {"exact": False}}, "r.toml")
    assert not off.options("a.onnx", OptimizeOptions()).exact


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b'\xef\xbb\xbfmerge = "never"\r\n')
    assert read(file).common["merge"] == "never"
