"""The names by which Olive's configurations know our pass and its file; the modules are in the
folder of plug-ins.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "plugins" / "olive")]
