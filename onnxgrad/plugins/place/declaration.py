"""The options of `place`. Imports only what its `--help` needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import option
from onnxgrad.jobs.groups import Limits
from onnxgrad.jobs.kinds import Word
from onnxgrad.options import Named

DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def device_patterns(text: str) -> tuple[str, list[str]]:
    """Returns device and patterns of `DEVICE=PATTERN,PATTERN`. Raises InputError."""
    device, equals, patterns = text.partition("=")
    found = [p.strip() for p in patterns.split(",") if p.strip()]
    if not equals or not found or DEVICE.fullmatch(device) is None:
        raise InputError(
            f"cannot read '{text}': write DEVICE=PATTERN, such as cuda='Conv*' or "
            "gpu:0=op:Gemm,name:head*"
        )
    return device, found


class _Devices(Word):
    """Texts such as `cuda=Conv*,op:Gemm`."""

    def check(self, value: Sequence[str], where: str) -> Sequence[str]:
        for text in value:
            device_patterns(text)
        return value


Devices: TypeAlias = Annotated[str | Sequence[str], Named(), _Devices()]


@frozen(kw_only=True)
class PlaceOptions(Limits):
    job: ClassVar[str] = "place"
    titles: ClassVar[Mapping[str, str]] = {"Limits": ""}

    device: Devices = option(
        (),
        "run nodes whose name or operator matches on DEVICE: cuda='Conv*,op:Gemm,name:head*'; may "
        "repeat, the first match decides; without a match, the device in MODEL stays",
        metavar="DEVICE=PATTERN",
        positional=True,
    )
    default: str = option("cpu", "device of all other nodes (default: cpu)", metavar="DEVICE")
    propagate: bool = option(
        False, "place unmarked nodes on the device of their operands, or else of their readers"
    )
    ir: bool = option(False, "also write device_configurations of the IR (IR version 11)")
