"""`onnxgrad help`: the documentation in the terminal, and the options of a command."""

from __future__ import annotations

import argparse

from onnxgrad.cli.app import parser_for
from onnxgrad.cli.output import Output
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.help import TOPICS, headings, page
from onnxgrad.report.parts import cell, table


def run(args: argparse.Namespace, out: Output) -> int:
    """Always 0. Raises InputError for an unknown topic."""
    if args.topic in COMMANDS:
        parser_for([args.topic]).parse_args([args.topic, "--help"])  # prints, and leaves
    if args.topic is None:
        titles = {topic: headings(topic)[0] for topic in TOPICS}
        out.json({"topics": titles})
        rows = ((cell(topic, "bold cyan"), title) for topic, title in titles.items())
        listed = table("topic", "what it is about", rows=rows)
        out.show(listed, "", cell("`onnxgrad help TOPIC` prints one of them", "dim"))
        return 0
    text = page(args.topic)
    out.json({"topic": args.topic, "title": headings(args.topic)[0], "text": text})
    out.markdown(text)
    return 0
