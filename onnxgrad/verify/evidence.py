"""The parts of a report beside its checks: values inside the models, regions between
discontinuities, inputs that are not finite, and the scale of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.compare import Difference
from onnxgrad.wording import counted


@frozen
class Layer(Plain):
    """A value of both models: `name` in the first, `other` in the second. `by` is the evidence for
    the pair. `difference` is that of the worst element.
    """

    json_keys = "name other by operator difference"

    name: str
    other: str
    by: str
    operator: str
    difference: Difference

    def __str__(self) -> str:
        other = "" if self.other == self.name else f" ({self.other} in the second model)"
        return f"{self.operator} {self.difference}{other}"


@frozen
class Layers(Plain):
    """The paired values in the order of the first model, on one set of feeds (`case`); `unpaired`
    are values of the first model without a certain counterpart.
    """

    json_keys = "paired case first worst unpaired notes pairs"

    pairs: tuple[Layer, ...]
    case: str = ""
    unpaired: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def paired(self) -> int:
        """The number of compared values."""
        return len(self.pairs)

    @property
    def first(self) -> Layer | None:
        """The first value that differs by more than its tolerance."""
        return next((layer for layer in self.pairs if not layer.difference.ok), None)

    @property
    def worst(self) -> Layer | None:
        """The value with the largest relative difference, among those that differ by more than
        their tolerance.
        """
        wrong = [layer for layer in self.pairs if not layer.difference.ok]
        return max(wrong, key=lambda layer: layer.difference.rel, default=None)

    @property
    def lines(self) -> list[str]:
        """Returns the result as lines of text."""
        more = f", {len(self.unpaired)} have no counterpart" if self.unpaired else ""
        answer = "" if self.first else "; all agree"
        head = f"layers: {counted(self.paired, 'value')} compared{more} ({self.case}){answer}"
        both = (("first difference", self.first), ("largest difference", self.worst))
        found = [f"  {title}: {layer}" for title, layer in both if layer is not None]
        return [head, *found, *(f"  {note}" for note in self.notes)]


@frozen
class Regions(Plain):
    """A comparison between discontinuities. `cuts`: their number by operator. `end_to_end`: the
    differences of whole runs. `noise`: the original's from itself, by output. `worst`: the largest
    difference at the end of a region. `why`: why regions decided nothing, if whole runs did.
    """

    json_keys = "cuts end_to_end worst why"

    cuts: Mapping[str, int]
    end_to_end: tuple[Difference, ...]
    noise: Mapping[str, float]
    worst: Difference | None = None
    why: str = ""

    @property
    def lines(self) -> list[str]:
        """Returns the result as lines of text."""
        if self.why:
            return [f"regions decide nothing, whole runs do: {self.why}"]
        cuts = ", ".join(f"{count} {name}" for name, count in self.cuts.items())
        where = "" if self.worst is None else f"; worst region: {self.worst}"
        number = counted(sum(self.cuts.values()), "cut")
        return [f"regions: {number} ({cuts}){where}", *(f"  {e}" for e in self.ends)]

    @property
    def ends(self) -> list[str]:
        """Returns the differences of whole runs as text."""
        return [f"end to end, {replace(d, noise=self.own(d)).doubt}" for d in self.end_to_end]

    def own(self, difference: Difference) -> float:
        """Returns how far the original differs from itself in the output of a difference."""
        return self.noise.get(difference.output, 0.0)


@frozen
class NonFinite(Plain):
    """The comparison on inputs with NaN and infinite values, which the verdict does not depend on.
    `difference`: the first one, None if the results are equal. `why`: why the second model does not
    run on them.
    """

    json_keys = "equal line difference"

    difference: Difference | None = None
    why: str = ""

    @property
    def equal(self) -> bool:
        """Whether both models agree."""
        return self.difference is None and not self.why

    @property
    def line(self) -> str:
        """Returns the result in one line."""
        if self.why:
            return f"non-finite inputs: the second model does not run ({self.why})"
        found = self.difference
        if found is None:
            return "non-finite inputs: equal"
        at = "" if found.index is None else f"[{', '.join(map(str, found.index))}]"
        a, b = (_value(v) for v in (found.a, found.b))
        how = f"{b} where the original has {a}" if found.index is not None else found.reason
        return f"non-finite inputs: differ at output {found.output}{at} ({how})"


@frozen
class Scales(Plain):
    """The largest scale of the inputs at which a converted model holds its bounds, and the first at
    which it fails, with the worst difference; none if every tried scale held.
    """

    json_keys = "line held failed difference"

    held: str
    failed: str = ""
    difference: Difference | None = None

    @property
    def line(self) -> str:
        """Returns the result in one line."""
        more = f"; fails at {self.failed} ({self.difference})" if self.failed else ""
        return f"inputs hold up to {self.held}{more}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.7g}"
    return str(value)
