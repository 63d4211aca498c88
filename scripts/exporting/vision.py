"""Convolutional topologies from torchvision, as the library builds them but with fewer channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torchvision.models as tv
from torch import Tensor, nn

from exporting.common import image, keep_variance

Built = tuple[nn.Module, dict[str, Tensor]]
CLASSES = 100


@contextmanager
def narrow(divisor: int, classes: int = CLASSES) -> Iterator[None]:
    """While active, Conv2d, BatchNorm2d and Linear are built with every width divided by `divisor`.

    The image's 3 channels and the `classes` outputs keep their size. For libraries that fix the
    width: the module tree, the branches and the forward code stay the library's own. ValueError
    when a width is not divisible.
    """

    def scaled(width: int) -> int:
        if width in (3, classes):
            return width
        if width % divisor:
            raise ValueError(f"width {width} is not divisible by {divisor}")
        return width // divisor

    def patch(kind: type[nn.Module], widths: int) -> Any:
        original: Callable[..., None] = kind.__init__

        def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *(scaled(a) if i < widths else a for i, a in enumerate(args)), **kwargs)

        return mock.patch.object(kind, "__init__", init)

    with ExitStack() as stack:
        for kind, widths in ((nn.Conv2d, 2), (nn.BatchNorm2d, 1), (nn.Linear, 2)):
            stack.enter_context(patch(kind, widths))
        yield


def mobilenet_v2() -> Built:
    """MobileNetV2 at width 0.35 with 100 classes; 224x224 images."""
    return keep_variance(tv.mobilenet_v2(width_mult=0.35, num_classes=CLASSES)), {
        "x": image(1, 3, 224, 224)
    }


def resnet18() -> Built:
    """ResNet18, widths / 8; 96x96 images."""
    with narrow(8):
        model = tv.resnet18(num_classes=CLASSES)
    return keep_variance(model), {"x": image(1, 3, 96, 96)}


def googlenet() -> Built:
    """GoogLeNet without auxiliary heads, widths / 8; 96x96 images."""
    with narrow(8):
        model = tv.googlenet(num_classes=CLASSES, aux_logits=False, init_weights=False)
    return keep_variance(model), {"x": image(1, 3, 96, 96)}


def inception_v3() -> Built:
    """Inception v3 without auxiliary head, widths / 16; 139x139 images."""
    with narrow(16):
        model = tv.inception_v3(num_classes=CLASSES, aux_logits=False, init_weights=False)
    return keep_variance(model), {"x": image(1, 3, 139, 139)}


def densenet121() -> Built:
    """DenseNet121 with growth rate 4 and 8 first channels; 96x96 images."""
    model = tv.DenseNet(4, (6, 12, 24, 16), 8, num_classes=CLASSES)
    return keep_variance(model), {"x": image(1, 3, 96, 96)}
