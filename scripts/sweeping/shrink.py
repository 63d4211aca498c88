"""Reduces a failing model while it still fails, and saves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, save


def shrink(
    model: ModelProto, fails: Callable[[ModelProto], bool], seconds: float = 60.0
) -> ModelProto:
    """Returns the smallest model found within `seconds` that still `fails`: fewer outputs, fewer
    nodes, no functions.
    """
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < deadline:
        smaller = False
        for candidate in _candidates(model):
            if time.monotonic() > deadline:
                break
            if _size(candidate) < _size(model) and _still(candidate, fails):
                model, smaller = candidate, True
                break
    return model


def _size(model: ModelProto) -> tuple[int, ...]:
    """Returns a measure that decreases with every step, so that shrinking ends."""
    nodes, graph = list(_all_nodes(model)), model.graph
    work = sum(node.op_type != "Identity" for node in nodes)
    return work, len(nodes), len(graph.output), len(graph.input), len(graph.value_info)


def _still(candidate: ModelProto, fails: Callable[[ModelProto], bool]) -> bool:
    try:
        return fails(candidate)
    except Exception:  # noqa: BLE001  # a smaller model may be anything
        return False


def _candidates(model: ModelProto) -> Iterator[ModelProto]:
    for i in reversed(range(len(model.graph.output))):
        if len(model.graph.output) > 1:
            yield _dead_ends_gone(_changed(model, lambda m, i=i: m.graph.output.__delitem__(i)))
    for i in reversed(range(len(model.graph.node))):
        node = model.graph.node[i]
        for operand in dict.fromkeys(node.input):
            if operand:
                yield _dead_ends_gone(_changed(model, lambda m, i=i, o=operand: _bypass(m, i, o)))
    for i in reversed(range(len(model.graph.value_info))):
        yield _changed(model, lambda m, i=i: m.graph.value_info.__delitem__(i))
    for i in reversed(range(len(model.graph.input))):
        yield _changed(model, lambda m, i=i: m.graph.input.__delitem__(i))


def _changed(model: ModelProto, change: Callable[[Any], None]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    change(copy)
    return copy


def _bypass(model: ModelProto, index: int, operand: str) -> None:
    """Lets the readers of a node's first result read one of its operands; an output becomes an
    Identity.
    """
    node = model.graph.node[index]
    result = node.output[0]
    if any(o.name == result for o in model.graph.output):
        if node.op_type == "Identity":
            return
        kept = NodeProto(op_type="Identity", name=node.name, input=[operand], output=[result])
        node.CopyFrom(kept)
        return
    del model.graph.node[index]
    for reader in _all_nodes(model):
        reader.input[:] = [operand if name == result else name for name in reader.input]


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    work = list(model.graph.node)
    while work:
        node = work.pop()
        yield node
        for a in node.attribute:
            work += [*a.g.node]


def _dead_ends_gone(model: ModelProto) -> ModelProto:
    """Removes nodes, weights and functions that nothing reads."""
    while True:
        read = {name for n in _all_nodes(model) for name in n.input} | {
            o.name for o in model.graph.output
        }
        read |= {o.name for n in _all_nodes(model) for a in n.attribute for o in a.g.output}
        dead = [i for i, n in enumerate(model.graph.node) if not read & set(n.output)]
        if not dead:
            break
        for i in reversed(dead):
            del model.graph.node[i]
    for part in (model.graph.initializer, model.graph.input):
        for i in reversed([i for i, v in enumerate(part) if v.name not in read]):
            del part[i]
    called = {n.op_type for n in _all_nodes(model)} | {
        n.op_type for f in model.functions for n in f.node
    }
    for i in reversed([i for i, f in enumerate(model.functions) if f.name not in called]):
        del model.functions[i]
    return model


def save_failure(
    folder: Path, name: str, model: ModelProto, feeds: Mapping[str, Any], words: str
) -> Path:
    """Writes NAME.onnx, NAME.npz and NAME.txt to `folder`. Returns the model's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    save(model, path)
    np.savez(folder / f"{name}.npz", **feeds)
    (folder / f"{name}.txt").write_text(words + "\n", encoding="utf-8")
    return path
