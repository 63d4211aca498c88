"""Cuts the changed region out of two versions of a model's graph, so that both versions of the
region can run on its boundary.

The boundary consists of values. Values with the same name in both graphs are the same value. If an
unchanged node reads another value in place of a removed one, the rewrite claims that the two values
are equal. Running a region proves such claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.protobufs import every_node, graphs_of

# operands with instructions: different values may mean the same
_INSTRUCTIONS = frozenset({("Reshape", 1), ("Shape", 0)})

TypeOf = Callable[[str], "TypeProto | None"]
# whether the node with this first output is the same node before and after
Same = Callable[[str], bool]


class NoRegion(Exception):
    """No region can be run; the message says why."""


@dataclass
class Scope:
    """The same graph before and after, each with the graphs around it, outermost first.

    `claims`: pairs of a value before and a value after that should be equal.
    """

    before: tuple[GraphProto, ...]
    after: tuple[GraphProto, ...]
    old: dict[int, NodeProto]  # changed nodes, by position
    new: dict[int, NodeProto]
    claims: dict[tuple[str, str], None] = field(default_factory=dict)


def scopes(before: ModelProto, after: ModelProto, same: Same) -> list[Scope]:
    """Returns the graphs whose own nodes or constants differ. A call of a changed function counts
    as a changed node.
    """
    finder = _Finder(_changed_functions(before, after), same)
    finder.compare((before.graph,), (after.graph,))
    return [scope for scope in finder.found if scope.claims]


class _Finder:
    """Compares graphs, the outer before the inner."""

    def __init__(self, functions: set[tuple[str, str]], same: Same) -> None:
        self.functions = functions
        self.same = same
        self.found: list[Scope] = []

    def compare(
        self, a: tuple[GraphProto, ...], b: tuple[GraphProto, ...]
    ) -> list[tuple[str, str]]:
        """Finds the scopes of this graph and of the graphs inside it. Returns the claims about
        values of the graphs around.
        """
        scope = Scope(
            a, b, _changes(a[-1], b[-1], self.functions), _changes(b[-1], a[-1], self.functions)
        )
        claims, inner = [], []
        twins = {n.output[0]: (i, n) for i, n in scope.new.items() if n.output}
        for i, n in list(scope.old.items()):
            j, twin = twins.get(n.output[0] if n.output else "", (-1, None))
            if (
                twin is None
                or (n.domain, n.op_type) in self.functions
                or not self._is_same(n, twin)
            ):
                continue
            exchanged = [(p, q) for p, q in zip(n.input, twin.input) if p != q]
            if not all(
                p and q and any(p in n.output for graph in a for n in graph.node)
                for p, q in exchanged
            ):
                continue
            claims += exchanged
            inner += list(zip(graphs_of(n), graphs_of(twin), strict=True))
            del scope.old[i], scope.new[j]
        claims += [(v.name, w.name) for v, w in zip(a[-1].output, b[-1].output) if v.name != w.name]
        for x, y in inner:
            claims += self.compare((*a, x), (*b, y))
        claims += [(name, name) for name in self._kept(scope)]
        own = {name for n in a[-1].node for name in n.output}
        scope.claims = dict.fromkeys(c for c in claims if c[0] in own)
        self.found.append(scope)
        return [c for c in claims if c[0] not in own]

    def _is_same(self, a: NodeProto, b: NodeProto) -> bool:
        """True if `a` and `b` are the same node, regardless of their operands and of their nested
        graphs.
        """
        if (a.op_type, a.domain, a.overload) != (b.op_type, b.domain, b.overload) or not self.same(
            a.output[0]
        ):
            return False
        if (
            list(a.output) != list(b.output)
            or len(a.input) != len(b.input)
            or len(graphs_of(a)) != len(graphs_of(b))
        ):
            return False
        if any(
            (a.op_type, i) in _INSTRUCTIONS
            for i, (p, q) in enumerate(zip(a.input, b.input))
            if p != q
        ):
            return False
        plain = [
            [t for t in n.attribute if t.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
            for n in (a, b)
        ]
        return plain[0] == plain[1] and all(
            _arity(g) == _arity(h) for g, h in zip(graphs_of(a), graphs_of(b))
        )

    def _kept(self, scope: Scope) -> list[str]:
        """Returns the values that are computed in another way now, and that an unchanged node reads
        or the graph returns.
        """
        made = {name for n in scope.old.values() for name in n.output} & {
            name for n in scope.new.values() for name in n.output
        }
        made |= {name for n in scope.old.values() for name in n.output} & {
            t.name for t in scope.after[-1].initializer
        }
        read: dict[str, None] = dict.fromkeys(v.name for v in scope.after[-1].output)
        for i, n in enumerate(scope.after[-1].node):
            if i not in scope.new:
                read.update(dict.fromkeys(sorted(reads(n))))
        return [name for name in read if name and name in made]


def _changes(
    graph: GraphProto, other: GraphProto, functions: set[tuple[str, str]]
) -> dict[int, NodeProto]:
    """Returns the nodes of `graph`, by position, that `other` lacks, that read constants which
    differ, or that call functions which differ.
    """
    known = {n.SerializeToString(deterministic=True) for n in other.node}
    theirs = {t.name: t for t in other.initializer}
    moved = {t.name for t in graph.initializer if t.name in theirs and t != theirs[t.name]}
    moved |= {t.name for t in graph.initializer}.symmetric_difference(theirs)
    return {
        i: n
        for i, n in enumerate(graph.node)
        if n.SerializeToString(deterministic=True) not in known
        or (n.domain, n.op_type) in functions
        or (moved and not moved.isdisjoint(reads(n)))
    }


def _arity(graph: GraphProto) -> tuple[list[str], int]:
    return [v.name for v in graph.input], len(graph.output)


def _changed_functions(a: ModelProto, b: ModelProto) -> set[tuple[str, str]]:
    """Returns the functions that differ, or that call a function that differs."""
    old = {(f.domain, f.name, f.overload): f for f in a.functions}
    new = {(f.domain, f.name, f.overload): f for f in b.functions}
    found = {key[:2] for key in old.keys() & new.keys() if old[key] != new[key]}
    while True:
        more = {
            key[:2]
            for key, f in {**old, **new}.items()
            if key[:2] not in found
            and any((n.domain, n.op_type) in found for n in every_node(f.node))
        }
        if not more:
            return found
        found |= more


def reads(node: NodeProto) -> set[str]:
    """Returns the names that a node reads, including those read in its nested graphs."""
    found = {name for name in node.input if name}
    for graph in graphs_of(node):
        inner = {v.name for v in graph.output}.union(*(reads(n) for n in graph.node))
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        found |= inner - own - {name for n in graph.node for name in n.output}
    return found


@dataclass
class _Side:
    """One version of a scope: its graphs, the changed nodes, the values to return, and the
    definition of each name.
    """

    model: ModelProto
    graphs: tuple[GraphProto, ...]
    changed: list[NodeProto]
    results: list[str]
    nodes: dict[str, NodeProto] = field(default_factory=dict)
    tensors: dict[str, TensorProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for graph in self.graphs:
            self.nodes.update({name: n for n in graph.node for name in n.output if name})
            self.tensors.update({t.name: t for t in graph.initializer})

    def inside(self, taken: set[str]) -> tuple[list[NodeProto], list[str], set[str]]:
        """Returns (nodes, constants, inputs) of the region. The walk starts at the results and
        stops at unchanged nodes whose values are not in `taken`.
        """
        wanted, seen = list(self.results), set(self.results)
        nodes: dict[int, NodeProto] = {}
        constants, inputs = [], set()
        changed = {id(n) for n in self.changed}
        while wanted:
            name = wanted.pop()
            node = self.nodes.get(name)
            if name in self.tensors:
                constants.append(name)
            elif node is not None and (
                id(node) in changed or name in taken or (not reads(node) and not _draws(node))
            ):
                if id(node) not in nodes:
                    nodes[id(node)] = node
                    more = reads(node) - seen
                    seen |= more
                    wanted += sorted(more)
            else:
                inputs.add(name)
        return (
            [n for graph in self.graphs for n in graph.node if id(n) in nodes],
            sorted(constants),
            inputs,
        )


class Region:
    """The difference in one scope. `cut` returns both versions as models; `widen` adds the nodes
    that compute their inputs.
    """

    def __init__(
        self, before: ModelProto, after: ModelProto, scope: Scope, type_of: TypeOf
    ) -> None:
        self.sides = (
            _Side(before, scope.before, list(scope.old.values()), [p for p, _ in scope.claims]),
            _Side(after, scope.after, list(scope.new.values()), [q for _, q in scope.claims]),
        )
        self.type_of = type_of
        # values whose producers are the same in both versions and were added to the region
        self.taken: set[str] = set()
        if any(
            n.op_type in RANDOM
            for side in self.sides
            for n in every_node(side.inside(self.taken)[0])
        ):
            raise NoRegion("it draws random numbers")

    def inputs(self) -> list[str]:
        """Returns the names of the boundary values that both versions read. Raises NoRegion if the
        type of a value is unknown.
        """
        while True:
            names = {name for side in self.sides for name in side.inside(self.taken)[2]}
            untyped = {name for name in names if self.type_of(name) is None}
            if not untyped:
                return sorted(names)
            if not self._take(untyped):
                raise NoRegion("the type of an operand is unknown")

    def widen(self, levels: int) -> bool:
        """Adds the nodes that compute the inputs, `levels` times. Returns False if there was
        nothing to add.
        """
        before = len(self.taken)
        for _ in range(levels):
            if not self._take(set(self.inputs())):
                break
        return len(self.taken) > before

    def _take(self, names: set[str]) -> bool:
        a, b = (side.nodes for side in self.sides)
        found = {
            name for name in names if name in a and name in b and not _draws(b[name])
        } - self.taken
        self.taken |= found
        return bool(found)

    def cut(self) -> tuple[ModelProto, ModelProto]:
        """Returns both versions as models with the same inputs and outputs."""
        inputs = self.inputs()
        return self._model(self.sides[0], inputs), self._model(self.sides[1], inputs)

    def _model(self, side: _Side, inputs: list[str]) -> ModelProto:
        nodes, constants, _ = side.inside(self.taken)
        model = ModelProto(ir_version=side.model.ir_version, opset_import=side.model.opset_import)
        model.functions.extend(side.model.functions)
        graph = model.graph
        graph.name = "region"
        graph.node.extend(nodes)
        graph.input.extend(ValueInfoProto(name=name, type=self.type_of(name)) for name in inputs)
        graph.initializer.extend(side.tensors[name] for name in constants)
        for i, name in enumerate(side.results):
            result = f"region:result {i}"  # the two versions may use different names
            graph.node.append(NodeProto(op_type="Identity", input=[name], output=[result]))
            graph.output.append(
                ValueInfoProto(name=result, type=self.type_of(self.sides[1].results[i]))
            )
        return model


def _draws(node: NodeProto) -> bool:
    return any(n.op_type in RANDOM or n.op_type == "Dropout" for n in every_node([node]))
