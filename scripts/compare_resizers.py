"""How close the modes of `resize` are to Pillow, OpenCV and torchvision, which must be installed:
`python scripts/compare_resizers.py [--write]`; and how long they take: `--time [--write]`.

Seven images of noise on waves are resized by each library and by a graph in onnxruntime. `--write`
writes the record and tests/data/resize.npz, results of the libraries on a small image with which
the tests compare. `--time` needs no library: the graph and onnxruntime's Resize run in turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, parser

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.ir.emission.emit import emitting  # noqa: E402
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.transform.preprocessing import resampling  # noqa: E402
from onnxgrad.transform.preprocessing.modes import MODES  # noqa: E402
from onnxgrad.verify.running.session import run  # noqa: E402
from scripts.records import write_record  # noqa: E402

SIZES = (
    ((375, 500), (256, 341)), ((97, 131), (224, 300)), ((480, 640), (224, 224)),
    ((333, 517), (224, 224)), ((720, 1280), (360, 640)), ((5, 7), (9, 4)),
    ((500, 333), (224, 224)),
)  # fmt: skip
PACKAGES = ("pillow", "opencv-python-headless", "torch", "torchvision")
TIMED = (((1080, 1920), (224, 224)), ((1080, 1920), (640, 640)), ((480, 640), (224, 224)),
    ((480, 640), (640, 640)))  # fmt: skip
_KINDS = {"bilinear": "linear", "bicubic": "cubic"}  # the words of Resize, of which nearest is one
_DTYPES = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


def image(height: int, width: int, seed: int = 0) -> Any:
    """Returns noise on waves, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([127 + 100 * np.sin(x / 7 + k) * np.cos(y / 11 + k) for k in range(3)], -1)
    return np.clip(waves + rng.normal(0, 40, waves.shape), 0, 255).astype(np.uint8)


def of_library(x: Any, height: int, width: int, name: str) -> Any:
    """Returns an image [H, W, C] as the library resizes it."""
    library, _, kind = name.partition("-")
    if library == "pil":
        from PIL import Image

        how = getattr(Image.Resampling, kind.upper())
        if x.dtype == np.uint8:
            return np.asarray(Image.fromarray(x).resize((width, height), how))
        planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in np.moveaxis(x, -1, 0)]
        return np.stack([np.asarray(p.resize((width, height), how)) for p in planes], -1)
    if library == "opencv":
        import cv2

        how = getattr(cv2, f"INTER_{kind.upper()}")
        return cv2.resize(x, (width, height), interpolation=how).reshape(height, width, -1)
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as v1
    from torchvision.transforms.v2 import functional as v2

    resize = v1.resize if kind.startswith("v1-") else v2.resize
    made = resize(
        torch.from_numpy(x).permute(2, 0, 1),
        [height, width],
        InterpolationMode(kind.removeprefix("v1-")),
        antialias=library == "torchvision",
    )
    return made.permute(1, 2, 0).numpy()


def graph(name: str, height: int, width: int, dtype: str) -> ModelProto:
    """Returns a model that resizes images x [N, C, H, W] of any size to y."""
    x, y = (
        helper.make_tensor_value_info(n, _DTYPES[dtype], s)
        for n, s in (("x", ["N", "C", "H", "W"]), ("y", ["N", "C", height, width]))
    )
    identity = helper.make_node("Identity", ["x"], ["y"])
    plain = helper.make_graph([identity], "resize", [x], [y])
    opset = [helper.make_opsetid("", 13)]
    program = load(helper.make_model(plain, opset_imports=opset, ir_version=8))
    block = program.main
    with emitting(block, share=True):
        block.replace(
            block.outputs[0], resampling.resized(block.inputs[0], height, width, MODES[name])
        )
    block.remove_unused()
    return to_proto(program)


def of_graph(x: Any, height: int, width: int, name: str) -> Any:
    """Returns an image [H, W, C] as the graph resizes it in onnxruntime."""
    made = graph(name, height, width, str(x.dtype))
    feeds = {"x": np.ascontiguousarray(x.transpose(2, 0, 1)[None])}
    return np.asarray(run(made, feeds)["y"])[0].transpose(1, 2, 0)


def compared(name: str) -> str:
    """Returns the row of a mode."""
    share, most, floats = [], 0, 0.0
    for old, new in SIZES:
        x = image(*old)
        wanted, made = of_library(x, *new, name).astype(int), of_graph(x, *new, name).astype(int)
        share.append(wanted.ravel() != made.ravel())
        most = max(most, int(np.abs(wanted - made).max()))
        x = (x / np.float32(255)).astype(np.float32)
        wanted, made = of_library(x, *new, name), of_graph(x, *new, name)
        floats = max(floats, float(np.abs(wanted - made).max()))
    part = np.concatenate(share).mean()
    return f"| `{name}` | {f'{part:.1g}' if part else 0} | {most} | {floats:.1g} |"


