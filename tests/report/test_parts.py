from __future__ import annotations

from pathlib import PurePath

import pytest

from onnxgrad.report.parts import bytes_text, change, file_names, seconds_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (99_940, "99.9 kB"),
        (999_600, "1 MB"),
        (2_904_027, "2.9 MB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_small_texts() -> None:
    assert seconds_text(0.0123) == "12 ms" and seconds_text(61) == "61.0 s"
    assert (
        str(change(4, 1)) == "-3 (-75 %)" and str(change(0, 2)) == "+2" and str(change(3, 3)) == "="
    )


def test_files_of_one_name_keep_their_folders() -> None:
    a, b = PurePath("x/m.onnx"), PurePath("y/m.onnx")
    assert file_names([a, PurePath("z/n.onnx"), "graph/g"]) == ["m.onnx", "n.onnx", "graph/g"]
    assert file_names([a, b, "m"]) == [str(a), str(b), "m"]
