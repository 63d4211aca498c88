"""Messages name options as their reader wrote them."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import options_of
from onnxgrad.wording import (
    _FLAG,
    _KEYS,
    counted,
    did_you_mean,
    dim_option,
    first_of,
    in_a_recipe,
    input_option,
    known_names,
    nearest,
    on_the_command_line,
    one_line,
    option,
    perhaps,
    printable,
    printable_json,
    printable_lines,
    shape_text,
    told_apart,
)
from tests.helpers import ROOT, parse

SMALL = "g (float[N] x) => (float[N] y) { y = Sqrt (x) }"


def test_each_reader_has_his_own_words() -> None:
    assert option("--a", "a=") == "a="
    with on_the_command_line():
        assert option("--a", "a=") == "--a"
        assert input_option("x") == "--input x=FILE"
        assert dim_option("N", "M") == "--dim N=SIZE --dim M=SIZE"
        with in_a_recipe():
            assert option("--timeout", "timeout=") == "verify.timeout"
            assert option("--dim N=3", "dims") == "verify.dims N=3"
            assert option("--a", "a=") == "--a"
            assert input_option("x") == 'verify.inputs = ["x=FILE"]'
            assert dim_option("N", "M") == "verify.dims = { N = SIZE, M = SIZE }"
    assert (input_option("x"), dim_option("N", "M")) == (
        "inputs={'x': array}",
        "dims={'N': size, 'M': size}",
    )


def test_a_command_that_fails_leaves_python_to_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same mistake, said on the command line and then in Python."""
    path = tmp_path / "m.onnx"
    path.write_bytes(parse(SMALL).SerializeToString())
    assert main(["verify", str(path), str(path), "--dim", "q=3"]) == 2
    assert "--dim q=3: no input has a dimension 'q'" in capsys.readouterr().err
    with pytest.raises(onnxgrad.InputError, match=r"dims=\{'q': 3\}: no input has a dimension 'q'"):
        onnxgrad.verify(path, path, dims={"q": 3})


def test_only_who_may_skip_the_proof_is_told_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = parse(
        "g (float[N] x) => (float[M] y) <int64[1] s = {12347}> { z = Reshape(x, s) y = Neg(z) }"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(refused.SerializeToString())
    with pytest.raises(onnxgrad.InputError, match="or skip the proof with verify=False"):
        onnxgrad.optimize(path)
    assert main(["optimize", str(path), "--dry-run"]) == 2
    assert "or skip the proof with --no-verify" in capsys.readouterr().err
    assert main(["verify", str(path), str(path)]) == 2
    assert "skip the proof" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("matmul", ["MatMul"]),
        ("--out", ["--out-dir"]),
        ("fold_constant", ["fold-constant"]),
        ("optimise", ["optimize"]),
        ("xyz", []),
        ("", []),
    ],
)
def test_what_was_meant(name: str, meant: list[str]) -> None:
    known = ["MatMul", "Gemm", "--out-dir", "fold-constant", "optimize"]
    assert nearest(name, known) == meant
    assert did_you_mean(name, known, "no") == (f"did you mean '{meant[0]}'?" if meant else "no")
    assert perhaps(name, known) == (f" (did you mean '{meant[0]}'?)" if meant else "")


def test_several_may_be_meant() -> None:
    assert perhaps("w11", ["w1", "w12", "b"], 3) == " (did you mean 'w1' or 'w12'?)"


def test_counts() -> None:
    found = [counted(1, "value"), counted(0, "value"), counted(2000, "value")]
    assert found == ["1 value", "0 values", "2,000 values"]
    assert counted(2, "copy", "copies") == "2 copies" and counted(1, "copy", "copies") == "1 copy"


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (-3.414354, -3.4143541, ("-3.414354", "-3.4143541")),
        (0.5, 0.25, ("0.5", "0.25")),
        (1.0, 1.0, ("1", "1")),
        (1.0, 1.0 + 2**-52, ("1", "1.0000000000000002")),
        (float("nan"), 1.0, ("nan", "1")),
        (float("inf"), 1.0, ("inf", "1")),
        (1e-30, 0.0, ("1e-30", "0")),
    ],
)
def test_two_numbers_are_told_apart(a: float, b: float, shown: tuple[str, str]) -> None:
    assert told_apart(a, b) == shown
    assert (shown[0] == shown[1]) == (a == b)


