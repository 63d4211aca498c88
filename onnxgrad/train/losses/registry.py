"""Losses as text: `cross_entropy{label_smoothing=0.1} + 1e-4*l2_penalty{params=*.weight}`, for
the command line.
"""

from __future__ import annotations

import re

from onnxgrad.errors import InputError
from onnxgrad.named_options import build, declared
from onnxgrad.options import known_keywords
from onnxgrad.train.losses import base, classification, ctc, embedding, penalty, regression
from onnxgrad.train.losses.base import Loss, Output, Sum
from onnxgrad.wording import perhaps

_MODULES = (classification, regression, embedding, ctc, penalty, base)
LOSSES: dict[str, type[Loss]] = {
    cls.name: cls for module in _MODULES for cls in declared(module, Loss) if cls.name
}

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_TERM = re.compile(rf"\s*(?:({_NUMBER})\s*\*)?\s*([^\s+*{{}}]+)\s*(?:\{{([^{{}}]*)\}})?\s*(\+|$)")


@known_keywords
def parse_loss(text: str) -> Loss:
    """Returns the loss of a text: terms `[NUMBER*]NAME[{option=value,option=value}]` with `+`
    between them.

    NAME is one of `LOSSES`, or a scalar of the model. Options are those of the class; a list is
    written `[1,2,3]`, and several globs with `;` between them. Raises InputError if the text cannot
    be read, and for an unknown option.
    """
    terms: list[tuple[float, Loss]] = []
    position, more = 0, "+"
    while more:
        found = _TERM.match(text, position)
        if found is None:
            raise InputError(
                f"cannot read the loss at '{text[position:]}': write NAME{{option=value}} + "
                "0.5*NAME"
            )
        factor, name, options, more = found.groups()
        terms.append((float(factor or 1.0), _loss(name, options)))
        position = found.end()
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1.0 else Sum(tuple(terms))


def _loss(name: str, options: str | None) -> Loss:
    cls = LOSSES.get(name)
    if cls is None:
        if options is None:
            return Output(name)
        raise InputError(
            f"unknown loss '{name}'{perhaps(name, LOSSES)}: choose from {', '.join(sorted(LOSSES))}"
        )
    return build(name, cls, options or "")
