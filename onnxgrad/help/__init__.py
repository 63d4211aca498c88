"""The documentation, a Markdown page per topic beside this module, and the search over it.

`onnxgrad help TOPIC` prints the pages, `scripts/build_site.py` makes a site of them, and
`tests/test_pages.py` runs every command and every Python block in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from onnxgrad.errors import InputError

# in the order of reading
TOPICS = (
    "start", "install", "commands", "recipes", "lint", "reports", "proof", "gradients",
    "transformations", "preprocessing", "training", "step-format", "laws", "rules", "hostile",
    "cuda", "faq", "numbers", "compared", "coming-from",
)  # fmt: skip
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]+\]\(([\w-]+)\.md\)")
_MARKUP = re.compile(r"\*\*|`|\[(?=[^\]]*\]\()|(?<=\w)\]\([^)]*\)|\\(?=\|)")
_RULE = re.compile(r"[|\s-]*\n?")
_IN_HEADING, _IN_TOPIC, _MOST = 10, 5, 3  # points of a word for its places; of its repetitions
_SAME = 4  # a word counts as much as this many words of the same meaning
# words of other tools and of the pages with one meaning: each finds the others
_SYNONYMS = """
accuracy difference differs tolerance
backward gradient adjoint
batchnorm batchnormalization bn
bench benchmark latency speed
bind constant
bisect bad-rewrite first-bad
browser on-device mobile phone web node.js
chain combine concatenate join merge preprocessing postprocessing
change edit overwrite replace set
code nodes
compare diff verify
similarity metric
count counts flops
cse common-subexpression merge-equal
data examples feed
dead eliminate unused
debug layers
delete drop prune remove strip unset
device provider cuda gpu
dim dimension dims shape size axis
downgrade upgrade convert-opset target-opset
dump save store
dynamic open symbolic variable
embed fold
failing fails failure wrong
fine-tune finetune train tune
fp16 float16 half half-precision
freeze frozen wrt stop
fuse fold merge
identity no-op noops
input inputs interface
insert add
layer layers weights
lora adapter adapters
memory oom ram
optimise optimize reduce sanitize shrink simplify slim smaller
print text show
random generated seed
reduce smallest
rename renames
resize fix-dim open-batch
static fixed fix-dim
subgraph part extract
tensor tensors values
"""
# words that most questions have and that say nothing
_NOISE = frozenset({
    "a", "an", "and", "as", "by", "do", "for", "from", "graph", "how", "i", "in", "is", "it", "me",
    "model", "models", "my", "of", "on", "onnx", "or", "the", "to", "two", "using", "with",
})  # fmt: skip


@dataclass(frozen=True)
class Passage:
    """A paragraph, list item or table row of a topic, and the heading above it."""

    topic: str
    heading: str
    text: str

    def points(self, words: Iterable[str]) -> int:
        """Returns the rank for a search; 0 if a word is missing. A word may be the beginning of
        a word of the passage, or have a synonym there; `-` and `_` are equal.
        """
        total = 0
        for word in words:
            if not (found := self._points(word)):
                return 0
            total += found
        return total

    def _points(self, word: str) -> int:
        own, others = _patterns(_plain(word))
        return self._found(own) * _SAME or self._found(others)

    def _found(self, pattern: re.Pattern[str]) -> int:
        return sum(
            points * min(most, len(pattern.findall(place))) for place, points, most in self._places
        )

    @cached_property
    def _places(self) -> list[tuple[str, int, int]]:
        texts = map(_plain, (self.topic, self.heading, self.text))
        return list(zip(texts, (_IN_TOPIC, _IN_HEADING, 1), (1, 1, _MOST)))


def source(topic: str) -> str:
    """Returns the Markdown of a page. Raises InputError for an unknown topic."""
    if topic not in TOPICS:
        raise InputError(f"no topic '{topic}': there are {', '.join(TOPICS)}")
    return files(__name__).joinpath(f"{topic}.md").read_text(encoding="utf-8")


def page(topic: str) -> str:
    """Returns a page for a terminal, where a link is a command. Raises InputError for an unknown
    topic.
    """
    return _LINK.sub(r"`onnxgrad help \1`", source(topic))


def headings(topic: str) -> list[str]:
    """Returns the titles of a page and of its sections. Raises InputError for an unknown topic."""
    return _HEADING.findall(_FENCED.sub("", source(topic)))


def passages(topic: str) -> Iterator[Passage]:
    """Yields the passages of a page without its code blocks. Raises InputError for an unknown
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
    """Returns the passages that contain every word, the best first. Words such as "the" or "model"
    only change the order, unless there are no others. If no passage has every word, returns those
    with the most words, at least half.
    """
    every = words.split()
    needed = [word for word in every if word.lower() not in _NOISE] or every
    among = list(among)
    found = [(points + _SAME * p.points(every), p) for p in among if (points := p.points(needed))]
    if not found:
        kept = [([word for word in needed if p.points([word])], p) for p in among]
        most = max(len(words) for words, _ in kept)
        if 2 * most >= len(needed):
            found = [(p.points(words), p) for words, p in kept if 0 < len(words) == most]
    return [p for _, p in sorted(found, key=lambda one: -one[0])]


@cache
def _patterns(word: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns patterns of the word and of its synonyms, as beginnings of words."""
    groups = (line.split() for line in _SYNONYMS.split("\n"))
    others = sorted({w for group in groups if word in group for w in group} - {word})
    one, any_of = re.escape(word), "|".join(map(re.escape, others)) or r"\b\B"
    return re.compile(rf"(?<![^\W_]){one}"), re.compile(rf"(?<![^\W_])(?:{any_of})")


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")
