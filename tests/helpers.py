"""What tests share: places, models from text, golden text. Fixtures of the same names are in conftest.py."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff
from itertools import combinations
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from scripts.fetch_models import cache_folder

ROOT = Path(__file__).resolve().parent.parent
MODELS_DIR = ROOT / "models"
TEXT_DIR = Path(__file__).resolve().parent / "text"
DATA_DIR = Path(__file__).resolve().parent / "data"

# onnx's own defaults are newer than what onnxruntime accepts, so tests never take them.
IR_VERSION = 10
OPSET = 20


def onnxruntime_version() -> tuple[int, ...]:
    """Major and minor of the installed one."""
    return tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def cache_dir() -> Path:
    """Folder of the fetched real models: `models` below `ONNXGRAD_CACHE`, or below a folder of the user's cache."""
    return cache_folder("models")


@functools.cache
def saturates_products() -> bool:
    """Whether onnxruntime adds pairs of products of uint8 and int8 in 16 bits, as on processors without VNNI."""
    model = parse("g (uint8[4,64] a) => (int32[4,8] y) { y = MatMulInteger (a, b) }")
    b = np.full((64, 8), 127, np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(b, "b"))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"a": np.full((4, 64), 255, np.uint8)})
    return bool((np.asarray(found) != 64 * 255 * 127).any())


def parse(text: str, *, opset: int = OPSET, ir_version: int = IR_VERSION) -> onnx.ModelProto:
    """A model from onnx's text format.

    `text` is a whole model (it then starts with its `<...>` header, which is taken as it is) or only a graph,
    optionally followed by functions; a graph gets a header with `ir_version` and the default domain at `opset`.
    The result is not checked: some tests want invalid models.
    """
    text = text.strip()
    if not text.startswith("<"):
        text = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}'
    return onnx.parser.parse_model(text)


def stored_arrays(path: Path) -> dict[str, Any]:
    """Returns the arrays of an .npz file, by name, and closes the file."""
    with np.load(path) as file:
        return dict(file)


def interface(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """The names of a model's inputs and outputs."""
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]


def signature(model: onnx.ModelProto) -> tuple[list[str], list[str], list[str]]:
    """The names of a model's inputs and outputs, and its operators in order."""
    return *interface(model), [n.op_type for n in model.graph.node]


def unindented(text: str) -> str:
    """Golden text that stands inside a test: without the indentation of its first line."""
    return dedent(text).strip()


def covering(cases: Sequence[Sequence[str]], strength: int = 1) -> set[int]:
    """The positions of some of the cases, each a value of each parameter, that meet every `strength` values that
    meet in any; each value about as often as another.
    """
    meets = [set(combinations(enumerate(values), strength)) for values in cases]
    left, kept = set().union(*meets), set[int]()
    often: Counter[tuple[int, str]] = Counter()
    while left:
        new = max(
            range(len(cases)),
            key=lambda i: (len(meets[i] & left), -sum(often[v] for v in enumerate(cases[i]))),
        )
        kept.add(new)
        left -= meets[new]
        often.update(enumerate(cases[new]))
    return kept


def compare_golden(name: str, text: str, *, update: bool) -> None:
    """Compare `text` with tests/text/`name`.txt; with `update`, write that file instead.

    Raises AssertionError with a diff when they differ or the file is missing.
    """
    path = TEXT_DIR / f"{name}.txt"
    text = text.rstrip("\n") + "\n"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    if not path.exists():
        raise AssertionError(
            f"{path.name} is missing in tests/text: run pytest with --update-golden, then read it"
        )
    expected = path.read_text(encoding="utf-8")
    if text != expected:
        diff = unified_diff(
            expected.splitlines(), text.splitlines(), f"tests/text/{name}.txt", "now", lineterm=""
        )
        raise AssertionError(
            "text differs from its golden file (--update-golden rewrites it)\n" + "\n".join(diff)
        )
