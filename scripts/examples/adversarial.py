"""Adversarial pictures: a real classifier is deceived by changes that hardly show (FGSM and PGD).

    python scripts/fetch_models.py rapidocr_cls          # prints where the model lies
    python scripts/examples/adversarial.py MODEL.onnx [-o FOLDER]

The model is PaddleOCR's angle classifier: a line of text in, upright or upside down out. `gradient`
adds the derivative of its scores by the picture, weighted by an input of the graph: here the score
of the wrong answer minus that of the right one. FGSM goes one step along the sign of it (Goodfellow
et al., "Explaining and harnessing adversarial examples", 2015); PGD goes many small ones and stays
within the same distance (Madry et al., 2018). FOLDER gets adversarial.png. Needs matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import onnxgrad

SCORES, OUTPUT = "linear_1.tmp_1", "save_infer_model/scale_0.tmp_1"
DISTANCE = 6 / 255 * 2  # 6 of 255 grey levels; the model reads -1 to 1


def picture(words):
    """Black on white, (1, 3, 48, 192), in the range -1 to 1 that the model reads."""
    canvas = FigureCanvasAgg(Figure(figsize=(1.92, 0.48), dpi=100))
    canvas.figure.text(0.5, 0.5, words, ha="center", va="center", fontsize=24)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return pixels.transpose(2, 0, 1)[None].astype(np.float32) / 127.5 - 1


def main(model, folder=None):
    graph = onnxgrad.gradient(model, "x", SCORES, adjoint="input")
    session = ort.InferenceSession(graph.SerializeToString())
    adjoint = np.array([[-1, 1]], np.float32)  # upright is class 0: less of it, more of the other

    def run(x):
        """P(upside down), and the derivative by the picture."""
        p, slope = session.run([OUTPUT, "x_grad"], {"x": x, f"{SCORES}_grad": adjoint})
        return float(p[0, 1]), slope

    x = picture("Deceived")

    def near(y):
        return np.clip(y, np.maximum(x - DISTANCE, -1), np.minimum(x + DISTANCE, 1))

    noise = near(x + DISTANCE * np.random.default_rng(0).choice([-1, 1], x.shape).astype("f"))
    fgsm = near(x + DISTANCE * np.sign(run(x)[1]))
    pgd = x
    for _ in range(20):
        pgd = near(pgd + DISTANCE / 8 * np.sign(run(pgd)[1]))
    pictures = {"as it is": x, "with noise": noise, "FGSM": fgsm, "PGD": pgd}
    found = {name: run(y)[0] for name, y in pictures.items()}
    for name, p in found.items():
        print(f"{name:10}  upside down: {p:.4f}")
    if folder:
        figure = Figure(figsize=(6, 6.4), layout="constrained")
        for axes, (name, y) in zip(figure.subplots(4), pictures.items()):
            axes.imshow((y[0].transpose(1, 2, 0) + 1) / 2)
            axes.set_title(f"{name}: upside down by {found[name]:.1%}")
            axes.axis("off")
        figure.savefig(folder / "adversarial.png", dpi=120)
    return pictures, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="where fetch_models.py has put rapidocr_cls")
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where the picture is written")
    arguments = parser.parse_args()
    main(arguments.model, arguments.o)
