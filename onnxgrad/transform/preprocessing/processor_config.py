"""Reads the configuration of an image processor of Transformers (`preprocessor_config.json`) as
steps before an input.

One table has the processors whose arithmetic is that of the steps, with what their class sets if
the file does not. A field that no step expresses is refused by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import text_of
from onnxgrad.wording import option, perhaps


@dataclass(frozen=True)
class Processor:
    """What a class of processors sets: `number`, the meaning of a size that is one number; the
    number of its filter in Pillow; whether it crops and normalizes.
    """

    number: Literal["square", "shorter side", "shorter and longer side", "crop"]
    resample: int
    crops: bool = False
    normalizes: bool = True


_CLIP = Processor("shorter side", 3, crops=True)
_DETR = Processor("shorter and longer side", 2)
PROCESSORS = {
    "Bit": _CLIP,
    "Blip": Processor("square", 3),
    "ChineseCLIP": _CLIP,
    "CLIP": _CLIP,
    "ConditionalDetr": _DETR,
    "ConvNext": Processor("crop", 3),
    "DeformableDetr": _DETR,
    "DeiT": Processor("square", 3, crops=True),
    "Detr": _DETR,
    "GroundingDino": _DETR,
    "MobileNetV1": Processor("shorter side", 2, crops=True),
    "OwlViT": Processor("square", 3),
    "Pvt": Processor("square", 3),
    "RTDetr": Processor("shorter and longer side", 2, normalizes=False),
    "Siglip": Processor("shorter side", 3),
    "ViT": Processor("square", 2),
}

_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # of Pillow, by number
_OF_TORCHVISION = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}
_LONGEST = 1333  # of DETR, if the file has none
_SHARE = 224 / 256  # of ConvNeXt's crop
_EXACT_FROM = 384  # the size from which ConvNeXt does not crop

# fields that `steps_of` reads, and fields without influence on the pixels of one image
_READ = {
    "do_resize", "size", "max_size", "resample", "crop_pct", "do_center_crop", "crop_size",
    "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "do_pad", "pad_size",
}  # fmt: skip
_IDLE = {
    "image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys",
    "do_convert_rgb", "do_reduce_labels", "default_to_square", "format", "annotation_format",
    "do_convert_annotations", "return_segmentation_masks", "masks_path", "device", "use_fast",
    "disable_grouping", "return_tensors", "pad_and_return_pixel_mask", "num_labels",
    "ignore_index", "model_input_names",
}  # fmt: skip


def steps_of(path: str) -> str:
    """Returns the steps of a file as text. Raises InputError if it cannot be read, or has a field
    that no step expresses.
    """
    return _Reader(path).steps()


class _Reader:
    def __init__(self, path: str) -> None:
        self.where = f"{option('--config', 'config')}: {path}"
        try:
            text = text_of(Path(path))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputError(f"{self.where}: {why}") from None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.where} is not JSON: {error}") from None
        if isinstance(found, dict) and isinstance(found.get("image_processor"), dict):
            found = found["image_processor"]  # of a processor_config.json
        self.fields: Mapping[str, Any] = found if isinstance(found, dict) else {}
        name = self.fields.get("image_processor_type", self.fields.get("feature_extractor_type"))
        if not isinstance(name, str):
            raise InputError(
                f"{self.where} has no image_processor_type: pass the preprocessor_config.json of "
                "an image processor, or write the steps (--before)"
            )
        self.fast = name.endswith("Fast")
        family = name.removesuffix("Fast").removesuffix("Pil")
        family = family.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
        if family not in PROCESSORS:
            raise InputError(
                f"{self.where}: image_processor_type {name} is none of ours"
                f"{perhaps(family, PROCESSORS)}; these have steps: {', '.join(PROCESSORS)}; write "
                "the steps of others (--before)"
            )
        self.processor = PROCESSORS[family]
        for key, value in self.fields.items():
            idle = key in _READ | _IDLE or value is None or value is False
            if not idle and (key, value) not in (("data_format", "channels_first"),):
                raise self._refused(key, "no step expresses this field")

    def _refused(self, key: str, why: str) -> InputError:
        value = json.dumps(self.fields.get(key))[:60]
        return InputError(
            f"{self.where}: {key} = {value}: {why}; write the steps instead (--before)"
        )

    def _does(self, key: str, default: bool) -> bool:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._refused(key, "it must be true or false")
        return default if value is None else value

    def _number(self, key: str, default: float) -> float:
        value = self.fields.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self._refused(key, "it must be a number above 0")
        return value

    def steps(self) -> str:
        """Returns the steps. Raises InputError."""
        made = self._resized() if self._does("do_resize", True) else []
        if self._does("do_center_crop", self.processor.crops):
            made.append(f"center-crop{{size={self._exact('crop_size')},rounding=transformers}}")
            if made[1:] and self.fast and self._smallest("size") < self._smallest("crop_size"):
                raise self._refused("crop_size", "torchvision places zeros around it differently")
        if self._does("do_rescale", True):
            factor = self._number("rescale_factor", 1 / 255)
            levels = math.isclose(factor, 1 / 255, rel_tol=1e-6)
            made.append("to-float" if levels else f"scale{{factor={factor}}}")
        if self._does("do_normalize", self.processor.normalizes):
            numbers = [f"{name}={self._channels(f'image_{name}')}" for name in ("mean", "std")]
            made.append(f"normalize{{{','.join(numbers)}}}")
        if self._does("do_pad", False) and self.fields.get("pad_size") is not None:
            made.append(f"pad{{size={self._exact('pad_size')}}}")
        if not made:
            raise InputError(f"{self.where} has no step: neither resize, crop nor numbers")
        return ",".join(made)

    def _resized(self) -> list[str]:
        sides = self._sides("size")
        number = self.processor.number
        if self.fields.get("max_size") is not None and number != "shorter and longer side":
            raise self._refused("max_size", f"a {number} has no other limit")
        if self.fields.get("crop_pct") is not None and number != "crop":
            raise self._refused("crop_pct", "only ConvNeXt reads it")
        if set(sides) == {"height", "width"}:
            return [self._resize(f"size=[{sides['height']},{sides['width']}]")]
        if set(sides) == {"shortest_edge", "longest_edge"}:
            return [self._both(sides["shortest_edge"], sides["longest_edge"])]
        if set(sides) not in (set(), {"shortest_edge"}):
            raise self._refused("size", "no step has these sides")
        edge = int(sides.get("shortest_edge", self.fields["size"]))
        if number == "crop":
            return self._cropped(edge)
        if not sides and number == "square":
            return [self._resize(f"size=[{edge},{edge}]")]
        if not sides and number == "shorter and longer side":
            return [self._both(edge, int(self._number("max_size", _LONGEST)))]
        return [self._resize(f"size={edge}")]

    def _both(self, shortest: int, longest: int) -> str:
        return self._resize(f"size={shortest},max_size={longest},rounding=transformers")

    def _cropped(self, edge: int) -> list[str]:
        if edge >= _EXACT_FROM:
            return [self._resize(f"size=[{edge},{edge}]")]
        larger = int(edge / self._number("crop_pct", _SHARE))
        crop = f"center-crop{{size={edge},rounding=transformers}}"
        return [self._resize(f"size={larger}"), crop]

    def _resize(self, size: str) -> str:
        number = self.fields.get("resample")
        number = self.processor.resample if number is None else number
        if isinstance(number, bool) or number not in range(len(_FILTERS)):
            raise self._refused(
                "resample", f"it must be a filter of Pillow, 0 to {len(_FILTERS) - 1}"
            )
        name = _FILTERS[number]
        if self.fast and name not in _OF_TORCHVISION:
            raise self._refused("resample", f"no step resizes as torchvision's {name}")
        mode = f"torchvision-{_OF_TORCHVISION[name]}" if self.fast else f"pil-{name}"
        return f"resize{{{size},mode={mode}}}"

    def _sides(self, key: str) -> dict[str, int]:
        """Returns the sides of a size, none if it is one number. Raises InputError."""
        size: Any = self.fields.get(key)
        if isinstance(size, list) and len(size) == 2:
            size = {"height": size[0], "width": size[1]}
        sides: dict[str, Any] = size if isinstance(size, dict) else {"": size}
        sides = {name: edge for name, edge in sides.items() if edge is not None}
        wrong = [
            e for e in sides.values() if isinstance(e, bool) or not isinstance(e, int) or e < 1
        ]
        if wrong or not sides:
            raise self._refused(key, "it must be a number of pixels, or a table of them")
        return {} if set(sides) == {""} else sides

    def _smallest(self, key: str) -> int:
        return min(self._sides(key).values() or [self.fields[key]])

    def _exact(self, key: str) -> str:
        """Returns a size of height and width, or of one number for both."""
        sides = self._sides(key)
        if not sides:
            return str(self.fields[key])
        if set(sides) != {"height", "width"}:
            raise self._refused(key, "it must have height and width")
        return f"[{sides['height']},{sides['width']}]"

    def _channels(self, key: str) -> str:
        value = self.fields.get(key)
        numbers = value if isinstance(value, list) and value else [value]
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            raise self._refused(key, "it must be a number, or one for each channel")
        return f"[{','.join(map(repr, numbers))}]" if len(numbers) > 1 else repr(numbers[0])
