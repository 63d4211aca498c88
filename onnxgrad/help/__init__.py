"""The documentation: a page of Markdown for each topic, beside this module.

`onnxgrad help TOPIC` prints them, `scripts/build_site.py` makes a site of them, and
`tests/test_pages.py` runs every command and every Python block that stands in them.
"""

from __future__ import annotations

import re
from importlib.resources import files

from onnxgrad.errors import InputError
from onnxgrad.wording import did_you_mean

# in the order of reading
TOPICS = (
    "start", "install", "commands", "recipes", "reports", "proof", "gradients", "training", "laws",
    "rules", "hostile", "cuda", "faq", "numbers", "coming-from",
)  # fmt: skip
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]+\]\(([\w-]+)\.md\)")


def source(topic: str) -> str:
    """A page as it is written, with links between files. Raises InputError for an unknown topic."""
    if topic not in TOPICS:
        raise InputError(f"no topic '{topic}': {_hint(topic)}")
    return files(__name__).joinpath(f"{topic}.md").read_text(encoding="utf-8")


def page(topic: str) -> str:
    """A page for a terminal, where a link is a command. Raises InputError for an unknown topic."""
    return _LINK.sub(r"`onnxgrad help \1`", source(topic))


def headings(topic: str) -> list[str]:
    """The title of a page and of its sections. Raises InputError for an unknown topic."""
    return _HEADING.findall(_FENCED.sub("", source(topic)))


def _hint(word: str) -> str:
    """The topics that somebody may mean by `word`."""
    if meant := did_you_mean(word, TOPICS):
        return meant
    for topic in TOPICS:
        for heading in headings(topic):
            if word.lower() in heading.lower():
                return f"'{heading}' stands in `onnxgrad help {topic}`"
    return f"there are {', '.join(TOPICS)}"
