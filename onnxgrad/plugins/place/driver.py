"""The driver of `place`: assigns bindings to devices and finds the values that must be copied
between devices (Relay's device annotation).

The marks are node metadata `layer_ann`, which onnxruntime reads. The session option
`session.layer_assignment_settings` maps them to devices (see `settings`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import keep
from onnxgrad.ir.types import byte_count
from onnxgrad.ir.var import Var
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.options import several
from onnxgrad.plugins.place.declaration import DEVICE, PlaceOptions, device_patterns
from onnxgrad.results import Plain

MARK = "layer_ann"
OPTION = "session.layer_assignment_settings"
# the first IR versions with metadata of nodes, and with device configurations
_METADATA_SINCE = 10
_CONFIGURATIONS_SINCE = 11
_CONFIGURATION = "onnxgrad"


@frozen
class DeviceRule:
    """Bindings that match `pattern` run on `device`. A pattern is `name:GLOB`, `op:GLOB`, or a glob
    for both.
    """

    device: str
    pattern: str

    def matches(self, b: Binding) -> bool:
        """Whether the pattern matches the name of the node, its operator, or domain::operator."""
        kind, colon, glob = self.pattern.partition(":")
        if not colon or kind not in ("name", "op"):
            kind, glob = "", self.pattern
        operators = (b.op, f"{b.domain}::{b.op}")
        names = {"name": (b.node.name,), "op": operators, "": (b.node.name, *operators)}[kind]
        return any(fnmatchcase(name, glob) for name in names if name)


def rule(text: str) -> list[DeviceRule]:
    """Returns the rules of `DEVICE=PATTERN,PATTERN`. Raises InputError."""
    device, patterns = device_patterns(text)
    return [DeviceRule(device, pattern) for pattern in patterns]


@frozen
class Copy(Plain):
    """A value that moves from one device to another, once for all its readers there.

    `made_by` is the binding that computes it, None for a graph input; `readers` is empty for a
    graph output, which is copied to the host. `count`: elements as text (`N*64`), `bytes` when
    every size is known.
    """

    json_keys = "value=value_name made_by=maker read_by from=source to=target elements=count bytes"

    value: Var
    made_by: Binding | None
    source: str
    target: str
    readers: tuple[Binding, ...]
    count: str
    bytes: int | None

    @property
    def value_name(self) -> str:
        """The name of the value."""
        return self.value.name

    @property
    def maker(self) -> str | None:
        """The operator and name of the node that computes the value."""
        return None if self.made_by is None else called(self.made_by)

    @property
    def read_by(self) -> list[str]:
        """The operators and names of the readers."""
        return [called(b) for b in self.readers]


def called(b: Binding) -> str:
    """Returns the operator, and the node's name if it has one."""
    return f"{b.op} {b.node.name}".strip()


@frozen
class Placement(Plain):
    """The device of every binding, by block order, and the copies between devices.

    `copies` are between bindings. `interface` are graph inputs and outputs that a caller without IO
    binding passes through host memory.
    """

    json_keys = "devices=by_device copies interface option"

    devices: dict[Binding, str]
    copies: list[Copy]
    interface: list[Copy]

    @property
    def by_device(self) -> Counter[str]:
        """The number of nodes on each device."""
        return Counter(self.devices.values())

    @property
    def option(self) -> dict[str, str]:
        """The session option of onnxruntime that the placement needs."""
        return {"name": OPTION, "value": settings(self)}


@frozen
class PlacedModel(Plain):
    """The result of `place(report=True)`: the marked `model`, in the type you passed in, and its
    placement, with the session option that onnxruntime needs.
    """

    json_keys = (
        "devices=placement.by_device copies=placement.copies interface=placement.interface "
        "option=placement.option"
    )

    model: Any
    placement: Placement


def place(model: ModelLike, options: PlaceOptions, hooks: Hooks | None = None) -> PlacedModel:
    """Chooses a device for every binding, marks all nodes, and lets the hooks write the program,
    which is the `model` of the result. Raises InputError for a rule that matches nothing.
    """
    hooks = hooks or Hooks()
    rules = [r for text in several(options.device, "device") for r in rule(text)]
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(model)
        hooks.on_read(program)
        placement = devices_of(program, rules, default=options.default, propagate=options.propagate)
        annotate(program, placement, ir=options.ir)
        if hooks.write is not None:
            hooks.write(program)
    return PlacedModel(program, placement)


