"""The public names come with the first one asked for, and `import onnxgrad` waits for none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onnxgrad
from onnxgrad import surface
from onnxgrad.extensions import built_in
from tests.helpers import ROOT


def _python(text: str) -> str:
    """What a fresh Python prints."""
    words = [sys.executable, "-c", text]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_every_public_name() -> None:
    assert list(onnxgrad.__all__) == sorted([*surface.__all__, *built_in("names")])
    assert all(getattr(onnxgrad, n) is getattr(surface, n) for n in surface.__all__)
    assert dir(onnxgrad) == list(onnxgrad.__all__)  # no modules, no imports of ours


@pytest.mark.parametrize("name", ["gradients", "__wrapped__"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(onnxgrad, name)


@pytest.mark.slow
def test_star_import() -> None:
    assert _python("from onnxgrad import *; print(callable(gradient), __version__ != '')") == (
        "True True\n"
    )


def test_names_that_are_a_folder_and_no_module() -> None:
    folders = {n for n in surface.__all__ if (ROOT / "onnxgrad" / n).is_dir()}
    assert folders - {"train"} == {"rewrite", "verify"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rewrite", "verify"])
def test_a_function_called_as_its_folder(name: str) -> None:
    text = f"import onnxgrad.{name} as _, sys, onnxgrad; print(callable(onnxgrad.{name}))"
    assert _python(text) == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["import onnxgrad", "import onnxgrad.cli.app"])
def test_little_is_imported(what: str) -> None:
    text = f"{what}; import sys; print(len({{'onnx', 'numpy', 'rich'}} & set(sys.modules)))"
    assert _python(text) == "0\n"
    assert _python("import onnxgrad, sys; onnxgrad.gradient; print('onnx' in sys.modules)") == (
        "True\n"
    )


def test_help_imports_no_model_code() -> None:
    text = (
        "import sys; from onnxgrad.cli.app import main; code = main(['--help']); "
        "print(code, len({'onnx', 'numpy'} & set(sys.modules)))"
    )
    assert _python(text).splitlines()[-1] == "0 0"
