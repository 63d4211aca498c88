"""Training in a web page: the losses are Python's, the buttons work, files are saved, all is local."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onnxgrad.train.step_folder import VECTORS
from scripts.examples.make_digits import write
from tests.examples import chromium
from tests.examples.common import (
    EXAMPLES,
    STEPS,
    assert_same_files,
    assert_same_losses,
    described,
    need,
)

pytestmark = pytest.mark.browser

STATUS = "document.getElementById('status').textContent"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """The plain server, without its log."""

    def log_message(self, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a plain server of a folder."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with the examples and steps, and its address."""
    need("onnxruntime-web", chromium.executable(), "chromium")
    folder = tmp_path_factory.mktemp("site")
    for path in EXAMPLES.iterdir():
        if path.name != "step":
            (folder / path.name).symlink_to(path)
    write(folder / "step", "cnn", "momentum")
    described(folder / "step")
    write(folder / "sgd", "mlp", "sgd")
    (folder / "vectors").symlink_to(VECTORS)
    with served(folder) as address:
        yield folder, address


@pytest.fixture
def page(site: tuple[Path, str]) -> Iterator[chromium.Page]:
    with chromium.page() as page:
        go(page, f"{site[1]}/web/")
        yield page


def go(page: chromium.Page, address: str, word: str = "Ready") -> None:
    page("Page.navigate", url=address)
    page.until(f"document.getElementById('status')?.textContent.includes('{word}')")


def click(page: chromium.Page, name: str) -> None:
    page.run(f"document.getElementById('{name}').click()")


def train(page: chromium.Page, steps: int = STEPS) -> list[float]:
    page.run(f"document.getElementById('steps').value = {steps}")
    before = int(page.run("document.getElementById('step').textContent"))
    click(page, "train")
    page.until(f"{STATUS} === '{before + steps} steps are done.'")
    return page.run("import('./page.mjs').then((page) => page.losses)")


def saved(page: chromium.Page, button: str, name: str) -> Path:
    click(page, button)
    path = page.downloads / name
    for _ in range(100):
        page.run("new Promise((resolve) => setTimeout(resolve, 50))")
        if path.exists() and path.stat().st_size:
            return path
    raise AssertionError(f"{name} was not saved: {page.said}")


@pytest.mark.parametrize("step", ["step", "sgd"])
def test_losses_are_those_of_python(step: str, site: tuple[Path, str], page: chromium.Page) -> None:
    go(page, f"{site[1]}/web/?step=../{step}")
    assert_same_losses(train(page), site[0] / step)
    assert page.run("document.querySelectorAll('#chart path').length") == 2
    assert (
        page.run("document.querySelector('#chart .raw').getAttribute('d').split('L').length")
        == STEPS
    )


@pytest.mark.parametrize("name", ["plain", "full"])
def test_the_vectors_are_met(name: str, page: chromium.Page) -> None:
    found = page.run(
        f"""(async () => {{
            const ort = await import("../node_modules/onnxruntime-web/dist/ort.wasm.min.mjs");
            const vector = await import("../node_modules/onnxgrad-step/src/vector.mjs");
            const {{ load }} = await import("./files.mjs");
            return vector.run(ort, (file) => load(`../vectors/{name}/${{file}}`));
        }})()"""
    )
    assert len(found["losses"]) == 10 and found["error"] < 1e-5


def test_the_page_is_silent_and_asks_nobody_else(
    site: tuple[Path, str], page: chromium.Page
) -> None:
    train(page, 40)
    click(page, "take")
    assert page.said == []
    assert len(page.asked) > 15
    assert [a for a in page.asked if not a.startswith((f"{site[1]}/", "data:", "blob:"))] == []


def test_what_is_saved_is_what_python_reads(site: tuple[Path, str], page: chromium.Page) -> None:
    train(page)
    state = saved(page, "save-state", "state.safetensors")
    assert_same_files(state, saved(page, "save-model", "trained.onnx"), site[0] / "step")


