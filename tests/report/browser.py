"""Headless Chromium, driven through chromedriver: opens a page at a width, measures, and shoots."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.launching.networks import free_port

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
]  # fmt: skip
STARTS_WITHIN_S = 120
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " ")}
"""Keys with their codes, and the text that they write."""


def missing() -> str | None:
    """Returns why no page can be opened; None if Chromium and its driver are installed."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install chromium chromium-driver"
    return None


class Browser:
    """A browser with one tab; `close` ends it."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + STARTS_WITHIN_S
        while not self._is_ready():
            assert self._driver.poll() is None, "chromedriver ended"
            assert time.monotonic() < until, "chromedriver does not answer"
            time.sleep(0.1)
        options = {"args": [*OPTIONS, f"--user-data-dir={folder}"]}
        session = self._call(
            "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        )
        self._address += f"/session/{session['sessionId']}"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/status", timeout=5) as answer:
                return bool(json.load(answer)["value"]["ready"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _call(self, path: str, content: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=STARTS_WITHIN_S) as answer:
            return json.load(answer)["value"]

    def _command(self, name: str, **parameters: Any) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, page: Path, *, width: int, scheme: str = "light") -> None:
        """Opens a file in a window of some pixels, in the color scheme `light` or `dark`."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", features=[feature])
        self._call("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """Returns the result of a JavaScript function body."""
        return self._call("/execute/sync", {"script": script, "args": []})

    def click(self, left: float, top: float) -> None:
        """Clicks at a position in the window, in pixels."""
        for kind in ("mousePressed", "mouseReleased"):
            self._command(
                "Input.dispatchMouseEvent", type=kind, x=left, y=top, button="left", clickCount=1
            )

    def hover(self, left: float, top: float) -> None:
        """Moves the pointer to a position in the window, in pixels."""
        self._command("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)

    def click_element(self, selector: str) -> None:
        """Clicks in the middle of the first element that matches a CSS selector."""
        self.click(*self._locate(selector))

    def hover_element(self, selector: str) -> None:
        """Moves the pointer to the middle of the first element that matches a CSS selector."""
        self.hover(*self._locate(selector))

    def write(self, text: str) -> None:
        """Writes into the element that has the focus."""
        self._command("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses and releases one of the `KEYS`."""
        code, text = KEYS[key]
        for kind, written in (("keyDown", text), ("keyUp", "")):
            self._command(
                "Input.dispatchKeyEvent",
                type=kind, key=key, text=written, windowsVirtualKeyCode=code,
            )  # fmt: skip

    def forbid_scripts(self, *, forbidden: bool) -> None:
        """Disables or enables scripts in pages opened afterward."""
        self._command("Emulation.setScriptExecutionDisabled", value=forbidden)

    def _locate(self, selector: str) -> tuple[float, float]:
        left, top = self.run(
            f"const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return [box.left + box.width / 2, box.top + box.height / 2];"
        )
        return float(left), float(top)

    def shoot(self, file: Path) -> None:
        """Writes the whole page as PNG."""
        shot = self._command("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            request = urllib.request.Request(self._address, method="DELETE")
            urllib.request.urlopen(request, timeout=STARTS_WITHIN_S).close()
        finally:
            self._driver.terminate()
            self._driver.wait()
