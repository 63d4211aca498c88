"""A command as the question whether a model still fails: what `reduce` asks of each candidate."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.limits import current


@dataclass(frozen=True)
class Command:
    """The words of a command (`{}` stands for the model's path, which else comes last), run without
    a shell.

    It writes the model into `folder`. A model fails when the command ends with `status` (None: any
    but 0; a command that a signal ended counts as 128 and its number) and prints `says`; a command
    that takes longer than `timeout` seconds says nothing.
    """

    words: Sequence[str]
    folder: Path
    status: int | None = None
    says: str = ""
    timeout: float = 60.0

    def fails(self, model: ModelProto) -> bool:
        """Whether the model fails. Raises InputError when the command cannot be run."""
        return self._means(*self.run(model))

    def on_original(
        self, model: ModelProto, name: str, statuses: Collection[int] | None = None
    ) -> Command:
        """The command that asks for the failure that `model`, called `name`, shows: with
        `statuses`, and none asked for, the one of these that it ends with. Raises InputError when
        `model` does not fail, or the command cannot be run.
        """
        code, said = self.run(model)
        fails = self._means(code, said) and code != 0
        if self.status is not None or statuses is None:
            asked = self
        else:
            asked, fails = replace(self, status=code), fails and code in statuses
        if fails:
            return asked
        last = " ".join(said.split()[-40:]) if code else ""  # what went well need not be told
        ended = f"took longer than {self.timeout:g} s" if code is None else f"ends with {code}"
        raise InputError(
            f"{name}: the check does not fail on it, so there is nothing to reduce: it {ended}"
            + (f" and says: {last[-300:]}" if last else "")
        )

    def run(self, model: ModelProto) -> tuple[int | None, str]:
        """(exit status, what it printed); None when it took too long. Raises InputError when it
        cannot be run.
        """
        path = self.folder / "candidate.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        words = [w.replace("{}", str(path)) for w in self.words]
        if words == list(self.words):
            words.append(str(path))
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"--check: cannot run {words[0]}: {reason}") from error
        with process:
            try:
                said, _ = process.communicate(timeout=min(self.timeout, current().left()))
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # whatever it started
        code = process.returncode
        return (128 - code if code < 0 else code), said.decode("utf-8", "replace")

    def _means(self, code: int | None, said: str) -> bool:
        if code is None or self.says not in said:
            return False
        return code != 0 if self.status is None else code == self.status
