"""The file for `olive run --package-config`, in which Olive finds our pass.

Such a file replaces Olive's own list, so it must contain Olive's passes, too: `python -m
onnxgrad.olive.package_config > passes.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from olive.package_config import OlivePackageConfig

OURS = Path(__file__).parents[2] / "olive" / "package_config.json"  # users name this file


def package_config() -> dict[str, Any]:
    """Returns Olive's passes and ours, for `olive.workflows.run(workflow, package_config=...)`."""
    theirs = Path(OlivePackageConfig.get_default_config_path())
    found: dict[str, Any] = json.loads(theirs.read_text(encoding="utf-8"))
    found["passes"] |= json.loads(OURS.read_text(encoding="utf-8"))["passes"]
    return found


if __name__ == "__main__":
    print(json.dumps(package_config(), indent=2))
