"""The documentation, a Markdown page per topic beside this module, and the search over it.

`onnxgrad help TOPIC` prints the pages, `scripts/build_site.py` makes a site of them, and
`tests/test_pages.py` runs every command and every Python block in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files

from onnxgrad.errors import InputError

# in the order of reading
TOPICS = (
    "start", "install", "commands", "recipes", "reports", "proof", "gradients", "training",
    "step-format", "laws", "rules", "hostile", "cuda", "faq", "numbers", "coming-from",
)  # fmt: skip
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]+\]\(([\w-]+)\.md\)")
_MARKUP = re.compile(r"\*\*|`|\[(?=[^\]]*\]\()|(?<=\w)\]\([^)]*\)|\\(?=\|)")
_RULE = re.compile(r"[|\s-]*\n?")
_IN_HEADING, _IN_TOPIC, _MOST = 10, 5, 3  # points of a word for its places; of its repetitions


@dataclass(frozen=True)
class Passage:
    """A paragraph, list item or table row of a topic, and the heading above it."""

    topic: str
    heading: str
    text: str

    def points(self, words: Iterable[str]) -> int:
        """Return the rank for a search; 0 if a word is missing. A word may be the beginning of
        a word of the passage; `-` and `_` are equal.
        """
        total = 0
        places = ((self.topic, _IN_TOPIC, 1), (self.heading, _IN_HEADING, 1), (self.text, 1, _MOST))
        for word in words:
            pattern = re.compile(rf"(?<![^\W_]){re.escape(_plain(word))}")
            found = sum(
                points * min(most, len(pattern.findall(_plain(place))))
                for place, points, most in places
            )
            if not found:
                return 0
            total += found
        return total


def source(topic: str) -> str:
    """Return the Markdown of a page. Raises InputError for an unknown topic."""
    if topic not in TOPICS:
        raise InputError(f"no topic '{topic}': there are {', '.join(TOPICS)}")
    return files(__name__).joinpath(f"{topic}.md").read_text(encoding="utf-8")


def page(topic: str) -> str:
    """Return a page for a terminal, where a link is a command. Raises InputError for an unknown
    topic.
    """
    return _LINK.sub(r"`onnxgrad help \1`", source(topic))


def headings(topic: str) -> list[str]:
    """Return the titles of a page and of its sections. Raises InputError for an unknown topic."""
    return _HEADING.findall(_FENCED.sub("", source(topic)))


def passages(topic: str) -> Iterator[Passage]:
    """Yield the passages of a page without its code blocks. Raises InputError for an unknown
    topic.
    """
    heading = ""
    for block in re.split(r"\n\s*\n", _FENCED.sub("\n", source(topic))):
        if found := _HEADING.match(block.strip()):
            heading = found[1]
            continue
        for text in re.split(r"\n(?=- |\|)", block.strip()):
            if not _RULE.fullmatch(text):
                words = " ".join(_MARKUP.sub("", text).split())
                yield Passage(topic, heading, words.removeprefix("- ").strip("| "))


def search(words: str, among: Iterable[Passage]) -> list[Passage]:
    """Return the passages that contain every word, the best first."""
    ranked = ((p.points(words.split()), p) for p in among)
    return [p for points, p in sorted(ranked, key=lambda r: -r[0]) if points]


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")
