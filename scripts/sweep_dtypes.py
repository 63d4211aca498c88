"""Differentiates every node case of ONNX's backend suite in float16, bfloat16 and float64.

    python scripts/sweep_dtypes.py

If onnxruntime runs the forward model, the gradient must run and agree with the float64 reference of
the same graph. Prints the counts of all outcomes. The exit code is 1 if something failed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.backend_suite import case  # noqa: E402  # runs from a checkout
from tests.grad.dtype_cases import DTYPES, sweep  # noqa: E402
from tests.grad.test_suite import RUNS, cases  # noqa: E402
from tests.suite_table import any_opset  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = cases(RUNS)[:: given.every]
    with any_opset():
        counts, failures = sweep(map(case, names), DTYPES)
    print(f"{len(names)} cases")
    for what, n in sorted(counts.items()):
        print(f"  {n:5} {what}")
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
