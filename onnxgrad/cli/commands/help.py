"""`onnxgrad help`: prints pages of the documentation and options of commands, and searches both."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from onnxgrad.cli.app import parser_for
from onnxgrad.cli.output import Output
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.extensions import built_in, plugged
from onnxgrad.grad.coverage import coverage
from onnxgrad.help import TOPICS, Passage, headings, page, passages, search
from onnxgrad.passes.pipeline import PASSES
from onnxgrad.report.parts import cell, table
from onnxgrad.wording import did_you_mean

_SHOWN = 12  # results of a search
_BEFORE, _AFTER = 50, 150  # characters of a result around the first word


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0. Raises InputError if no page, command or option has the words."""
    words = " ".join(args.topic)
    if words in COMMANDS:
        parser_for([words]).parse_args([words, "--help"])  # prints, and exits
    if not words:
        titles = {topic: headings(topic)[0] for topic in TOPICS}
        out.json({"topics": titles})
        rows = ((cell(topic, "bold cyan"), title) for topic, title in titles.items())
        hint = "`onnxgrad help TOPIC` prints a page, `onnxgrad help WORDS` searches all of them"
        out.show(table("topic", "content", rows=rows), "", cell(hint, "dim"))
    elif words in TOPICS:
        text = page(words)
        out.json({"topic": words, "title": headings(words)[0], "text": text})
        out.markdown(text)
    else:
        _show(words, search(words, _everything()), out)
    return 0


def _show(words: str, found: list[Passage], out: Output) -> None:
    if not found:
        hint = did_you_mean(words, (*TOPICS, *COMMANDS), f"there are {', '.join(TOPICS)}")
        raise InputError(f"no topic '{words}', and no page has these words: {hint}")
    out.json(
        {
            "words": words,
            "found": [{"topic": p.topic, "heading": p.heading, "text": p.text} for p in found],
        }
    )
    rows = (
        (
            cell(f"onnxgrad help {p.topic}", "bold cyan"),
            p.heading,
            _excerpt(p.text, words.split()[0]),
        )
        for p in found[:_SHOWN]
    )
    out.show(table("read", "heading or option", "text", rows=rows))
    if len(found) > _SHOWN:
        out.show("", cell(f"{len(found) - _SHOWN} more; add a word to narrow the search", "dim"))


def _everything() -> Iterator[Passage]:
    """Yields every passage of the commands, their options, the passes, the operators and the pages;
    equal options once.
    """
    seen = set()
    for name, command in COMMANDS.items():
        yield Passage(name, name, command.summary)
    parser = parser_for([], every=True)
    (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
    for name, sub in commands.items():
        for action in sub._actions:
            option = Passage(name, ", ".join(action.option_strings), action.help or "")
            if option.heading and (option.heading, option.text) not in seen:
                seen.add((option.heading, option.text))
                yield option
    ours = {name: plugged("passes", name) for name in built_in("passes")}
    for name, each in {**PASSES, **ours}.items():
        yield Passage("passes", name, each.law())
    for row in coverage():
        text = f"{row.name} (opset {row.since}): `onnxgrad ops {row.name}` shows its gradient"
        yield Passage("ops", "an operator", text)
    for topic in TOPICS:
        yield from passages(topic)


def _excerpt(text: str, word: str) -> str:
    start = max(text.lower().find(word.lower()) - _BEFORE, 0)
    start = text.find(" ", start) + 1 if start else 0
    end = text.rfind(" ", 0, start + _AFTER) if len(text) > start + _AFTER else len(text)
    return f"{'... ' if start else ''}{text[start:end]}{'' if end == len(text) else ' ...'}"
