"""A headless Chromium, spoken to over two pipes in the DevTools protocol: no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def executable() -> str | None:
    """The browser on this machine, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page. said: what its console and its errors said; asked: the addresses that it asked for."""

    def __init__(self, write: int, read: int, downloads: Path) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self._session: str | None = None
        self.said: list[str] = []
        self.asked: list[str] = []
        self.downloads = downloads
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")
        self("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))

    def __call__(self, method: str, **params: Any) -> Any:
        """Send one command and give its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not (more := os.read(self._read, 1 << 20)):
                raise RuntimeError("the browser ended")
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(a.get("value", a)) for a in params["args"]))
            case "Runtime.exceptionThrown":
                self.said.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, which may wait."""
        done = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, condition: str, seconds: int = 60) -> None:
        """Wait until a JavaScript expression is true."""
        self.run(
            f"new Promise((resolve, reject) => {{ const end = Date.now() + {seconds * 1000}; const ask = () => ({condition}) ? "
            "resolve() : Date.now() > end ? reject(document.body.innerText) : setTimeout(ask, 20); ask(); })"
        )

    def look(self, path: Path, width: int = 1600, dark: bool = False) -> None:
        """Write a picture of the whole page."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self.run("new Promise((resolve) => setTimeout(resolve, 200))")
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def page() -> Iterator[Page]:
    """A page of a browser of its own, which ends with it."""
    browser = executable()
    assert browser is not None
    (our_in, their_out), (their_in, our_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.set_inheritable(their_in, True)
        os.set_inheritable(their_out, True)
        command = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'  # the numbers that it asks for
        downloads = Path(folder) / "downloads"
        process = subprocess.Popen(
            ["bash", "-c", command, browser, *FLAGS, f"--user-data-dir={folder}/profile"],
            pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        try:
            yield Page(our_out, our_in, downloads)
        finally:
            process.kill()
            process.wait()
            os.close(our_in)
            os.close(our_out)
