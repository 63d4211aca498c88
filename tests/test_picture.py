"""The pictures of README and ARCHITECTURE are what the models, the records and the imports say today."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from scripts import draw_house, make_picture
from tests.test_architecture import LAYERS


def test_the_picture_is_up_to_date_and_nothing_is_cut_off() -> None:
    text = make_picture.PICTURE.read_text(encoding="utf-8")
    assert text == make_picture.picture(), "write it anew: python scripts/make_picture.py"
    boxes = ElementTree.fromstring(text).findall("{*}rect")
    assert len(boxes) > 50
    for box in boxes:
        x, y, width, height = (float(box.attrib[n]) for n in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0
        assert x + width <= make_picture.WIDTH and y + height <= make_picture.HEIGHT


def test_readme_shows_it() -> None:
    readme = (make_picture.ROOT / "README.md").read_text(encoding="utf-8")
    (address,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", readme)
    assert make_picture.ROOT / address == make_picture.PICTURE


def test_a_graph_is_laid_out_before_its_readers() -> None:
    nodes = [
        make_picture.Node("Exp", ["x"], ["a"]),
        make_picture.Node("Neg", ["a"], ["b"]),
        make_picture.Node("Add", ["a", "b"], ["y"]),
    ]
    assert make_picture.before(nodes, "b") == nodes[:2]
    make_picture.before_readers(nodes, gap=20)
    assert nodes[0].x < nodes[1].x < nodes[2].x < 0


def test_the_picture_of_the_house_shows_todays_rooms_and_imports() -> None:
    """Numbers of files and lines may be of the last drawing; rooms and arcs may not."""
    sizes, arrows = draw_house.rooms(LAYERS)
    text = draw_house.PICTURE.read_text(encoding="utf-8")
    shown = re.findall(r"<title>(\w+) imports (\w+) ", text)
    assert re.findall(r">(\w+)/</text>", text) == list(sizes)
    assert sorted(shown) == sorted(arrows) and len(shown) > 20
    order = list(sizes)
    assert all(order.index(above) < order.index(below) for above, below in shown)