def devices_of(
    program: Program, rules: Sequence[DeviceRule], *, default: str = "cpu", propagate: bool = False
) -> Placement:
    """Chooses a device for every binding, without writing anything.

    The first rule that matches decides, else an existing mark. With `propagate`, other bindings get
    the device of all bindings of their operands if these agree, else that of all their readers;
    else `default`. Raises InputError for a rule that matches nothing, or a device name that
    onnxruntime cannot read.
    """
    bindings = [b for block in program.blocks() for b in block.bindings]
    for r in rules:
        if not any(r.matches(b) for b in bindings):
            raise InputError(
                f"--device {r.device}={r.pattern}: no node has such a name or operator"
            )
    chosen = {
        b: next((r.device for r in rules if r.matches(b)), None)
        or next((e.value for e in b.node.metadata_props if e.key == MARK), None)
        for b in bindings
    }
    devices = {b: device for b, device in chosen.items() if device is not None}
    for device in (default, *devices.values()):
        if DEVICE.fullmatch(device) is None:
            raise InputError(f"'{device}' is not a device name: use letters, digits and _ . : -")
    if propagate:
        _propagate(devices, bindings, _before)
        _propagate(devices, bindings[::-1], _behind)
    devices = {b: devices.get(b, default) for b in bindings}
    return Placement(devices, *_copies(program, devices, default))


def _propagate(
    devices: dict[Binding, str],
    order: Sequence[Binding],
    neighbours: Callable[[Binding], list[Binding]],
) -> None:
    """Gives bindings without a device the device of all their neighbours, if these agree."""
    for b in order:
        near = {devices.get(n) for n in neighbours(b)}
        agreed = next(iter(near)) if len(near) == 1 else None
        if b not in devices and agreed is not None:
            devices[b] = agreed


def _before(b: Binding) -> list[Binding]:
    found = [v.definition for v in b.inputs if v is not None and v.definition is not None]
    return [d for d in found if d.op != "Constant"]


def _behind(b: Binding) -> list[Binding]:
    return [user for v in b.outputs if v is not None for user in v.users]


def _copies(
    program: Program, devices: dict[Binding, str], host: str
) -> tuple[list[Copy], list[Copy]]:
    """Returns one copy for each value and each device that reads but does not compute it. Constants
    are copied beforehand.
    """
    inner: list[Copy] = []
    interface: list[Copy] = []
    for block in program.blocks():
        for v in block.vars():
            made_by = v.definition
            if made_by is None and (v.initializer is not None or block is not program.main):
                continue
            if made_by is not None and v.is_constant:
                continue
            source = host if made_by is None else devices[made_by]
            readers: dict[str, list[Binding]] = {}
            for user in v.users:
                readers.setdefault(devices[user], []).append(user)
            found = [
                _copy(v, source, target, tuple(users))
                for target, users in readers.items()
                if target != source
            ]
            (inner if made_by is not None else interface).extend(found)
            if block is program.main and v.returned and source != host:
                interface.append(_copy(v, source, host, ()))
    return inner, interface


def _copy(v: Var, source: str, target: str, readers: tuple[Binding, ...]) -> Copy:
    count = "?"
    if v.shape is not None and v.dtype:
        known = math.prod(d for d in v.shape if isinstance(d, int))
        open_ = [d or "?" for d in v.shape if not isinstance(d, int)]
        count = "*".join([*open_, *([str(known)] if known != 1 or not open_ else [])])
    return Copy(v, v.definition, source, target, readers, count, byte_count(v.type))


def annotate(program: Program, placement: Placement, *, ir: bool = False) -> None:
    """Writes the placement into the program: `layer_ann` on every node, and with `ir` the IR's
    device configurations.

    Nodes of the default device are marked, too, because onnxruntime runs an unmarked node on the
    first provider. Raises the IR version if the fields need it.
    """
    program.ir_version = max(program.ir_version, _CONFIGURATIONS_SINCE if ir else _METADATA_SINCE)
    names = list(dict.fromkeys(placement.devices.values()))
    for b, device in placement.devices.items():
        node = deepcopy(b.node)
        keep(node.metadata_props, lambda e: e.key != MARK)
        node.metadata_props.add(key=MARK, value=device)
        if ir:
            keep(node.device_configurations, lambda c: c.configuration_id != _CONFIGURATION)
            configuration = node.device_configurations.add(configuration_id=_CONFIGURATION)
            for v in b.outputs:
                if v is not None:  # on one device: a sharding without a sharded axis
                    configuration.sharding_spec.add(
                        tensor_name=v.name, device=[names.index(device)]
                    )
        b.node, b.changed = node, True
        b.block.touch()
    if ir:
        program.proto = deepcopy(program.proto)
        keep(program.proto.configuration, lambda c: c.name != _CONFIGURATION)
        program.proto.configuration.add(name=_CONFIGURATION, num_devices=len(names), device=names)


def settings(placement: Placement) -> str:
    """Returns the value of `session.layer_assignment_settings`: `device(=annotation);...`, where
    `=` requires the exact mark.

    onnxruntime calls CUDA devices `gpu` or `cuda`, with a number after a colon.
    """
    return ";".join(f"{device}(={device})" for device in dict.fromkeys(placement.devices.values()))