def timed(name: str) -> str:
    """Returns the row of a mode: milliseconds, and those of onnxruntime's Resize."""
    cells = []
    for old, (height, width) in TIMED:
        x = image(*old)[None]
        head = '<ir_version: 9, opset_import: ["" : 18]> g (uint8[1,H,W,3] x) => '
        shape = f"float[1,3,{height},{width}]"
        plain = parser.parse_model(
            f"{head.replace('uint8[1,H,W,3]', shape)} ({shape} y) {{ y = Identity (x) }}"
        )
        steps = f"resize{{size=[{height},{width}],mode={name}}}"
        ours = onnxgrad.preprocess(plain, steps, verify=False)
        library, _, kind = name.partition("-")
        kind = _KINDS.get(kind.removeprefix("v1-"), kind)
        wide = int(kind != "nearest" and library in ("pil", "torchvision"))
        how = f'Resize <mode = "{kind}", antialias = {wide}>'
        planes = "c = Transpose <perm = [0, 3, 1, 2]>"
        size = f"1, 3, {height}, {width}"
        if kind == "cubic" and not wide:  # which onnxruntime has for float32 alone
            body = f"{planes} (x) f = Cast <to = 1> (c) y = {how} (f, , , size)"
        elif wide:
            body = f"{planes} (x) r = {how} (c, , , size) y = Cast <to = 1> (r)"
        else:
            size = f"1, {height}, {width}, 3"
            body = f"r = {how} (x, , , size) {planes} (r) y = Cast <to = 1> (c)"
        theirs = parser.parse_model(f"{head} ({shape} y) <int64[4] size = {{{size}}}> {{ {body} }}")
        both = [_session(model) for model in (ours, theirs)]
        times = [[_time(s, x) for s in both] for _ in range(9)]
        mine, other = np.median(times[1:], axis=0) * 1e3
        cells.append(f"{mine:.1f} ({other:.1f})")
    return f"| `{name}` | {' | '.join(cells)} |"


def _session(model: ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    serial = model.SerializeToString()
    return onnxruntime.InferenceSession(serial, options, providers=["CPUExecutionProvider"])


def _time(session: Any, x: Any) -> float:
    begin = time.process_time()
    session.run(None, {"x": x})
    return time.process_time() - begin


def golden() -> dict[str, Any]:
    """Returns a small image, and what the libraries make of it."""
    small = image(13, 19, 1)
    floats = (small[..., :1] / np.float32(255)).astype(np.float32)
    found: dict[str, Any] = {"image": small}
    for name in MODES:
        found |= {f"{name} {h} {w}": of_library(small, h, w, name) for h, w in ((7, 8), (16, 12))}
        found[f"{name} float"] = of_library(floats, 7, 8, name)
    return found | _recipes(small)


def _recipes(small: Any) -> dict[str, Any]:
    """Returns the image after Resize and CenterCrop of torchvision, and in a letterbox."""
    import cv2
    from PIL import Image
    from torchvision.transforms import v2

    picture = Image.fromarray(small)
    crop = v2.Compose([v2.Resize(11), v2.CenterCrop(8)])
    normalized = v2.Compose(
        [
            crop,
            v2.PILToTensor(),
            v2.ToDtype(_float32(), scale=True),
            v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
        ]
    )
    inside = cv2.resize(small, (24, 16), interpolation=cv2.INTER_LINEAR)
    return {
        "crop": np.asarray(crop(picture)),
        "padded": np.asarray(v2.CenterCrop((16, 12))(picture)),
        "normalized": normalized(picture).numpy(),
        "letterbox": cv2.copyMakeBorder(inside, 4, 4, 0, 0, cv2.BORDER_CONSTANT, value=(114,) * 3),
    }


def _float32() -> Any:
    import torch

    return torch.float32


def main() -> None:
    """Prints the table, and writes it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--write", action="store_true", help="write the record and the test data")
    options.add_argument("--time", action="store_true", help="measure times instead")
    args = options.parse_args()
    if args.time:
        sizes = [f"{h} x {w} to {m} x {n}" for (h, w), (m, n) in TIMED]
        names = [name for name in MODES if name.endswith(("nearest", "linear", "cubic"))]
        lines = [
            "uint8 [1, H, W, 3] to float32 [1, 3, h, w], milliseconds of CPU time on one thread, "
            "medians of 8 in turns; in",
            "parentheses onnxruntime's Resize with Transpose and Cast, in their fastest order; its "
            "values differ.",
            "",
            f"| mode | {' | '.join(sizes)} |",
            f"|---|{'---|' * len(sizes)}",
            *(timed(name) for name in names),
        ]
        print("\n".join(lines))
        if args.write:
            write_record("resize_time", lines)
        return
    lines = [
        ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
        + ". uint8: the share of "
        "values that differ, and the largest difference of 255; float32 from 0 to 1: the largest",
        "difference.",
        "",
        "| mode | uint8: differ | at most | float32: at most |",
        "|---|---|---|---|",
        *(compared(name) for name in MODES),
    ]
    print("\n".join(lines))
    if args.write:
        write_record("resize", lines)
        np.savez_compressed(ROOT / "tests" / "data" / "resize.npz", **golden())


if __name__ == "__main__":
    main()
