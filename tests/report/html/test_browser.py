"""The page in a headless Chromium: silent, searchable, clickable, quick, and whole at every width."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.grad import differentiate
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.jobs.outcome import OptimizedModel
from onnxgrad.report.gradient import GradientMade
from onnxgrad.report.html.ci import ci_page
from onnxgrad.report.html.gradient import gradient_page
from tests.examples import chromium
from tests.report.html.common import chain, hostile_model
from tests.report.html.test_optimized import refuted

pytestmark = pytest.mark.browser

SIZES = [(width, dark) for width in (400, 1600) for dark in (False, True)]


@pytest.fixture
def browser() -> Iterator[chromium.Page]:
    if chromium.executable() is None:
        pytest.skip("there is no chromium on the path")
    with chromium.page() as page:
        yield page


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = onnxgrad.optimize("models/bert.raw.onnx", report=True, seeds=[0])
    return written(tmp_path_factory.mktemp("page") / "report.html", done.to_html())


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def go(browser: chromium.Page, path: Path, width: int = 1600, dark: bool = False) -> float:
    """Open a page; the seconds until it is drawn."""
    browser(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser("Emulation.setEmulatedMedia", features=[scheme])
    started = time.perf_counter()
    browser("Page.navigate", url=path.as_uri())
    browser.until("document.documentElement?.dataset.ready === 'yes'")
    return time.perf_counter() - started


def text(browser: chromium.Page, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').innerText")


def search(browser: chromium.Page, words: str) -> int:
    """Type into the search; how many rows it found."""
    browser.run(
        "{const i = document.querySelector('input[type=search]'); i.focus(); "
        f"i.value = {words!r}; i.dispatchEvent(new Event('input'));}}"
    )
    return browser.run("document.querySelectorAll('.results [role=option]').length")


def silent(browser: chromium.Page) -> None:
    assert browser.said == []
    assert [a for a in browser.asked if not a.startswith("file://")] == []
    assert len(set(browser.asked)) == 1


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_it_fits_and_says_first_what_counts(
    browser: chromium.Page, optimized: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    go(browser, optimized, width, dark)
    browser.look(tmp_path / "page.png", width, dark)
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert browser.run("document.documentElement.scrollWidth") == width
    assert "equal" in text(browser, ".verdict")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
    # nothing that is read sticks out of the window, and every plot is drawn
    assert (
        browser.run(
            "[...document.querySelectorAll('h1, h2, .card, .verdict, .pane, .details')].filter((e) => { const r = e.getBoundingClientRect(); return r.width && (r.left < 0 || r.right > innerWidth + 1); }).length"
        )
        == 0
    )
    assert browser.run(
        "[...document.querySelectorAll('.plot')].every((p) => p.querySelector('canvas')?.width > 100)"
    )
    silent(browser)


@pytest.mark.parametrize(("width", "dark"), SIZES[::3])
def test_everything_has_a_name(
    browser: chromium.Page, optimized: Path, width: int, dark: bool
) -> None:
    go(browser, optimized, width, dark)
    nodes = [n for n in browser("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
    named = [
        n
        for n in nodes
        if n["role"]["value"] in ("button", "searchbox", "tab", "heading", "complementary")
    ]
    assert len(named) > 15
    assert [n for n in named if not n.get("name", {}).get("value")] == []


def test_a_search_shows_the_node_and_a_click_its_rewrites(
    browser: chromium.Page, optimized: Path
) -> None:
    go(browser, optimized)
    assert search(browser, "nothing is called so") == 0
    assert search(browser, "layernorm layer.5 output") > 0
    browser.run(
        "document.querySelector('input[type=search]').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
    )
    details = text(browser, ".details")
    assert "LayerNormalization" in details and "results" in details and "operands" in details
    box = "document.querySelector('.box.selected').getBoundingClientRect()"
    pane = "document.querySelector('.box.selected').closest('.pane').getBoundingClientRect()"
    browser.until(
        f"{box}.top > {pane}.top && {box}.bottom < {pane}.bottom && {box}.left > {pane}.left && {box}.right < {pane}.right",
        5,
    )
    # a law, its places, one of them, and from there into the graph
    browser.run(
        "[...document.querySelectorAll('.chip')].find((c) => c.innerText.includes('identity') || c.innerText.includes('cast')).click()"
    )
    assert "=" in text(browser, ".details .law")
    browser.run("document.querySelectorAll('.details .row')[0].click()")
    found = text(browser, ".details")
    assert "place" in found and "proof" in found and "with the whole model: equal" in found
    silent(browser)


# how far the selected box of each pane lies from the middle of it, in pixels
OFF = """[...document.querySelectorAll('.pane')].map((pane) => {
  const middle = (e) => { const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; };
  const box = pane.querySelector('.box.selected');
  if (!box) return null;
  const [a, b] = [middle(box), middle(pane.querySelector('svg'))];
  return Math.round(Math.hypot(a[0] - b[0], a[1] - b[1]));
})"""


def test_it_opens_at_the_first_rewrite(browser: chromium.Page, optimized: Path) -> None:
    go(browser, optimized)
    assert text(browser, ".details h3") == "Rewrite 1"
    browser.until(f"{OFF}.filter((off) => off !== null).every((off) => off < 2)", 5)
    assert browser.run("document.querySelectorAll('.pane .box.selected').length") >= 1
    # the overview is one click away, and a rule moves both panes to its first place
    browser.run("document.querySelector('.details .back').click()")
    assert "rewrites" in text(browser, ".details h3")
    browser.run(
        "[...document.querySelectorAll('.details .row')].find((r) => r.innerText.startsWith('combine_parallel')).click()"
    )
    assert "=" in text(browser, ".details .law")
    browser.until(f"{OFF}.length === 2 && {OFF}.every((off) => off !== null && off < 2)", 5)
    silent(browser)


def test_a_narrow_page_keeps_the_place_behind_its_tabs(
    browser: chromium.Page, optimized: Path
) -> None:
    go(browser, optimized, 400)
    browser.run("document.querySelector('.details .back').click()")
    browser.run(
        "[...document.querySelectorAll('.details .row')].find((r) => r.innerText.startsWith('combine_parallel')).click()"
    )
    for side in (0, 1, 0):
        browser.run(f"document.querySelectorAll('[role=tab]')[{side}].click()")
        browser.until(f"{OFF}[{side}] < 2", 5)
    silent(browser)


def test_the_panes_of_a_diff_move_together(browser: chromium.Page, tmp_path: Path) -> None:
    found = onnxgrad.diff("models/bert.onnx", "models/bert.raw.onnx")
    go(browser, written(tmp_path / "diff.html", found.to_html()))
    place = "[...document.querySelectorAll('svg.graph')].map((s) => d3.zoomTransform(s))"
    wheel = browser.run(
        "(({left, top, width, height}) => [left + width / 2, top + height / 2])(document.querySelector('svg.graph').getBoundingClientRect())"
    )
    browser.run("document.querySelector('svg.graph').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(({left, top, width, height}) => [left + width / 2, top + height / 2])(document.querySelector('svg.graph').getBoundingClientRect())"
    )
    assert wheel[0] == x
    before = browser.run(place)
    for kind, dy in (
        ("mousePressed", 0),
        ("mouseMoved", -150),
        ("mouseMoved", -300),
        ("mouseReleased", -300),
    ):
        browser(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y + dy,
            button="left",
            buttons=1,
            clickCount=1,
        )
    browser.until(
        f"{place}[0].y < {before[0]['y'] - 250} && {place}[1].y < {before[1]['y'] - 100}", 5
    )
    browser.run("new Promise((resolve) => setTimeout(resolve, 50))")  # d3 eats the click of a drag
    # zooming one zooms the other, and a group that opens in one opens in the other
    browser.run(
        "document.querySelector('.pane:last-child .tools button, .pane:nth-child(2) .tools button').click()"
    )
    browser.until(f"{place}.every((t) => Math.abs(t.k - {1.4 * before[0]['k']}) < 1e-6)", 5)
    groups = (
        "[...document.querySelectorAll('.pane')].map((p) => p.querySelectorAll('.box.open').length)"
    )
    opened = browser.run(groups)
    browser.run(
        "document.querySelector('.pane .box.closed').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert all(a < b for a, b in zip(opened, browser.run(groups), strict=True))
    # a search in one shows the same node in the middle of both
    assert search(browser, "layernorm layer.3 output") > 0
    browser.run("document.querySelector('.results li').click()")
    browser.until(f"{OFF}.every((off) => off !== null && off < 2)", 5)
    silent(browser)


def test_groups_open_and_close(browser: chromium.Page, optimized: Path) -> None:
    go(browser, optimized)
    boxes = "document.querySelectorAll('.pane:first-child .box').length"
    before = browser.run(boxes)
    click = "document.querySelector('.pane:first-child [data-id={}]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
    group = browser.run("document.querySelector('.pane:first-child .closed').dataset.id")
    browser.run(click.format(group))
    assert browser.run(boxes) > before
    assert browser.run(
        f"document.querySelector('.pane:first-child [data-id={group}]').classList.contains('open')"
    )
    browser.run(click.format(group))
    assert browser.run(boxes) == before
    silent(browser)


def test_zoom_moves_by_buttons_and_wheel(browser: chromium.Page, optimized: Path) -> None:
    go(browser, optimized)
    scale = "d3.zoomTransform(document.querySelector('svg.graph')).k"
    before = browser.run(scale)
    browser.run("document.querySelector('.tools button').click()")
    browser.until(f"Math.abs({scale} - {1.4 * before}) < 1e-6", 5)
    browser.run("document.querySelector('svg.graph').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(({left, top, width, height}) => [left + width / 2, top + height / 2])(document.querySelector('svg.graph').getBoundingClientRect())"
    )
    nearer = browser.run(scale)
    browser("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=120)
    assert browser.run(scale) == nearer  # the page scrolls until the graph was clicked
    for kind in ("mousePressed", "mouseReleased"):
        browser("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=120)
    browser.until(f"{scale} < {nearer}", 5)


def test_five_thousand_nodes_open_in_a_moment(browser: chromium.Page, tmp_path: Path) -> None:
    for named in (True, False):
        path = written(
            tmp_path / f"{named}.html", onnxgrad.inspect(chain(5000, named=named)).to_html()
        )
        assert go(browser, path) < 5
        started = time.perf_counter()
        assert search(browser, "v4321") == 1
        browser.run("document.querySelector('.results li').click()")
        assert browser.run("document.querySelector('.box.selected') !== null")
        assert time.perf_counter() - started < 3
        # group after group: each click costs what it shows
        started = time.perf_counter()
        for _ in range(12):
            browser.run(
                "document.querySelector('.box.closed').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
            )
        assert time.perf_counter() - started < 12
    assert browser.said == [] and len(set(browser.asked)) == 2


def test_no_name_runs(browser: chromium.Page, tmp_path: Path) -> None:
    done = onnxgrad.optimize(hostile_model(), report=True, verify=False)
    go(browser, written(tmp_path / "hostile.html", done.to_html()))
    assert search(browser, "<img src=x") > 0
    browser.run("document.querySelector('.results li').click()")
    browser.run("document.querySelectorAll('.details button').forEach((b) => b.click())")
    assert browser.run("window.harmed === undefined")
    assert browser.run("document.querySelectorAll('img').length") == 0
    silent(browser)
    # and what got in all the same would not run: the policy knows the page's own scripts alone
    browser.run(
        "{const s = document.createElement('script'); s.textContent = 'window.harmed = 1'; document.body.append(s);}"
    )
    assert browser.run("window.harmed === undefined")


def test_a_refuted_model_opens_at_the_rewrite_to_blame(
    browser: chromium.Page, tmp_path: Path
) -> None:
    go(browser, written(tmp_path / "refuted.html", OptimizedModel(None, refuted()).to_html()))
    assert text(browser, ".verdict").startswith("✗")
    details = text(browser, ".details")
    assert "Rewrite 3" in details and "the first that changes the result" in details
    assert browser.run("document.querySelectorAll('.box.selected').length") == 2
    silent(browser)


def test_every_model_of_ci_is_in_the_list_on_a_phone(
    browser: chromium.Page, tmp_path: Path
) -> None:
    models = tuple(ModelOutcome(f"models/{i}/a-model-of-some-name.onnx") for i in range(40))
    go(browser, written(tmp_path / "ci.html", ci_page(CiReport("r.toml", models, "r.lock"))), 400)
    assert browser.run("document.querySelectorAll('.models button').length") == 41
    tops = (
        "['.verdict', '.models'].map((s) => document.querySelector(s).getBoundingClientRect().top)"
    )
    verdict, models = browser.run(tops)
    assert verdict < models
    assert (
        browser.run(
            "(({clientHeight, scrollHeight, lastChild}) => scrollHeight - clientHeight + (lastChild.getBoundingClientRect().right > innerWidth))(document.querySelector('.models'))"
        )
        == 0
    )
    silent(browser)


def test_several_models_and_a_gradient(browser: chromium.Page, tmp_path: Path) -> None:
    found = differentiate(onnxgrad.load("models/training/mlp.onnx"), "params", checkpoint="auto")
    plain = differentiate(onnxgrad.load("models/training/mlp.onnx"), "params")
    path = written(
        tmp_path / "grad.html", gradient_page(GradientMade(found, 12, 0.1, None), "mlp", plain, {})
    )
    go(browser, path, 400, True)
    assert "without checkpoints" in text(browser, ".of-curves")
    browser.run("[...document.querySelectorAll('[role=tab]')][0].click()")
    assert "12 nodes" in text(browser, ".pane.front header")
    silent(browser)
