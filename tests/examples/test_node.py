"""Training in Node.js: the losses are Python's, and what it saves Python takes up."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import train
from onnxgrad.verify.running.session import run
from scripts.examples.make_digits import batch, digits, network, write
from tests.examples.common import (
    CLIENT,
    EXAMPLES,
    STEPS,
    assert_same_files,
    assert_same_losses,
    described,
    need,
    trained,
)
from tests.train.common import examples, step

pytestmark = pytest.mark.node


def node(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = need("onnxruntime-node", shutil.which("node"), "node")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=120)


def losses_of(folder: Path, *arguments: str | Path, steps: int = STEPS) -> list[float]:
    """The losses of some steps."""
    log = folder / "log.jsonl"
    done = node("node/train.mjs", folder, "--steps", str(steps), "--log", log, *arguments)
    assert done.returncode == 0 and "that were held out" in done.stdout, done.stderr
    return [json.loads(line)["loss"] for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [("mlp", "sgd"), ("cnn", "sgd"), ("mlp", "momentum"), ("cnn", "momentum"), ("mlp", "adamw")],
)
def test_losses_are_those_of_python(network: str, optimizer: str, tmp_path: Path) -> None:
    write(tmp_path, network, optimizer)
    assert_same_losses(losses_of(tmp_path), tmp_path)


def test_what_is_saved_is_what_python_reads(tmp_path: Path) -> None:
    write(tmp_path, "cnn")
    described(tmp_path)
    state, model = tmp_path / "trained.safetensors", tmp_path / "trained.onnx"
    losses_of(tmp_path, "--save", state, "--model", model)
    assert_same_files(state, model, tmp_path)


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "mlp", "adamw")
    first = losses_of(tmp_path, "--save", tmp_path / "a", steps=7)
    rest = losses_of(tmp_path, "--from", tmp_path / "a", "--save", tmp_path / "broken")
    assert first + rest == losses_of(tmp_path, "--save", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "broken").read_bytes()


def test_a_run_that_python_began_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "cnn", "adamw")
    trainer, first = trained(tmp_path, 7)
    trainer.save(tmp_path / "python")
    assert_same_losses(first + losses_of(tmp_path, "--from", tmp_path / "python"), tmp_path)


def test_a_state_of_another_model_or_a_damaged_one(tmp_path: Path) -> None:
    for name in ("mlp", "cnn"):
        write(tmp_path / name, name)
    state = tmp_path / "cnn" / "state.safetensors"
    done = node("node/train.mjs", tmp_path / "mlp", "--from", state)
    assert (done.returncode, done.stderr) == (1, "train.mjs: the state is of another model\n")
    (tmp_path / "short").write_bytes(state.read_bytes()[:-9])
    done = node("node/train.mjs", tmp_path / "cnn", "--from", tmp_path / "short")
    assert done.returncode == 1 and "the file ends before" in done.stderr


def test_no_step_and_one_of_a_newer_version(tmp_path: Path) -> None:
    done = node("node/train.mjs", tmp_path / "nothing")
    assert done.returncode == 1 and "manifest.json" in done.stderr
    write(tmp_path)
    manifest = tmp_path / "manifest.json"
    newer = {**json.loads(manifest.read_text(encoding="utf-8")), "version": 99}
    manifest.write_text(json.dumps(newer), encoding="utf-8")
    done = node("node/train.mjs", tmp_path)
    assert done.stderr == "train.mjs: manifest.json is of version 99, 3 is read here\n"


def test_a_rate_that_is_too_high_keeps_the_last_good_values(tmp_path: Path) -> None:
    write(tmp_path, "mlp", "sgd")
    done = node("node/train.mjs", tmp_path, "--rate", "1e30")
    assert done.returncode == 1
    assert done.stderr.startswith("train.mjs: step 2: the loss is ")


def script(folder: Path, text: str) -> str:
    """What JavaScript says that has a training step, a good batch and `batchOf`."""
    source = folder / "try.mjs"
    source.write_text(
        f"""
        import {{ createRequire }} from "node:module";
        import {{ readFile }} from "node:fs/promises";
        const {{ Training }} = await import("{CLIENT.as_uri()}/src/index.mjs");
        const {{ batchOf, chosen, parse }} = await import("{EXAMPLES.as_uri()}/digits.mjs");
        const ort = createRequire("{EXAMPLES}/")("onnxruntime-node");
        const training = await Training.open(ort, (file) => readFile(`{folder}/${{file}}`));
        const digits = parse(await readFile("{EXAMPLES}/digits.txt", "utf8")).training;
        const pixels = digits[3].pixels;
        const good = batchOf([digits[3]]);
        {text}
        """,
        encoding="utf-8",
    )
    done = node(source)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tied_network(layers: int) -> onnx.ModelProto:
    """The digits' 64 pixels through a matrix and back through its transpose, which is a copy, then
    through normalisations that are one initializer each.
    """
    lines = "".join(
        f"n{i} = LayerNormalization (h{i}, scale)  h{i + 1} = MatMul (n{i}, w{i})"
        for i in range(layers)
    )
    text = f"""
    <ir_version: 8, opset_import: ["" : 18]>
    digits (float[N, 64] x) => (float[N, 10] logits) {{
      a = MatMul (x, w)  r = Relu (a)  h0 = MatMul (r, copy)  {lines}  logits = MatMul (h{layers}, out)
    }}
    """
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.1, shape) for name, shape in
              [("w", (64, 8)), ("out", (64, 10)), *((f"w{i}", (64, 64)) for i in range(layers))]}  # fmt: skip
    arrays |= {"copy": arrays["w"].T, "scale": np.ones(64)}
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ascontiguousarray(a, np.float32), n)
        for n, a in arrays.items()
    )
    return model


def test_the_averages_are_exported(tmp_path: Path) -> None:
    """The weights need no runtime, so that the script has a class of tensors only."""
    made = step(average=0.9)
    trainer = train.Trainer(made, threads=1, rate=0.1)
    for number in range(5):
        trainer.step(examples(8, seed=number))
    train.save_step(made, tmp_path)
    trainer.save(tmp_path / "state")
    trainer.deploy(tmp_path / "expected.onnx", averaged=True)
    program = shutil.which("node") or pytest.skip("there is no node on the path")
    (tmp_path / "run.mjs").write_text(f"""
        import {{ readFileSync, writeFileSync }} from "node:fs";
        import {{ parse }} from "{CLIENT.as_uri()}/src/manifest.mjs";
        import {{ Training, withInitializers }} from "{CLIENT.as_uri()}/src/index.mjs";
        class Tensor {{ constructor(type, data, dims) {{ Object.assign(this, {{ type, data, dims }}); }} }}
        const file = (name) => new Uint8Array(readFileSync("{tmp_path}/" + name));
        const training = new Training({{ Tensor }}, parse(file("manifest.json")), () => null);
        training.restore(file("state"));
        const bytes = withInitializers(file("predict.onnx"), training.averaged(), training);
        writeFileSync("{tmp_path}/made.onnx", bytes);
        training.manifest.inputs.average[0].dtype = "float64";
        try {{ training.averaged(); }} catch (error) {{ console.log(error.message); }}
        delete training.manifest.inputs.average;
        try {{ training.averaged(); }} catch (error) {{ console.log(error.message); }}
    """)
    done = subprocess.run(
        [program, tmp_path / "run.mjs"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    other, none = done.stdout.splitlines()
    assert "is float32, its average float64: export with Python's Trainer" in other
    assert "the step keeps no average" in none


def exported_by_script(folder: Path, model: onnx.ModelProto) -> tuple[str, train.TrainingStep]:
    """What exporting after 20 steps says, with the model in `trained.onnx`."""
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "digits.onnx")
    step = train.training_step(model, train.CrossEntropy(), train.SGD(lr=0.05), tie=["w=copy"])
    train.save_step(step, folder)
    said = script(
        folder,
        f"""
        import {{ writeFileSync }} from "node:fs";
        const {{ withWeights }} = await import("{CLIENT.as_uri()}/src/index.mjs");
        for (let k = 0; k < 20; k++) await training.step(batchOf(chosen(digits, k)));
        const model = await readFile("{folder}/digits.onnx");
        try {{
          const bytes = withWeights(model, training.weights(), training);
          writeFileSync("{folder}/trained.onnx", bytes);
        }} catch (error) {{
          console.log(error.message);
        }}
        """,
    )
    return said, step


def test_a_tied_weight_goes_into_both_copies(tmp_path: Path) -> None:
    model = tied_network(1)
    said, step = exported_by_script(tmp_path, model)
    assert not said and [t.copy for t in step.manifest.repairs.tied] == ["copy"]
    trainer, _ = trained(tmp_path)
    wanted = {
        t.name: onnx.numpy_helper.to_array(t) for t in trainer.export(model).graph.initializer
    }
    written = onnx.load(tmp_path / "trained.onnx")
    found = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    before = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert np.array_equal(found["copy"], found["w"].T)
    assert not np.allclose(found["copy"], before["copy"], atol=1e-4)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert array == pytest.approx(wanted[name], abs=1e-5)


def test_a_parameter_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    said, step = exported_by_script(tmp_path, tied_network(2))
    (added,) = {u.name for u in step.manifest.repairs.untied}
    assert said == f"the file lacks the parameter '{added}': export with Python's Trainer\n"
    assert not (tmp_path / "trained.onnx").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("{ x: good.x }", "the batch lacks 'labels'"),
        ("batchOf([{ pixels, label: 10 }])", "'labels' has 10, but labels go from 0 to 9"),
        ("batchOf([{ pixels, label: -1 }])", "'labels' has -1, but labels go from 0 to 9"),
        ("batchOf([{ pixels, label: -100 }, { pixels, label: 1 }])", None),
        ("[good, good]", "a step takes 1 batches"),
    ],
)
def test_a_batch_that_does_not_fit(batch: str, message: str | None, tmp_path: Path) -> None:
    write(tmp_path)
    said = script(
        tmp_path,
        f"""
        await training.step(good, 0.1);
        await training.step({batch}, 0.1).catch((error) => console.log(error.message));
        console.log(training.steps);
        """,
    )
    assert said == (f"{message}\n1\n" if message else "2\n")


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0, "average": 0.9, "metrics": ["logits"]}])
def test_half_batches_that_are_accumulated(options: dict[str, Any], tmp_path: Path) -> None:
    loss, optimizer = train.CrossEntropy(), train.AdamW(lr=0.005)
    whole = train.training_step(network("mlp"), loss, optimizer, **options)
    train.save_step(whole, tmp_path / "whole")
    halves = train.training_step(network("mlp"), loss, optimizer, accumulate=2, **options)
    train.save_step(halves, tmp_path / "halves")
    found = steps(tmp_path / "whole")
    parts = "[batchOf(rows.slice(0, 16)), batchOf(rows.slice(16))]"
    assert found == pytest.approx(steps(tmp_path / "halves", parts), abs=1e-5)
    assert_same_losses(found, tmp_path / "whole")


def steps(folder: Path, batch: str = "batchOf(rows)") -> list[float]:
    """The losses of 20 steps."""
    said = script(
        folder,
        f"""
        const losses = [];
        for (let k = 0; k < 20; k++) {{
          const rows = chosen(digits, k);
          losses.push(await training.step({batch}));
        }}
        console.log(JSON.stringify(losses));
        """,
    )
    return json.loads(said)


def test_a_round_of_federated_training(tmp_path: Path) -> None:
    """FedProx: a batch has the weights of the round's beginning, which are another's here."""
    loss = train.CrossEntropy() + 0.5 * train.ProximalPenalty("*")
    step = train.training_step(network("mlp"), loss, train.SGD(lr=0.05))
    train.save_step(step, tmp_path)
    trainer = train.Trainer(tmp_path, threads=1, engine="graph")
    expected = []
    for begin in (0, 10):
        anchors = trainer.anchors
        expected += [trainer.step({**batch(k), **anchors}) for k in range(begin, begin + 10)]
    said = script(
        tmp_path,
        """
        const losses = [];
        let anchors;
        for (let k = 0; k < 20; k++) {
          if (k % 10 === 0) anchors = training.anchors();
          losses.push(await training.step({ ...batchOf(chosen(digits, k)), ...anchors }));
        }
        console.log(JSON.stringify(losses));
        """,
    )
    assert json.loads(said) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.95 * expected[0]


def test_dropout_and_running_statistics(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    digits (float[N, 64] x) => (float[N, 10] logits) {
      h = Gemm (x, w1, b1)
      n = BatchNormalization (h, scale, shift, mean, variance)
      r = Relu (n)
      d = Dropout (r, ratio)
      logits = Gemm (d, w2, b2)
    }
    """
    model = onnx.parser.parse_model(text)
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in network("mlp").graph.initializer}
    zeros, ones = np.zeros(32, np.float32), np.ones(32, np.float32)
    weights |= {"scale": ones, "shift": zeros, "mean": zeros, "variance": ones}
    for name, value in {**weights, "ratio": np.array(0.3, np.float32)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    step = train.training_step(
        model, train.CrossEntropy(), train.SGD(lr=0.05), batch_norm="train", dropout="train"
    )
    train.save_step(step, tmp_path)
    assert {"seed", "statistic"} <= {fed.role for fed in step.manifest.inputs}
    assert_same_losses(steps(tmp_path), tmp_path)
    trainer, _ = trained(tmp_path)
    said = script(
        tmp_path,
        """
        for (let k = 0; k < 20; k++) await training.step(batchOf(chosen(digits, k)));
        const { logits } = await training.predict({ x: good.x });
        const { mean } = Object.fromEntries(training.weights());
        console.log(JSON.stringify([[...logits.data], [...mean.data]]));
        """,
    )
    logits, mean = json.loads(said)
    exported = trainer.export(model)
    held = {i.name: onnx.numpy_helper.to_array(i) for i in exported.graph.initializer}
    assert mean == pytest.approx(held["mean"], abs=1e-5) and any(mean)
    expected = run(exported, {"x": digits()[0][3:4]})["logits"]
    assert logits == pytest.approx(np.asarray(expected)[0], abs=1e-4)
