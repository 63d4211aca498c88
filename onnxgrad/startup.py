"""Steps that come before the imports, which take half a second."""

# `signal` imports enum, which takes longer than all that is done here
import _signal  # type: ignore[import-not-found]  # typeshed has none
import os
import sys


def _starts_us() -> bool:
    """Whether Python was started as `onnxgrad` or `python -m onnxgrad`, not by a program that
    imports us.
    """
    if sys.argv[:1] == ["-m"]:  # so it is while the package's own __init__ runs
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["onnxgrad"]
    return os.path.basename(sys.argv[0] if sys.argv else "") in ("onnxgrad", "onnxgrad.exe")


# asked once: `python -m` changes sys.argv as soon as the package is imported
IS_PROGRAM = _starts_us()


def end_at_interrupt() -> None:
    """Let Ctrl-C end the program without a traceback until `cli.app.main` takes over, and after
    it.
    """
    if IS_PROGRAM and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


end_at_interrupt()

# Wheels of onnxruntime report on use to its makers, and keep an identifier and a database at home,
# unless this is set when it is imported: here, in children, in workers, by plugins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