def test_starting_over_and_going_on(page: chromium.Page, tmp_path: Path) -> None:
    whole = train(page, 30)
    click(page, "again")
    page.until(f"{STATUS} === 'Ready.'")
    first = train(page, 10)
    state = saved(page, "save-state", "state.safetensors")
    click(page, "again")
    page.until(f"{STATUS} === 'Ready.'")
    document = page("DOM.getDocument")["root"]["nodeId"]
    field = page("DOM.querySelector", nodeId=document, selector="#open-state")["nodeId"]
    page("DOM.setFileInputFiles", nodeId=field, files=[str(state)])
    page.until(f"{STATUS} === 'Goes on from step 10.'")
    assert first + train(page, 20) == whole


def test_a_pause_and_impatient_clicks(page: chromium.Page) -> None:
    page.run("document.getElementById('steps').value = 100000")
    click(page, "train")
    page.until("Number(document.getElementById('step').textContent) > 5")
    page.run("for (let i = 0; i < 3; i++) document.getElementById('train').click()")
    click(page, "again")
    page.until(f"{STATUS} === 'Ready.'")
    assert page.run("document.getElementById('step').textContent") == "0"
    assert len(train(page)) == STEPS


def stroke(page: chromium.Page, *points: tuple[float, float]) -> None:
    """Draw, in parts of the canvas."""
    page.run("document.getElementById('canvas').scrollIntoView()")
    script = "(({left, top, width}) => [left, top, width])(document.getElementById('canvas').getBoundingClientRect())"
    left, top, width = page.run(script)
    kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
    for kind, (x, y) in zip(kinds, (*points, points[-1]), strict=True):
        page("Input.dispatchMouseEvent", type=kind, x=left + x * width, y=top + y * width, button="left", buttons=1, clickCount=1)  # fmt: skip


def test_a_digit_drawn_by_hand_is_known_and_learned_from(page: chromium.Page) -> None:
    train(page, 200)
    stroke(page, (0.3, 0.2), (0.5, 0.2), (0.7, 0.2), (0.6, 0.5), (0.5, 0.8))
    page.until("document.querySelector('#classes .best')?.textContent.startsWith('7')", 10)
    page.run("document.getElementById('label').value = 2")  # for once, this is a 2
    click(page, "add")
    assert page.run("document.getElementById('taught').textContent").startswith("1 of yours")
    train(page, 200)
    assert page.run("document.querySelector('#classes .best').textContent").startswith("2")
    click(page, "clear")
    page.until("document.querySelector('#classes .best') === null")


def test_what_goes_wrong_is_said(site: tuple[Path, str], page: chromium.Page) -> None:
    go(page, f"{site[1]}/web/?step=../nothing", "manifest.json is not there: run make_digits.py")
    go(page, f"{site[1]}/web/?step=../sgd")
    page.run("document.getElementById('rate').value = 1e30")
    click(page, "train")
    page.until(f"{STATUS}.startsWith('step 2: the loss is ')")
    click(page, "again")
    page.until(f"{STATUS} === 'Ready.'")
    page.run("document.getElementById('rate').value = ''")
    click(page, "train")
    page.until(f"{STATUS} === 'steps and learning rate must be numbers'")


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_everything_has_a_name(
    width: int, dark: bool, page: chromium.Page, tmp_path: Path
) -> None:
    train(page)
    page.look(tmp_path / "page.png", width, dark)
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert page.run("document.documentElement.scrollWidth") == width
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is dark
    named = ("button", "spinbutton", "combobox", "image", "img", "list", "listitem", "heading")
    nodes = [
        n
        for n in page("Accessibility.getFullAXTree")["nodes"]
        if not n["ignored"] and n["role"]["value"] in named
    ]
    assert len([n for n in nodes if n["role"]["value"] == "button"]) >= 7
    unnamed = [
        n
        for n in nodes
        if not n.get("name", {}).get("value") and n["role"]["value"] not in ("list", "listitem")
    ]
    assert unnamed == []
