from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import pytest

from tests import helpers


def test_parse_adds_a_header_only_where_there_is_none() -> None:
    graph = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    model = helpers.parse(graph)
    onnx.checker.check_model(model)
    assert (model.ir_version, model.opset_import[0].version) == (10, 20)
    assert helpers.parse(graph, opset=13, ir_version=8).opset_import[0].version == 13
    assert helpers.parse(f'<ir_version: 7, opset_import: ["" : 11]> {graph}').ir_version == 7


def test_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "TEXT_DIR", tmp_path)
    with pytest.raises(AssertionError, match="--update-golden"):
        helpers.compare_golden("a/b", "one", update=False)
    helpers.compare_golden("a/b", "one", update=True)
    helpers.compare_golden("a/b", "one\n", update=False)
    with pytest.raises(AssertionError, match=r"(?s)-one.*\+two"):
        helpers.compare_golden("a/b", "two", update=False)


def test_cache_dir_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXGRAD_CACHE", str(tmp_path))
    assert helpers.cache_dir() == tmp_path / "models"
    monkeypatch.delenv("ONNXGRAD_CACHE")
    assert helpers.cache_dir().parts[-2:] == ("onnxgrad", "models")


def test_every_golden_file_is_somebodys_and_longer_than_what_stands_in_a_test() -> None:
    tests = "\n".join(
        p.read_text(encoding="utf-8") for p in helpers.TEXT_DIR.parent.rglob("test_*.py")
    )
    files = list(helpers.TEXT_DIR.rglob("*.txt"))
    assert len(files) > 3
    assert [p.stem for p in files if f'golden("{p.stem}"' not in tests] == []
    assert [p.stem for p in files if p.read_text(encoding="utf-8").count(" = ") <= 8] == []


@pytest.mark.parametrize(("strength", "count"), [(1, 5), (2, 15), (3, 30)])
def test_cases_that_cover_a_product(strength: int, count: int) -> None:
    cases = list(itertools.product("abcde", "xyz", "pq"))
    kept = helpers.covering(cases, strength)
    assert len(kept) == count and kept == helpers.covering(cases, strength)
    for places in itertools.combinations(range(3), strength):
        met = [
            {tuple(case[p] for p in places) for case in some}
            for some in (cases, [cases[i] for i in kept])
        ]
        assert met[0] == met[1]


def test_what_is_covered_elsewhere_is_slow(request: pytest.FixtureRequest) -> None:
    items = [i for i in request.session.items if i.name.startswith("test_two_of_four")]
    quick = {i.name for i in items if not i.get_closest_marker("slow")}
    assert quick <= {"test_two_of_four[a-x]", "test_two_of_four[b-y]"}


@pytest.mark.covering
@pytest.mark.parametrize("one", "xy")
@pytest.mark.parametrize("other", "ab")
def test_two_of_four(one: str, other: str) -> None:
    assert (one, other) in {("x", "a"), ("y", "b"), ("x", "b"), ("y", "a")}
