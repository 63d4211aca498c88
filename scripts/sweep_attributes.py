"""Runs every node case of ONNX's backend suite as a call of a function that passes its attributes.

    python scripts/sweep_attributes.py [--only OP] [--every N]

The function's node refers to the call for every attribute of its schema, whether the case sets it
or not. The values are attributes of the call, or the function's defaults. Reading, `optimize`,
`inline`, the float64 reference and `gradient` must treat the call like the node.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.handing_on import failures, single_nodes  # noqa: E402  # runs from a checkout


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [c for c in single_nodes() if given.only in ("", c.model.graph.node[0].op_type)]
    counts: Counter[str] = Counter()
    operators = set()
    for case in cases[:: given.every]:
        operators.add(case.model.graph.node[0].op_type)
        counts["cases"] += 1
        for what, wrong in failures(case):
            counts["failures"] += 1
            print(f"{case.name} | {what} | {wrong}", flush=True)
    print(f"{len(operators)} operators, {dict(counts)}")
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
