"""A headless Chromium, driven over two pipes by its DevTools protocol: nothing else is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync", "extensions", "default-apps")
WAIT = 60.0  # seconds until what is waited for must be there


class Failed(Exception):
    """What was asked of the browser failed."""


class Page:
    """An open page. errors: of its console and its scripts. requests: the addresses that it asked for, itself first."""

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive, self._number, self._session = send, receive, 0, ""
        self._read_ahead = b""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._read_ahead:
            more = self._receive.read1(1 << 20)
            if not more:
                raise OSError("the browser has ended")
            self._read_ahead += more
        text, _, self._read_ahead = self._read_ahead.partition(b"\0")
        message = json.loads(text)
        name, about = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif name == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(str(about["args"]))
        elif name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return message

    def open(self, path: Path, width: int = 1200, height: int = 900, touch: bool = False) -> None:
        """Open a file, and wait until it has loaded; errors and requests are its own from now on."""
        self.errors.clear()
        self.requests.clear()
        self.size(width, height)
        self("Emulation.setTouchEmulationEnabled", enabled=touch)
        self("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def size(self, width: int, height: int) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failed(str(answer))
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true; while a page loads, it may be an error."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with contextlib.suppress(Failed):
                if self.run(f"Boolean({script})"):
                    return
            time.sleep(0.05)
        raise Failed(f"waited in vain for {script}; errors: {self.errors}")

    def mouse(self, x: float, y: float, click: bool = False) -> None:
        """Move the mouse to a place of the window, and click there."""
        for near in (3, 0):
            self("Input.dispatchMouseEvent", type="mouseMoved", x=x + near, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool = False) -> None:
        """A screenshot of the window, or of the whole page."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A browser with an empty page. profile: a folder of its own, which need not be there."""
    assert CHROMIUM
    (down, to_browser), (from_browser, up) = os.pipe(), os.pipe()

    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe"]
    command += [f"--user-data-dir={profile}", "--hide-scrollbars", *(f"--disable-{feature}" for feature in QUIET)]
    # The browser reads its descriptor 3 and writes 4. A shell puts the pipes there: a process with JAX must not fork.
    redirection = f'exec "$@" 3</dev/fd/{down} 4>/dev/fd/{up}'
    process = subprocess.Popen(
        ["sh", "-c", redirection, "sh", *command],
        pass_fds=(down, up),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(down)
    os.close(up)
    try:
        with os.fdopen(to_browser, "wb") as send, os.fdopen(from_browser, "rb") as receive:
            page = Page(send, receive)
            yield page
            with contextlib.suppress(Failed, OSError):
                page._session = ""
                page("Browser.close")
    finally:
        process.terminate()
        process.wait()
