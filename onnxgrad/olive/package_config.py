"""What `olive run --package-config` takes: where Olive finds our pass.

Such a file stands in the place of Olive's own list, so that a workflow with passes of Olive beside
ours needs both: `python -m onnxgrad.olive.package_config > passes.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from olive.package_config import OlivePackageConfig

OURS = Path(__file__).with_suffix(".json")


def package_config() -> dict[str, Any]:
    """Olive's own passes and ours, for `olive.workflows.run(workflow, package_config=...)`."""
    theirs = Path(OlivePackageConfig.get_default_config_path())
    found: dict[str, Any] = json.loads(theirs.read_text(encoding="utf-8"))
    found["passes"] |= json.loads(OURS.read_text(encoding="utf-8"))["passes"]
    return found


if __name__ == "__main__":
    print(json.dumps(package_config(), indent=2))
