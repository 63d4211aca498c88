"""The new names that `edit` gives to values, nodes and symbols of dimensions, as pairs OLD=NEW, of
which OLD may be a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from onnx import GraphProto, ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.renaming import node_names, symbols, value_names
from onnxgrad.jobs.kinds import of_known
from onnxgrad.wording import known_names, option

Pairs = Mapping[str, str] | None


def names_of_values(model: ModelProto, given: Pairs) -> dict[str, str]:
    """Returns the new name of each value of the main graph that is renamed. Raises InputError as
    `_new_names`, and for a value that a training step reads.
    """
    graph = model.graph
    mine = dict.fromkeys(v.name for v in graph.input)
    mine |= dict.fromkeys(t.name for t in graph.initializer)
    mine |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    found = _new_names("rename", given, mine, value_names(graph), "the main graph has no value")
    read = {
        name
        for info in model.training_info
        for part in (info.initialization, info.algorithm)
        for node in every_node(part.node)
        for name in (*node.input, *node.output)
    } | {e for i in model.training_info for b in i.update_binding for e in (b.key, b.value)}
    for old, new in found.items():
        if old in read:
            where = _where("rename", old, new)
            raise InputError(f"{where}: the model's training_info reads '{old}'")
    return found


def names_of_nodes(graph: GraphProto, given: Pairs) -> dict[str, str]:
    """Returns the new name of each node that is renamed, nested graphs included. Raises InputError
    as `_new_names`.
    """
    known = node_names(graph)
    return _new_names("rename-node", given, known, known, "the model has no node")


def names_of_symbols(graph: GraphProto, given: Pairs) -> dict[str, str]:
    """Returns the new name of each symbol that is renamed. Raises InputError as `_new_names`, and
    for a number.
    """
    known = symbols(graph)
    for old, new in (given or {}).items():
        if new.isdecimal():
            fix = option(f"optimize --fix-dim {old}={new}", f"fix_dims(model, {{{old!r}: {new}}})")
            where = _where("rename-dim", old, new)
            raise InputError(f"{where}: a size is no name; {fix} fixes the dimension")
    return _new_names("rename-dim", given, known, known, "the model has no dimension")


def _new_names(
    flag: str, given: Pairs, known: Collection[str], taken: Iterable[str], missing: str
) -> dict[str, str]:
    """Returns the new name of each known name that a pair means. A pair of a known name has
    precedence over patterns. Raises InputError if a pair means no known name, or two new names are
    equal, empty or among those `taken` that stay.
    """
    pairs, found, places = of_known(given, known), dict[str, str](), dict[str, str]()
    for old, new in sorted(pairs.items(), key=lambda pair: pair[0] not in known):
        where = _where(flag, old, new)
        met = {old: new} if old in known else _matched(where, old, new, known)
        if not met:
            raise InputError(f"{where}: {missing} '{old}'{known_names(old, known)}")
        for name, renamed in met.items():
            if not renamed:
                raise InputError(f"{where}: the new name is empty")
            found.setdefault(name, renamed)
            places.setdefault(name, where)
    found = {old: new for old, new in found.items() if old != new}
    staying, made = {*taken} - {*found}, dict[str, str]()
    for old, new in found.items():
        if new in staying:
            raise InputError(f"{places[old]}: the name '{new}' is taken: rename that one too")
        if new in made:
            raise InputError(
                f"{places[old]}: the name '{new}' is taken by '{made[new]}', which gets it too"
            )
        made[new] = old
    return found


def _matched(where: str, old: str, new: str, known: Iterable[str]) -> dict[str, str]:
    """Returns the new names of those that match OLD: the texts that its `*` stand for, from left to
    right, replace those of NEW.
    """
    if "*" not in old:
        return {}
    if old.count("*") != new.count("*"):
        raise InputError(
            f"{where}: {new!r} must have {old.count('*')} '*', as '{old}' has: each stands for the "
            "same text"
        )
    pattern, form = re.compile("(.*?)".join(map(re.escape, old.split("*")))), new.split("*")
    found = {}
    for name in known:
        if match := pattern.fullmatch(name):
            texts = zip(form, (*match.groups(), ""), strict=True)
            found[name] = "".join(part + text for part, text in texts)
    return found


def _where(flag: str, old: str, new: str) -> str:
    return option(f"--{flag} {old}={new}", f"{flag.replace('-', '_')}={{{old!r}: {new!r}}}")
