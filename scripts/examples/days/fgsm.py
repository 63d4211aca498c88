"""FGSM: a classifier is deceived by one small step along the sign of its gradient.

    python scripts/fetch_models.py rapidocr_cls          # prints where the model lies
    python scripts/examples/days/fgsm.py MODEL.onnx

The model is PaddleOCR's angle classifier: a line of text in, upright or upside down out. No grey
level moves by more than 6 of 255 (Goodfellow et al., "Explaining and harnessing adversarial
examples", 2015). Needs Pillow.
"""

import sys

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageDraw

import onnxgrad

page = Image.new("RGB", (192, 48), "white")
ImageDraw.Draw(page).text((96, 24), "onnxgrad", "black", font_size=32, anchor="mm")
picture = np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
graph = onnxgrad.gradient(sys.argv[1], "x", "linear_1.tmp_1[:,0]")
session = ort.InferenceSession(graph.SerializeToString())
before, slope = session.run(None, {"x": picture})
attacked = np.clip(picture - 6 / 127.5 * np.sign(slope), -1, 1)
after, _ = session.run(None, {"x": attacked})
print(f"upright: {before[0, 0]:.4f} -> {after[0, 0]:.4f}")
