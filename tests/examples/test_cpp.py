"""The C++ client meets the shipped vectors, and Python continues from its checkpoint.

It needs a C++ compiler and onnxruntime_c_api.h, in a folder of the compiler or in ONNXRUNTIME_INCLUDE; the library comes
with the Python package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import Trainer, save_step
from onnxgrad.train.step_folder import DEPLOYED, VECTOR, VECTORS
from tests.examples.common import odd_step
from tests.helpers import ROOT
from tests.train.common import examples, step

CLIENT = ROOT / "scripts" / "clients" / "cpp"
HEADER = "onnxruntime_c_api.h"
PLACES = ("", "onnxruntime", "onnxruntime/core/session")
OPTIONS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]


def compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return found or pytest.skip("there is no C++ compiler on the path")


def include() -> Path:
    """The folder of onnxruntime's header."""
    own = os.environ.get("ONNXRUNTIME_INCLUDE")
    roots = [Path(own)] if own else [Path("/usr/include"), Path("/usr/local/include")]
    folders = (root / place for root in roots for place in PLACES)
    found = next((folder for folder in folders if (folder / HEADER).is_file()), None)
    return found or pytest.skip(f"there is no {HEADER}: name its folder in ONNXRUNTIME_INCLUDE")


def done(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpp")
    capi = Path(onnxruntime.__file__).parent / "capi"
    library = folder / "libonnxruntime.so.1"
    library.symlink_to(next(capi.glob("libonnxruntime.so*")))
    made = folder / "vector"
    built = done(
        compiler(), *OPTIONS, "-I", include(), CLIENT / "vector.cpp", library,
        f"-Wl,-rpath,{folder}", "-o", made,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "full"])
def test_the_vectors_are_met(name: str, program: Path, tmp_path: Path) -> None:
    ran = done(program, VECTORS / name, tmp_path / "state")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *losses, last = ran.stdout.splitlines()
    arrays, _ = safetensors_file.read(VECTORS / name / VECTOR)
    np.testing.assert_allclose([*map(float, losses)], arrays["losses"], rtol=0, atol=1e-5)
    assert last.startswith("largest difference ")
    # Python takes up what C++ saved
    trainer = Trainer(VECTORS / name, rate=float(arrays["rate"]), threads=1)
    trainer.restore(tmp_path / "state")
    assert (trainer.progress.steps, trainer.progress.seed) == (10, 7)
    batches = {k.removeprefix("batch."): a for k, a in arrays.items() if k.startswith("batch.")}
    outputs = trainer.evaluate({k: a[0] for k, a in batches.items()}, batch_size=4)
    assert outputs["loss"] < arrays["losses"][0]


@pytest.mark.slow
def test_what_is_damaged_is_said(program: Path, tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    shutil.copytree(VECTORS / "full", sound)
    state, manifest = (sound / name for name in ("state.safetensors", "manifest.json"))
    first, text = state.read_bytes(), manifest.read_text()
    cases = {
        state: {
            b"": "is not a safetensors file",
            first[:-3]: "ends before",
            first.replace(b"[4,3]", b"[3,4]"): "has another type for 'w'",
            first.replace(b"[4,3]", b"[-1,]"): "no JSON",
            first.replace(b'"F32"', b'"F99"'): "the type F99 is not known here",
            first.replace(b"onnxgrad", b"nobodies"): "is of another model",
        },
        manifest: {
            text[:100].encode(): "no JSON",
            text.replace('"version": 3', '"version": 4').encode(): "another version than 3",
            text.replace("training step", "cake").encode(): "is of no training step",
            text.replace('"accumulate": 2', '"accumulate": 3').encode(): "an array has no row 20",
            text.replace('"train.onnx",', '"none.onnx",', 1).encode(): "none.onnx",
        },
    }  # fmt: skip
    for path, changes in cases.items():
        for content, words in changes.items():
            path.write_bytes(content)
            ran = done(program, sound, tmp_path / "out")
            assert ran.returncode in (1, 2) and words in ran.stderr, (content[:80], ran)
            assert ran.stderr.count("\n") <= 1
        path.write_bytes(first if path == state else text.encode())
    assert done(program, sound, tmp_path / "out").returncode == 0
    assert done(program, sound, tmp_path / "no" / "folder").returncode == 2


def test_the_functions_that_it_uses_are_listed() -> None:
    text = (CLIENT / "step.hpp").read_text()
    listed, code = text.split("#pragma once")
    used = set(re.findall(r"ort\(\)\.(\w+)", code))
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bRun\b", listed))
    assert {name for name in used if not name.startswith("Release")} == named - {
        "OrtGetApiBase",
        "GetApi",
    }


@pytest.mark.slow
def test_the_model_to_deploy_has_the_same_bytes(tmp_path: Path) -> None:
    """This header needs no onnxruntime."""
    text = """
        #include <cstdio>
        #include "onnx_weights.hpp"
        using namespace onnxgrad;
        int main(int argc, char** argv) {
          try {
            const std::filesystem::path folder = argv[1];
            const Json manifest = Json::parse(read_file(folder / "manifest.json"));
            Arrays values = Safetensors::read(argc > 3 ? argv[3] : folder / "state.safetensors").arrays;
            if (argc > 3) values = averaged(manifest, values);
            const std::string made =
                with_initializers(read_file(folder / "predict.onnx"), manifest, values, argc > 3 ? 5 : 0);
            std::ofstream(argv[2], std::ios::binary) << made;
          } catch (const std::exception& error) {
            std::fprintf(stderr, "%s", error.what());
            return 2;
          }
        }
    """
    (tmp_path / "deploy.cpp").write_text(text)
    program, made = tmp_path / "deploy", tmp_path / "m.onnx"
    built = done(compiler(), *OPTIONS, "-I", CLIENT, tmp_path / "deploy.cpp", "-o", program)
    assert built.returncode == 0, built.stderr
    odd = [odd_step(tmp_path / str(version), version) for version in (3, 8)]
    for folder in (*(VECTORS / name for name in ("plain", "full")), *odd):
        ran = done(program, folder, made)
        assert ran.returncode == 0, ran.stderr
        assert made.read_bytes() == (folder / DEPLOYED).read_bytes()
    trainer = Trainer(step(average=0.9), threads=1, rate=0.1)
    for number in range(5):
        trainer.step(examples(8, seed=number))
    save_step(step(average=0.9), tmp_path / "averaging")
    trainer.save(tmp_path / "state")
    trainer.deploy(tmp_path / "expected.onnx", averaged=True)
    ran = done(program, tmp_path / "averaging", made, tmp_path / "state")
    assert ran.returncode == 0, ran.stderr
    assert made.read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    ran = done(program, VECTORS / "plain", made, VECTORS / "plain" / "state.safetensors")
    assert ran.returncode == 2 and "the step keeps no average" in ran.stderr
    broken = tmp_path / "broken"
    shutil.copytree(VECTORS / "plain", broken)
    (broken / "predict.onnx").write_bytes((broken / "predict.onnx").read_bytes()[:-3])
    ran = done(program, broken, made)
    assert (ran.returncode, ran.stderr) == (2, "the ONNX file ends too early")
