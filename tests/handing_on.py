"""Node cases of ONNX's backend suite as calls of functions that hand their attributes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

import onnxgrad
from onnxgrad.errors import InternalError, OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.verify.compare import compare
from onnxgrad.verify.reference.evaluate import reference
from tests.backend_suite import Case, usable

DOMAIN = "handing.on"
_CLOSE = 1e-12
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def single_nodes() -> list[Case]:
    """The node cases with one node whose operator has a schema with attributes."""
    return [
        c
        for c in usable()
        if c.kind == "node"
        and len(c.model.graph.node) == 1
        and not c.model.functions
        and _schema(c.model).attributes
    ]


def _schema(model: ModelProto) -> onnx.defs.OpSchema:
    node = model.graph.node[0]
    domain = domains.canonical(node.domain)
    return onnx.defs.get_schema(
        node.op_type, domains.versions(model.opset_import).get(domain, 1), domain
    )


def handing_on(model: ModelProto, *, by_default: bool) -> ModelProto:
    """The model with its only node inside a function: a value that the node has is the call's, or
    the function's default (`by_default`); what the node leaves out the call leaves out.
    """
    made, schema = ModelProto(), _schema(model)
    made.CopyFrom(model)
    given = {a.name: a for a in model.graph.node[0].attribute}
    inner = NodeProto()
    inner.CopyFrom(model.graph.node[0])
    del inner.attribute[:]
    for name, attribute in schema.attributes.items():
        inner.attribute.add(name=name, ref_attr_name=name, type=attribute.type.value)
    function = helper.make_function(
        DOMAIN,
        "F",
        [n for n in inner.input if n],
        [n for n in inner.output if n],
        [inner],
        made.opset_import,
        [name for name in schema.attributes if not (by_default and name in given)],
        list(given.values()) if by_default else [],
    )
    call = made.graph.node[0]
    call.op_type, call.domain = "F", DOMAIN
    call.input[:], call.output[:] = [n for n in call.input if n], [n for n in call.output if n]
    if by_default:
        del call.attribute[:]
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    made.ir_version = max(made.ir_version, 10)
    return made


def outcome(work: Callable[[], ModelProto], feeds: dict[str, object]) -> object:
    """The float64 results of the model that `work` makes, or the name of the error that says no.
    Raises InternalError.
    """
    try:
        return reference(work(), feeds)
    except InternalError:
        raise
    except OnnxgradError as error:
        return type(error).__name__


def failures(case: Case) -> Iterator[tuple[str, str]]:
    """(what was done, how it went wrong) for one case."""
    jobs: dict[str, Callable[[ModelProto], ModelProto]] = {
        "as it is": lambda m: m,
        "optimize": lambda m: onnxgrad.optimize(m, verify=False),
        "inline": lambda m: onnxgrad.optimize(m, passes="inline", verify=False),
        "gradient": lambda m: onnxgrad.gradient(m, target=m.graph.output[0].name, adjoint="input"),
    }
    graphs = any(a.type in _GRAPHS for a in case.model.graph.node[0].attribute)
    if graphs:  # a call whose attribute is a graph cannot be opened, which gradient says
        del jobs["gradient"]
    feeds: dict[str, object] = dict(case.inputs)
    if isinstance(case.outputs[0], np.ndarray):  # the adjoint
        feeds[f"{case.model.graph.output[0].name}_grad"] = np.ones_like(case.outputs[0])
    for form in (False, True):
        model = handing_on(case.model, by_default=form)
        for what, job in jobs.items():
            title = f"{what}, {'default' if form else 'call'}"
            try:
                onnxgrad.inspect(model)
                wanted = outcome(lambda job=job: job(case.model), feeds)  # type: ignore[misc]
                got = outcome(lambda job=job, m=model: job(m), feeds)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  # an internal error is what is looked for
                yield title, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                continue
            if isinstance(wanted, str) or isinstance(got, str):
                if wanted != got and not isinstance(wanted, str):
                    yield title, f"{got} where the node has results"
                continue
            bad = [d for d in compare(wanted, got, _CLOSE) if not d.ok]  # type: ignore[arg-type]
            if bad:
                yield title, str(bad[0])
