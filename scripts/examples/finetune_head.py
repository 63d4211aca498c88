"""The head of a real model, retrained: a classifier of upside-down text learns to tell fonts apart.

    python scripts/fetch_models.py rapidocr_cls          # prints where the model lies
    python scripts/examples/finetune_head.py MODEL.onnx [-o FOLDER]

The model is PaddleOCR's angle classifier (from the package rapidocr-onnxruntime): a picture of a
line of text in, the probabilities of upright and of upside down out. Its last layer, fc_0, learns
another question: is the font without serifs, or with? The loss is of the scores before the Softmax;
the exported file differs from the original in the two weights of that layer and in nothing else.
FOLDER gets fonts.onnx and loss.png. Needs matplotlib, which draws the words.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from onnxgrad import Trainer, diff, train, training_step

SCORES, OUTPUT = "linear_1.tmp_1", "save_infer_model/scale_0.tmp_1"


def picture(rng, font):
    """A random word in black on white, 48 by 192, in the range -1 to 1 that the model reads."""
    word = "".join(rng.choice(list("abcdefghiklmnoprstuvwxyzABCDEFGHIKLMNOPRST"), 8))
    canvas = FigureCanvasAgg(Figure(figsize=(1.92, 0.48), dpi=100))
    size = rng.uniform(18, 24)
    canvas.figure.text(0.5, 0.5, word, ha="center", va="center", family=font, fontsize=size)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return pixels.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1


def words(count, seed):
    """Pictures of words and which of the two fonts each is in."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    fonts = ["DejaVu Sans", "DejaVu Serif"]
    return {"x": np.stack([picture(rng, fonts[k]) for k in labels]), "labels": labels}


def right(model, data):
    """The share of pictures that a model puts right, in stock onnxruntime."""
    session = ort.InferenceSession(model)
    return float((session.run([OUTPUT], {"x": data["x"]})[0].argmax(1) == data["labels"]).mean())


def main(model, folder=None):
    data, held_out = words(256, seed=1), words(128, seed=2)
    step = training_step(model, train.CrossEntropy(SCORES), train.AdamW(), "fc_0.*")
    trainer = Trainer(step, rate=0.05)
    history = trainer.fit(data, epochs=14)
    tuned = trainer.export(model)
    before, after = right(model, held_out), right(tuned.SerializeToString(), held_out)
    print(f"right on held-out words: {before:.3f} -> {after:.3f}")
    print(diff(model, tuned))
    if folder:
        trainer.export(model, folder / "fonts.onnx")
        history.plot(folder / "loss.png")
    return tuned, history.losses, before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="where fetch_models.py has put rapidocr_cls")
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    arguments = parser.parse_args()
    main(arguments.model, arguments.o)
