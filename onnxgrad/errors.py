"""The errors that users can meet. Each message is one line: what is wrong, where, and what to
do.
"""

from __future__ import annotations

import pickle
from typing import Any

# longer messages are cut in the middle: they may quote a long input, such as a graph
_LONGEST = 2000


class OnnxgradError(Exception):
    """Base of every error that this package raises on purpose. `exit_code` is that of the command
    line.

    Every subclass can be pickled, whatever its constructor's parameters, because process pools
    pickle errors.
    """

    exit_code = 3

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: _survivor(value) for name, value in self.__dict__.items()}
        return _again, (type(self), tuple(map(_survivor, self.args)), kept)


class _OneLine(OnnxgradError):
    """An answer rather than a fault: a notebook shows its message without our frames."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython prints."""
        return [f"{type(self).__name__}: {self}"]


def _survivor(value: Any) -> Any:
    """Returns the value, or None if it cannot be pickled: a pool that cannot read an error waits
    for it forever.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  # pickling may raise anything, and the error must arrive
        return None
    return value


def _again(
    cls: type[OnnxgradError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> OnnxgradError:
    """Returns a copy of an error without calling its constructor, which may have other
    parameters.
    """
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


class InputError(_OneLine):
    """The model, a file or the usage is bad (exit code 2)."""

    exit_code = 2


class CannotRun(InputError):
    """The reference model of a proof does not run on any inputs that we can generate."""


class UnknownDtype(InputError):
    """A constant needs the dtype of a value whose dtype is unknown, and no operator can produce
    that constant. Rules then decline.
    """


class NotProved(_OneLine):
    """The answer is no: results differ, a gradient is wrong, or a requirement is missed (exit code
    1).
    """

    exit_code = 1


class Unsupported(NotProved):
    """The float64 reference cannot run this model: it lacks an operator, a kernel failed, or time
    or memory ran out.
    """


class NodeFailed(Unsupported):
    """A node raises an error in the float64 reference: its kernel refuses these operands."""


class RuleFailed(OnnxgradError):
    """The caller's rewrite rule failed, or returned a value that cannot replace its match (exit
    code 1). `rule` is its name, `file` and `line` are where it failed; the cause is chained.
    """

    exit_code = 1

    def __init__(self, rule: str, where: str, reason: str, file: str = "", line: int = 0) -> None:
        self.rule, self.file, self.line = rule, file, line
        place = f" ({file}, line {line})" if file else ""
        super().__init__(f"rule {rule} failed at {where}{place}: {reason}")


class RuleWarning(UserWarning):
    """A rewrite rule of this package failed at one place. The graph is unchanged there."""


class RunWarning(UserWarning):
    """A training run continues with other options than those of its checkpoint, or ignores an array
    of its data that nothing reads.
    """


class InternalError(OnnxgradError):
    """A fault of onnxgrad, such as a rule that does not terminate (exit code 3)."""


class DoesNotType(InternalError):
    """An emitted node that the opset does not have for the types of its operands."""