def test_letters_are_printed_and_nothing_else_acts() -> None:
    """Over Unicode's first plane: letters, marks, digits, punctuation and symbols stay."""
    every = [chr(c) for c in range(0x10000)]
    for c in every:
        shown = printable(c)
        kept = c == " " or unicodedata.category(c)[0] in "LMNPS"
        assert (
            shown == c
            if kept and not _unseen(c)
            else re.fullmatch(r"\\(n|r|t|[xu][0-9a-f]+)", shown)
        )
        assert printable(shown) == shown and json.loads(printable_json(c)) == c
    text = "".join(c for c in every if unicodedata.category(c) != "Cs")
    assert json.loads(printable_json({text: [text]})) == {text: [text]}
    assert printable_lines("a\nb\tc") == "a\nb\\tc"


def _unseen(c: str) -> bool:
    """Invisible though Unicode calls it a letter or a mark."""
    fillers = (
        "HANGUL FILLER",
        "HANGUL CHOSEONG FILLER",
        "HANGUL JUNGSEONG FILLER",
        "HALFWIDTH HANGUL FILLER",
    )
    name = unicodedata.name(c, "")
    return name.startswith(
        ("VARIATION SELECTOR", "MONGOLIAN FREE VARIATION", "KHMER VOWEL INHERENT")
    ) or (name in (*fillers, "COMBINING GRAPHEME JOINER"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", r"\x3a:error::x"),
        ("a ::Set-Output name=x::y", r"a \x3a:Set-Output name=x::y"),
        ("##[warning]x", r"\x23#[warning]x"),
        ("##vso[task.complete]", r"\x23#vso[task.complete]"),
        ("com.microsoft::Gelu", "com.microsoft::Gelu"),
        ("my::error_of", "my::error_of"),
        ("# heading [x]", "# heading [x]"),
    ],
)
def test_no_build_server_obeys_a_name(text: str, shown: str) -> None:
    assert printable(text) == shown == printable(shown)
    assert json.loads(printable_json([text])) == [text]


def test_the_first_of_many_names() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_options_in_messages_have_the_keys_of_recipes() -> None:
    """Each that a recipe has, by the key that its declaration has."""
    keys = {o.flag: o.toml for o in options_of(OptimizeOptions) if o.flag and o.toml}
    assert {f: k.split(" ")[0] for f, k in _KEYS.items() if f in keys} == {
        f: k for f, k in keys.items() if f in _KEYS
    }
    named = re.compile(r'\boption\(\s*f?"([^"]*--[^"]*)"')
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "onnxgrad").rglob("*.py"))
    flags = {
        flag for text in texts for words in named.findall(text) for flag in _FLAG.findall(words)
    }
    assert len(flags) > 30 and {flag for flag in flags if flag in keys} <= _KEYS.keys()


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("--ouput", ["--output", "--out-dir"], ["--output"]),
        ("defualt", ["default"], ["default"]),
        ("adma", ["adam", "sgd"], ["adam"]),
        ("head.weigth", ["head.weight", "head.bias"], ["head.weight"]),
        ("--loss", ["--color", "--quiet"], []),
        ("verify.expect", ["verify.excuse", "verify.inputs"], []),
        ("layer1.weight", ["layer1.height"], ["layer1.height"]),
        ("m/expect.onnx", ["m/excuse.onnx"], []),
        ("a" * 300, ["a" * 299 + "b"], ["a" * 299 + "b"]),
    ],
)
def test_only_near_names_are_suggested(name: str, known: list[str], near: list[str]) -> None:
    """A common beginning up to a dash, dot, slash or colon does not make names near."""
    assert nearest(name, known) == near


def test_an_error_becomes_one_line() -> None:
    error = ValueError("first\n  second\tthird ")
    assert one_line(error) == "first second third"
    assert one_line(error, 8) == "first se"


def test_a_shape_has_no_quotes() -> None:
    assert shape_text(("N", 8, None)) == "[N, 8, ?]"
    assert shape_text(()) == "[]"


def test_the_end_of_a_message_on_one_of_many_names() -> None:
    many = [f"relu_{i}" for i in range(20)] + [f"node_Conv_{i}" for i in range(5)]
    shown = "'node_Conv_0', 'node_Conv_1', 'node_Conv_2'"
    assert known_names("Conv*", many) == f" (there are 25, such as {shown})"
    assert known_names("zzz", many).startswith(" (there are 25, such as 'relu_0', 'relu_1', ")
    assert known_names("relu_33", many).startswith(" (did you mean 'relu_")
    assert known_names("zzz", many[:2]) == "; there are relu_0, relu_1"
    assert known_names("zzz", []) == "; there are none"
