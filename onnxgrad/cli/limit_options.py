"""What `--timeout` and `--max-memory` say: what the work on one model may cost, on the command line
for our own process too.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from onnxgrad.limits import SECONDS
from onnxgrad.verify.running.process_limits import bounding_us


def within_limits(args: argparse.Namespace, extra: float = 0.0) -> AbstractContextManager[None]:
    """The work on one model, bound by the options; `extra` seconds are asked for and do not
    count. Raises LimitReached.
    """
    seconds = SECONDS if args.timeout is None else args.timeout
    return bounding_us(seconds + extra, args.max_memory)
