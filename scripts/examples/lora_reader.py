"""LoRA on a trained transformer: a text reader learns to read noisy scans, by adapters alone.

    python scripts/fetch_models.py rapidocr_rec          # prints where the model lies
    python scripts/examples/lora_reader.py MODEL.onnx [-o FOLDER]

The model is PaddleOCR's PP-OCRv4 reader (of the package rapidocr-onnxruntime): convolutions, two
transformer blocks and a head over 6625 signs. With much noise it reads hardly a word right.
`lora` puts A and B of rank 8 beside the nine matrices behind the convolutions (Hu et al., "LoRA",
2021); only these learn, by CTC, and what the convolutions give is computed once. FOLDER gets
adapters.safetensors, which holds only the adapters, and merged.onnx. Needs matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from onnxgrad import Trainer, train, training_step

BEHIND, SCORES, OUTPUT = "p2o.AveragePool.1", "p2o.Add.277", "softmax_11.tmp_0"


def picture(rng, word):
    """A word in black on white with noise, 48 by 192, in the range -1 to 1 that the model reads."""
    canvas = FigureCanvasAgg(Figure(figsize=(1.92, 0.48), dpi=100))
    canvas.figure.text(0.5, 0.5, word, ha="center", va="center", fontsize=20)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].transpose(2, 0, 1) / 127.5 - 1
    return np.clip(pixels + rng.normal(0, 1, pixels.shape[1:]), -1, 1).astype(np.float32)


def words(count, seed, signs):
    """Pictures of words of 8 letters, and the letters as the model counts its signs."""
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 8)) for _ in range(count)]
    labels = np.array([[signs.index(letter) for letter in text] for text in texts])
    x = np.stack([picture(rng, text) for text in texts])
    return {"x": x, "labels": labels, "target_lengths": np.full(count, 8)}


def right(model, data):
    """The share of words that a model reads without a mistake, in stock onnxruntime."""
    found = ort.InferenceSession(model.SerializeToString()).run([OUTPUT], {"x": data["x"]})[0]
    best = found.argmax(-1)
    kept = (best != 0) & (best != np.pad(best, ((0, 0), (1, 0)))[:, :-1])  # CTC: no repetitions
    pairs = zip(best, kept, data["labels"].tolist())
    return float(np.mean([list(row[k]) == word for row, k, word in pairs]))


def main(path, folder=None):
    model = onnx.load(path)
    signs = ["blank", *{e.key: e.value for e in model.metadata_props}["character"].split("\n")]
    data, held_out = words(512, 1, signs), words(128, 2, signs)
    adapted = train.lora(model, "linear_*", rank=8)
    loss = train.CTC(SCORES, input_lengths=None, batch_first=True)
    step = training_step(adapted, loss, train.AdamW(), "*.lora_*", inputs_at=BEHIND)
    trainer = Trainer(step, rate=0.003)
    trainer.fit(train.features(adapted, BEHIND, data), epochs=5, batch_size=16)
    beside = trainer.export(adapted)
    merged, before, after = train.merge(beside), right(model, held_out), right(beside, held_out)
    count = sum(v.size for v in trainer.parameters.values())
    print(f"held-out words read right: {before:.3f} -> {after:.3f}, by {count} numbers more")
    if folder:
        train.save_adapters(beside, folder / "adapters.safetensors")
        onnx.save(merged, folder / "merged.onnx")
    return before, after, beside, merged, held_out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="where fetch_models.py has put rapidocr_rec")
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    arguments = parser.parse_args()
    main(arguments.model, arguments.o)
