"""Finds pairs of values by the modules that exporters record: the only result of a module with the
same name in both models.

Rewriting may move nodes across the border of a module, so such a pair is a guess. A run confirms it
if both values have equal shapes and kinds of types, and agree. If they differ, the difference
counts only if the next paired values that are computed from them differ as well (`standing`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto

from onnxgrad.verify.changed_region import reads

BY = "scope"
_SCOPES = "pkg.torch.onnx.name_scopes"  # a list from the outermost to the node of torch.fx
_UNION = " | "  # between the values of sources that a rewrite merged


def by_scope(
    a: GraphProto,
    b: GraphProto,
    makers: Mapping[str, NodeProto],
    others: Mapping[str, NodeProto],
) -> Iterator[tuple[str, str]]:
    """Yields pairs of `makers` with `others`, each the only result of its module."""
    first, second = leaving(a), leaving(b)
    pairs = dict.fromkeys((first[m], second[m]) for m in first if m in second)
    often: list[Counter[str]] = [Counter(names) for names in zip(*pairs)]
    for name, other in pairs:
        if often[0][name] == often[1][other] == 1 and name in makers and other in others:
            yield name, other


def leaving(graph: GraphProto) -> dict[str, str]:
    """Returns the result of each module that has only one."""
    found: dict[str, dict[str, None]] = {}
    inside = {}
    for node in graph.node:
        modules = modules_of(node)
        inside.update(dict.fromkeys(filter(None, node.output), modules))
    ends = {v.name for v in graph.output}
    for node in graph.node:
        here = modules_of(node) if node.op_type != "Constant" else ()
        for name in reads(node):
            for module in inside.get(name, ()):
                if module not in here:
                    found.setdefault(module, {})[name] = None
    for name in ends:
        for module in inside.get(name, ()):
            found.setdefault(module, {})[name] = None
    return {module: next(iter(names)) for module, names in found.items() if len(names) == 1}


def modules_of(node: NodeProto) -> tuple[str, ...]:
    """Returns the modules around a node, outermost first, and its operation in torch.fx: from
    metadata of the newer exporter, or from the path that TorchScript uses as its name.
    """
    text = next((e.value for e in node.metadata_props if e.key == _SCOPES), "")
    if text:
        lists = [_listed(part) for part in text.split(_UNION)]
        shared = [m for m in lists[0] if all(m in other for other in lists)]
        if len(lists) > 1:
            return tuple(shared)
        *modules, operation = lists[0] or [""]
        return (*modules, f"{modules[-1] if modules else ''}/{operation}")
    *path, _ = node.name.split("/")[1:] or [""]
    return tuple(".".join(path[: i + 1]) for i in range(len(path)))


def _listed(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
        return []
    return [m for m in found if isinstance(m, str) and m] if isinstance(found, list) else []


def standing(
    nodes: Sequence[NodeProto],
    differing: Iterable[str],
    agreeing: Iterable[str],
    guesses: Collection[str],
    masked: Collection[str] = (),
) -> set[str]:
    """Returns the `differing` values, without guesses whose difference does not show in every next
    paired value computed from them, and without `masked` values whose difference shows in none.
    `agreeing` are the other values with a pair.
    """
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    wrong, right = set(differing), set(agreeing)
    for node in reversed(nodes):
        for name in node.output:
            if name in wrong and name in guesses:
                following = _next(name, readers, wrong | right)
                if not following or not following <= wrong:
                    wrong.remove(name)
            elif name in wrong and name in masked:
                following = _next(name, readers, wrong | right)
                if following and following.isdisjoint(wrong):
                    wrong.remove(name)
    return wrong


def _next(name: str, readers: Mapping[str, Sequence[NodeProto]], paired: set[str]) -> set[str]:
    """Returns the nearest values with a pair that depend on a value."""
    found, seen, work = set[str](), {name}, [name]
    while work:
        for node in readers.get(work.pop(), ()):
            for out in node.output:
                if out and out not in seen:
                    seen.add(out)
                    if out in paired:
                        found.add(out)
                    else:
                        work.append(out)
    return found
