"""scripts/build_site.py: the site builds, and every link of every page leads somewhere inside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from onnxgrad.help import TOPICS
from scripts import build_site
from tests.examples import chromium


class _Addresses(HTMLParser):
    """The addresses and the anchors of a page, read anew from its HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def dead_links(folder: Path) -> Iterator[str]:
    found = {}
    for path in folder.glob("*.html"):
        found[path.name] = page = _Addresses()
        page.feed(path.read_text(encoding="utf-8"))
    for name, page in found.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            if link.startswith(("https:", "http:")):
                continue
            if not (folder / (path or name)).is_file() or (
                anchor and anchor not in found[path or name].anchors
            ):
                yield f"{name}: {link}"


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    names = build_site.build(tmp_path)
    assert names[0] == "index.html" and len(set(names)) == len(names) == len(build_site.SOURCES)
    assert {f"{topic}.html" for topic in TOPICS} < set(names)
    assert list(dead_links(tmp_path)) == []
    assert all(
        build_site.name_of(s) in (tmp_path / "index.html").read_text() for s in build_site.SOURCES
    )


def test_the_index_of_the_search_has_every_section(tmp_path: Path) -> None:
    build_site.build(tmp_path)
    text = (tmp_path / "index.js").read_text(encoding="utf-8")
    rows = json.loads(text.removeprefix("const INDEX = ").removesuffix(";\n"))
    assert {row[0].partition("#")[0] for row in rows} == {p.name for p in tmp_path.glob("*.html")}
    hostile = [row for row in rows if row[0].startswith("hostile.html")]
    assert len(hostile) > 1 and all(page and heading and words for _, page, heading, words in rows)
    assert not any("**" in row[3] for row in hostile)


@pytest.mark.browser
@pytest.mark.parametrize(("width", "opened"), [(390, False), (1200, True)])
def test_the_search_finds_and_a_phone_shows_the_menu_first(
    tmp_path: Path, width: int, opened: bool
) -> None:
    if chromium.executable() is None:
        pytest.skip("there is no chromium on the path")
    build_site.build(tmp_path)
    with chromium.page() as page:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": not opened}
        page("Emulation.setDeviceMetricsOverride", **size)
        page("Page.navigate", url=(tmp_path / "proof.html").as_uri())
        page.until("document.readyState === 'complete'")
        assert page.run("document.querySelector('nav details').open") is opened
        assert page.run("document.querySelector('nav').getBoundingClientRect().top") < 50
        page.run(
            "search.value = 'backdoor'; search.dispatchEvent(new Event('input')); found.id"
        )  # an element with an id is a global name
        assert page.run("found.querySelector('a').getAttribute('href')").startswith(
            ("hostile.html", "security.html")
        )
        page.run("search.value = 'xyzzy'; search.dispatchEvent(new Event('input')); found.id")
        assert page.run("found.textContent") == "Nothing found."
        assert page.said == []


@pytest.mark.parametrize(
    ("link", "complaint"),
    [("nothing.md", "nothing.md is not there"), ("proof.md#nowhere", "no heading 'nowhere'")],
)
def test_a_dead_link_ends_the_build(
    link: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in build_site.SOURCES:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text("# Title\n", encoding="utf-8")
    (tmp_path / "onnxgrad/help/start.md").write_text(f"# Start\n\n[x]({link})\n", encoding="utf-8")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    with pytest.raises(build_site.BadLink, match=complaint):
        build_site.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_finder_of_dead_links(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="#x"></a><a href="#y"></a><img src="no.svg">'
    )
    assert list(dead_links(tmp_path)) == ["a.html: #y", "a.html: no.svg"]
