"""The npm package: its own tests, its declarations, and what `npm pack` makes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from onnxgrad.train.step_folder import DEPLOYED, VECTORS
from tests.examples.common import CLIENT, EXAMPLES, need, odd_step

pytestmark = pytest.mark.node


def ran(folder: Path, program: str, *arguments: str | Path) -> str:
    """What a program of Node.js prints."""
    found = need("onnxgrad-step", shutil.which(program), program)
    command = [found, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests() -> None:
    said = ran(CLIENT, "node", "--test", "--test-reporter=tap")
    assert "# fail 0" in said and "# skipped 0" in said and "# pass 8" in said, said


def test_its_declarations_are_those_of_its_comments(tmp_path: Path) -> None:
    compiler = EXAMPLES / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.is_file():
        pytest.skip("typescript is not installed: cd scripts/examples && npm install")
    ran(CLIENT, "node", compiler, "-p", CLIENT, "--outDir", tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in (CLIENT / "types").iterdir()}
    text = """
        import { Training, type Batch } from "onnxgrad-step";
        import * as ort from "onnxruntime-node";
        const training: Training = await Training.open(ort, async () => new Uint8Array());
        const batch: Batch = { x: { type: "float32", dims: [1], data: new Float32Array(1) } };
        const loss: number = await training.step([batch, batch], 0.1);
        // @ts-expect-error: a name that the class lacks
        training.trainn(loss);
    """
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.ts").write_text(text)
    (tmp_path / "node_modules").symlink_to(EXAMPLES / "node_modules")
    options = [
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2023",
        "--skipLibCheck",
    ]
    ran(tmp_path, "node", compiler, *options, "program.ts")


def test_the_packed_package_runs(tmp_path: Path) -> None:
    (packed,) = json.loads(ran(CLIENT, "npm", "pack", "--json", "--pack-destination", tmp_path))
    files = {entry["path"] for entry in packed["files"]}
    source = {f"src/{path.name}" for path in (CLIENT / "src").iterdir()}
    types = {f"types/{path.name}" for path in (CLIENT / "types").iterdir()}
    assert files == {"package.json", "README.md", "LICENSE", *source, *types}
    with tarfile.open(tmp_path / packed["filename"]) as archive:
        archive.extractall(tmp_path, filter="data")
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (tmp_path / "package").rename(modules / "onnxgrad-step")
    for name in ("onnxruntime-node", "onnxruntime-common"):
        (modules / name).symlink_to(EXAMPLES / "node_modules" / name)
    program = """
        import { readFile } from "node:fs/promises";
        import * as ort from "onnxruntime-node";
        import { Training, withWeights, safetensors } from "onnxgrad-step";
        import { run } from "onnxgrad-step/vector";
        const [, , folder] = process.argv;
        const { error } = await run(ort, (file) => readFile(`${folder}/${file}`));
        console.log(JSON.stringify([error, typeof Training, typeof withWeights, typeof safetensors.read]));
    """
    (tmp_path / "program.mjs").write_text(program)
    error, *kinds = json.loads(ran(tmp_path, "node", "program.mjs", VECTORS / "full"))
    assert error < 1e-5 and kinds == ["function"] * 3


@pytest.mark.parametrize("ir_version", [3, 8])
def test_the_model_to_deploy_has_the_same_bytes(tmp_path: Path, ir_version: int) -> None:
    folder = odd_step(tmp_path / "step", ir_version)
    program = f"""
        import {{ readFile, writeFile }} from "node:fs/promises";
        import {{ safetensors, withInitializers }} from "{CLIENT.as_uri()}/src/index.mjs";
        import {{ ofModel, parse }} from "{CLIENT.as_uri()}/src/manifest.mjs";
        const [, , folder] = process.argv;
        const manifest = parse(await readFile(`${{folder}}/manifest.json`));
        const {{ values }} = safetensors.read(await readFile(`${{folder}}/state.safetensors`));
        const weights = new Map(ofModel(manifest).map(({{ name }}) => [name, values.get(name)]));
        const predict = await readFile(`${{folder}}/predict.onnx`);
        await writeFile(`${{folder}}/made`, withInitializers(predict, weights, {{ steps: 0 }}));
    """
    (tmp_path / "program.mjs").write_text(program)
    ran(tmp_path, "node", "program.mjs", folder)
    assert (folder / "made").read_bytes() == (folder / DEPLOYED).read_bytes()
