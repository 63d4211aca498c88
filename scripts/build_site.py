"""The documentation as a site of static pages: README, the topics of `onnxgrad help`, the
documents of the repository.

    python scripts/build_site.py FOLDER

Needs markdown-it-py, which the extra `docs` installs (rich does, too). Every link between the
pages, and every heading that a link points to, is checked: a missing target ends the build with a
line that says where the link is. The pages load nothing from other sites; the search reads an index
beside them.
"""

from __future__ import annotations

import argparse
import html
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from onnxgrad.help import TOPICS

ROOT = Path(__file__).resolve().parents[1]
GUIDE = [f"onnxgrad/help/{topic}.md" for topic in TOPICS]
REPOSITORY = [
    "ARCHITECTURE.md", "CONTRIBUTING.md", "ORIGINS.md", "SECURITY.md", "CHANGELOG.md",
    "onnxgrad/grad/OPERATORS.md", "models/README.md", "models/training/README.md",
]  # fmt: skip
SOURCES = ["README.md", *GUIDE, *REPOSITORY]
STYLE = ROOT / "scripts" / "site.css"
SEARCH = ROOT / "scripts" / "site_search.js"


class BadLink(Exception):
    """A link to a page, a heading or a file that does not exist."""


@dataclass
class Page:
    """A page: its source, its file in the site, its tokens, and its headings by anchor."""

    source: str
    name: str
    tokens: list[Token]
    title: str = ""
    anchors: dict[str, str] = field(default_factory=dict)


def name_of(source: str) -> str:
    """The file of a page in the site, all in one folder."""
    path = Path(source)
    if source == "README.md":
        return "index.html"
    stem = f"{path.parent.name}-models" if path.stem == "README" else path.stem.lower()
    return f"{stem.removeprefix('models-')}.html"


def file_name(source: str) -> str:
    """The name in the site of a file that pages need; the site has one folder."""
    return source.replace("/", "-")


def slug(text: str) -> str:
    """Returns the anchor of a heading, by the rule of GitHub and similar sites."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def read(source: str, parser: MarkdownIt) -> Page:
    """Parses a page and adds anchors to its headings."""
    text = (ROOT / source).read_text(encoding="utf-8")
    page = Page(source, name_of(source), parser.parse(text))
    for opening, inline in zip(page.tokens, page.tokens[1:]):
        if opening.type != "heading_open":
            continue
        words = "".join(t.content for t in inline.children or ())
        page.title = page.title or words
        anchor = slug(words)
        if anchor in page.anchors:
            anchor = f"{anchor}-{len(page.anchors)}"
        page.anchors[anchor] = words
        opening.attrSet("id", anchor)
    label_cells(page.tokens)
    return page


def label_cells(tokens: list[Token]) -> None:
    """Adds its column's heading to each cell of a wide table, which phones show as lists."""
    heads: list[str] = []
    for opening, inline in pairwise(tokens):
        if opening.type == "table_open":
            heads, table, column = [], opening, 0
        elif opening.type == "tr_open":
            column = 0
        elif opening.type == "th_open":
            heads.append(plain(inline))
            if len(heads) == 3:
                table.attrSet("class", "stack")
        elif opening.type == "td_open":
            opening.attrSet("data-label", heads[column])
            column += 1


def links(tokens: list[Token]) -> Iterator[tuple[Token, str]]:
    """Yields tokens whose address may point into the site, with the name of that attribute."""
    for token in tokens:
        yield from links(token.children or [])
        for attribute in ("href", "src"):
            address = token.attrGet(attribute)
            if address and not re.match(r"[a-z]+:", str(address)):
                yield token, attribute


def resolve(page: Page, pages: dict[str, Page]) -> set[str]:
    """Makes a page's links point into the site. Returns the files that the page needs.

    Raises BadLink.
    """
    files = set()
    for token, attribute in links(page.tokens):
        address = str(token.attrGet(attribute))
        path, _, anchor = address.partition("#")
        source = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page.source), path))
            if path
            else page.source
        )
        if source in pages:
            if anchor and anchor not in pages[source].anchors:
                raise BadLink(f"{page.source}: no heading '{anchor}' in {source}")
            token.attrSet(attribute, pages[source].name + (f"#{anchor}" if anchor else ""))
        elif (ROOT / source).is_file():
            files.add(source)
            token.attrSet(attribute, f"files/{file_name(source)}")
        else:
            raise BadLink(f"{page.source}: {address} is not there")
    return files


