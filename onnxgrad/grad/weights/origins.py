"""The module and the parameter of a node in an export, as far as the file records them.

Files of torch.export record the modules around each node, and the call from which the node was
made, which names the parameters. TorchScript's exporter names nodes by paths of modules, and reads
a parameter that it merged with an equal one through an Identity with that parameter's name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from functools import cached_property

from onnxgrad.grad.weights.evidence import evidence, exported_parameters
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program

_SCOPES = "pkg.torch.onnx.name_scopes"
_CALL = "pkg.torch.onnx.fx_node"
_RULE = "pkg.onnxscript.rewriter.rule_name"
# the inputs of an exported program that are values of modules
_INPUT = re.compile(r"%([pb]_\w+)")
# a call of a normalisation that reads one value
_PLAIN_NORM = re.compile(r"aten\.\w*norm\w*(\.\w+)?\]\(args = \(%\w+[^%]*\)")
# names of normalisations; another module of one parameter may be a table that was read at constant
# rows, which became an initializer, or the second name of a tied one
_NORM = re.compile(r"norm|(\b|_)ln(\b|_|\d)", re.IGNORECASE)
# TorchScript's path of a node: modules, then the operator
_PATH = re.compile(r"/(?:(?P<modules>.+)/)?[A-Z]\w*")
_AGAIN = re.compile(r"_\d+$")
# the endings of parameters' names, by role
_LEAVES = {
    "scale": ("weight", "gamma", "scale"),
    "matrix": ("weight",),
    "bias": ("bias", "beta"),
    "mean": ("running_mean",),
    "variance": ("running_var",),
}


def scopes(b: Binding) -> list[str]:
    """Returns the modules around a node, outermost first, and torch's name of the node."""
    try:
        found = ast.literal_eval(_noted(b, _SCOPES) or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [s for s in found if isinstance(s, str)] if isinstance(found, list) else []


def rules(b: Binding) -> str:
    """Returns the rewrite rules of onnxscript that made the node."""
    return _noted(b, _RULE)


def names_parameter(b: Binding) -> bool:
    """Whether the call from which torch.export made the node names a parameter."""
    return any(name.startswith("p_") for name in _INPUT.findall(_noted(b, _CALL)))


def is_without_parameters(b: Binding) -> bool:
    """Whether torch.export made the node from a normalisation of one value and of nothing else: its
    ones and zeros are no parameters.
    """
    return _PLAIN_NORM.search(_noted(b, _CALL)) is not None


def _noted(b: Binding, key: str) -> str:
    return next((e.value for e in b.node.metadata_props if e.key == key), "")


def are_siblings(a: str, b: str) -> bool:
    """Whether two names differ by numbers of modules alone, as `layers.0.bias` and
    `layers.1.bias`.
    """
    x, y = a.split("."), b.split(".")
    return (
        a != b
        and len(x) == len(y)
        and all(p == q or (p.isdigit() and q.isdigit()) for p, q in zip(x, y, strict=True))
    )


def parameter_name(name: str) -> bool:
    """Whether a value has the name of a parameter; names of values that an exporter
    folded are not.
    """
    return ":" not in name and evidence(name) in ("parameter", "attribute", "statistic")


class Origins:
    """The names of parameters by the nodes that read them.

    known: names of the file's parameters, whose spelling others follow.
    """

    def __init__(self, program: Program, known: Collection[str]) -> None:
        nodes = [b for block in program.blocks() for b in block.walk()]
        self._spelled = {k: end for name in known for k, end in _ends(name).items()}
        self._paths = {path for b in nodes for path in _paths(b.node.name)}
        self._exported = exported_parameters(program.proto.graph)
        self._nodes = nodes

    @cached_property
    def listed(self) -> frozenset[str]:
        """The names of the network's parameters, if torch.export listed them."""
        return frozenset(self._exported.values())

    @cached_property
    def _modules(self) -> dict[str, str]:
        """All modules of the file, by torch.export's spelling of them."""
        modules = (module for b in self._nodes for module in scopes(b)[:-1])
        return {m.replace(".", "_").lower(): m for m in modules}

    def of(self, b: Binding, role: str, read: str) -> str | None:
        """Returns the full name of the scale, bias, mean or variance that the node reads from the
        initializer `read`, by the module around the node; None if the file does not record it.
        """
        around = scopes(b)
        module = around[-2] if len(around) > 1 else self._by_path(b.node.name)
        if not module:
            return None
        others = {leaf for of in _LEAVES.values() for leaf in of}.difference(_LEAVES[role])
        if read.startswith(f"{module}.") and not read.endswith(tuple(others)):
            return read
        return f"{module}.{_LEAVES[role][0]}"

    def called(self, b: Binding, role: str) -> str | None:
        """Returns the name in the call from which torch.export made the node, or None."""
        inputs = _INPUT.findall(_noted(b, _CALL))
        fits = [i for i in inputs if i.endswith(tuple(f"_{leaf}" for leaf in _LEAVES[role]))]
        return self._name(fits[0], scopes(b)[:-1]) if len(fits) == 1 else None

    def _name(self, mangled: str, around: list[str]) -> str:
        """Returns `p_h_1_ln_2_weight` as the network spells it, `h.1.ln_2.weight`."""
        if mangled in self._exported:
            return self._exported[mangled]
        rest, module = mangled[2:], ""
        for module in reversed(around):
            start = module.replace(".", "_").lower() + "_"
            if module and rest.lower().startswith(start):
                break
        else:  # a module that was called by another of its names
            starts = [m for m in self._modules if m and rest.lower().startswith(f"{m}_")]
            module = self._modules[max(starts, key=len)] if starts else ""
        rest = rest[len(module) + 1 :] if module else rest
        return ".".join(part for part in (module, self._leaf(rest)) if part)

    def _leaf(self, rest: str) -> str:
        """Returns the last parts in the spelling of other parameters of the file: in_proj_bias,
        out_proj.bias.
        """
        stem, _, last = rest.rpartition("_")
        if not stem or rest in self._spelled:
            return self._spelled.get(rest, rest)
        beside = next((self._spelled[k] for w in _LEAVES.values() for x in w
                       if (k := f"{stem}_{x}") in self._spelled), "")  # fmt: skip
        return f"{beside.rpartition('.')[0]}.{last}" if "." in beside else rest

    def _by_path(self, node: str) -> str:
        """Returns the module of `/h.1/ln_2/Add`; a second call of a module has another number."""
        found = _PATH.fullmatch(node)
        modules = (found["modules"] or "").split("/") if found else []
        names: list[str] = []
        for i, module in enumerate(modules):
            first = _AGAIN.sub("", module)
            if first != module and "/".join([*modules[:i], first]) in self._paths:
                module = first
            # a/a.0: the container's name stands in its member's
            held = names and module.startswith(f"{names[-1]}.")
            names = [*names[:-1], module] if held else [*names, module]
        return ".".join(names)


def without_layer(program: Program) -> list[str]:
    """Returns the parameters that torch.export lists and that no node of the file has: none was
    made from a call that names a parameter of their module, nor inside of the module.
    """
    named: set[str] = set()
    present: set[str] = set()
    for b in (b for block in program.blocks() for b in block.walk()):
        named.update(_INPUT.findall(_noted(b, _CALL)))
        present.update(scopes(b)[:-1])
    parameters = [
        (name, of.rpartition(".")[0], of)
        for name, of in exported_parameters(program.proto.graph).items()
    ]
    present.update(name.rpartition(".")[0] for name in program.main.initializers)
    present.update(module for name, module, _ in parameters if name in named)
    lost: dict[str, list[str]] = {}
    for _, module, of in parameters if named else ():  # else the nodes have no metadata
        if module not in present:
            lost.setdefault(module, []).append(of)
    found = (n for m, n in lost.items() if len(n) > 1 or _NORM.search(m.rpartition(".")[2]))
    return [name for names in found for name in names]


def _ends(name: str) -> dict[str, str]:
    """Returns the last two parts of a name and its last part, by torch.export's spelling of
    them.
    """
    parts = name.split(".")
    return {"_".join(parts[-n:]).lower(): ".".join(parts[-n:]) for n in (1, 2) if n <= len(parts)}


def _paths(node: str) -> list[str]:
    """Returns the paths of the modules around a node of TorchScript's exporter."""
    found = _PATH.fullmatch(node)
    modules = (found["modules"] or "").split("/") if found else []
    return ["/".join(modules[: i + 1]) for i in range(len(modules))]
