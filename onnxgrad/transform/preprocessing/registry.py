"""Steps as text: `imagenet`, or `image,resize{size=256},center-crop{size=224},to-float`."""

from __future__ import annotations

from typing import TypeVar

from onnxgrad.errors import InputError
from onnxgrad.named_options import build, declared, split
from onnxgrad.transform.preprocessing import anchors, detection, heads, image_sizes, images
from onnxgrad.transform.preprocessing.steps import Before, Head, Source, Step
from onnxgrad.wording import perhaps

S = TypeVar("S", bound=Step)

BEFORE: dict[str, type[Before]] = {
    cls.name: cls for module in (images, image_sizes) for cls in declared(module, Before)
}
AFTER: dict[str, type[Head]] = {
    cls.name: cls for module in (heads, anchors, detection) for cls in declared(module, Head)
}

# the steps of well-known training recipes
PRESETS = {
    "imagenet": "resize{size=256,mode=pil-bilinear},center-crop{size=224},to-float,"
    "normalize{mean=[0.485,0.456,0.406],std=[0.229,0.224,0.225]}",
    "clip": "resize{size=224,mode=pil-bicubic},center-crop{size=224},to-float,"
    "normalize{mean=[0.48145466,0.4578275,0.40821073],std=[0.26862954,0.26130258,0.27577711]}",
    "yolo": "letterbox{size=640},to-float",
    "yolox": "bgr,letterbox{size=640,place=corner}",
}
HEADS = {
    "classify": "softmax,top-k{k=5}",
    "detect": "boxes{format=yolov8},nms,to-image",
}


def steps_before(text: str, where: str) -> tuple[Source, list[Before]]:
    """Returns the source and the other steps of a text; an image, or tokens, is the source if it
    names none. Raises InputError.
    """
    found = _steps(text, BEFORE, PRESETS, where)
    kind = found[0].kind
    default = images.Image() if kind == "image" else images.Tokens()
    source = found.pop(0) if isinstance(found[0], Source) else default
    for step in found:
        if isinstance(step, Source):
            raise InputError(f"{where}: {step.name} describes the input, so it must be the first")
        if step.kind != kind:
            raise InputError(
                f"{where}: {step.name} does not work on {'an ' * (kind == 'image')}{kind}"
            )
    assert isinstance(source, Source)
    return source, found


def steps_after(text: str, where: str) -> list[Head]:
    """Returns the heads of a text. Raises InputError."""
    return _steps(text, AFTER, HEADS, where)


def _steps(text: str, classes: dict[str, type[S]], presets: dict[str, str], where: str) -> list[S]:
    made: list[S] = []
    for name, options in split(text, f"steps of {where}"):
        if name in presets and options is None:
            made += _steps(presets[name], classes, presets, where)
            continue
        if name in presets:
            raise InputError(
                f"{where}: {name} has no options; write its steps instead: {presets[name]}"
            )
        if name not in classes:
            known = [*classes, *presets]
            other = {*AFTER, *HEADS} if presets is PRESETS else {*BEFORE, *PRESETS}
            belongs = (
                "" if name not in other else f"; {name} belongs on the other side of the model"
            )
            raise InputError(
                f"{where}: unknown step '{name}'{belongs or perhaps(name, known)}: choose from "
                f"{', '.join(known)}"
            )
        made.append(build(name, classes[name], options or ""))
    if not made:
        raise InputError(f"{where}: no steps are named")
    return made