def navigation(current: Page, pages: dict[str, Page]) -> str:
    """Returns the HTML of the list of all pages."""
    parts = []
    for title, sources in (
        ("Start", ["README.md"]),
        ("Topics", GUIDE),
        ("The repository", REPOSITORY),
    ):
        items = []
        for source in sources:
            page = pages[source]
            here = ' aria-current="page"' if page is current else ""
            items.append(f'<li><a href="{page.name}"{here}>{html.escape(page.title)}</a></li>')
        parts.append(f"<p>{title}</p><ul>{''.join(items)}</ul>")
    search = (
        '<input id="search" type="search" placeholder="Search" aria-label="Search the pages" '
        'autocomplete="off"><ul id="found"></ul>'
    )
    # open if there is room beside the text; a phone shows one line, which opens at a tap
    return f"<nav>{search}<details open><summary>Menu</summary>{''.join(parts)}</details></nav>"


def plain(token: Token) -> str:
    """Returns the text of a paragraph without its markup."""
    return " ".join("".join(t.content or " " for t in token.children or ()).split())


def sections(page: Page) -> Iterator[tuple[str, str, str]]:
    """Returns the anchor, the heading and the text of each section, for the search."""
    anchor, words = "", list[str]()
    for token in page.tokens:
        if token.type == "heading_open":
            yield anchor, page.anchors.get(anchor, page.title), " ".join(words)
            anchor, words = str(token.attrGet("id")), []
        elif token.type == "inline" and page.anchors.get(anchor) != (text := plain(token)):
            words.append(text)
        elif token.type in ("fence", "code_block"):
            words.append(" ".join(token.content.split()))
    yield anchor, page.anchors.get(anchor, page.title), " ".join(words)


def index(pages: dict[str, Page]) -> str:
    """Returns the search index as a script, because pages opened from a disk cannot fetch data."""
    rows = [
        [f"{page.name}#{anchor}" if anchor else page.name, page.title, heading, text]
        for page in pages.values()
        for anchor, heading, text in sections(page)
        if text
    ]
    return f"const INDEX = {json.dumps(rows, ensure_ascii=False)};\n"


def rendered(page: Page, pages: dict[str, Page], parser: MarkdownIt) -> str:
    """Returns the whole page as HTML."""
    body = parser.renderer.render(page.tokens, parser.options, {})
    body = re.sub(r"<table.*?</table>", r'<div class="table">\g<0></div>', body, flags=re.DOTALL)
    title = page.title if page.title == "onnxgrad" else f"{page.title} - onnxgrad"
    scripts = "".join(f'<script src="{name}" defer></script>' for name in ("index.js", "search.js"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><link rel="stylesheet" href="style.css">{scripts}</head>
<body><div class="page">{navigation(page, pages)}<main>{body}</main></div></body></html>
"""


def build(folder: Path) -> list[str]:
    """Writes the site into `folder` and returns the names of its pages.

    Raises BadLink before anything is written.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    pages = {source: read(source, parser) for source in SOURCES}
    files = set().union(*(resolve(page, pages) for page in pages.values()))
    (folder / "files").mkdir(parents=True, exist_ok=True)
    shutil.copy(STYLE, folder / "style.css")
    shutil.copy(SEARCH, folder / "search.js")
    (folder / "index.js").write_text(index(pages), encoding="utf-8")
    for source in sorted(files):
        shutil.copy(ROOT / source, folder / "files" / file_name(source))
    for page in pages.values():
        (folder / page.name).write_text(rendered(page, pages, parser), encoding="utf-8")
    return [page.name for page in pages.values()]


def main() -> int:
    """Builds the site. Returns 1 if a link has no target."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("folder", type=Path, metavar="FOLDER", help="where the site is written")
    folder = arguments.parse_args().folder
    try:
        names = build(folder)
    except BadLink as error:
        print(f"build_site: {error}", file=sys.stderr)
        return 1
    print(f"{len(names)} pages in {folder}, beginning with {folder / names[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
