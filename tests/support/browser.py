"""A headless Chromium, driven over the pipe of its DevTools protocol: no port, no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--no-default-browser-check", "--hide-scrollbars", "--font-render-hinting=none", "--site-per-process",
)  # fmt: skip

LIMIT_S = 60.0


def _found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def missing() -> str:
    """Why there can be no browser here, in words; "" if there can."""
    return "" if _found() else "the player's tests need Chromium (apt-get install chromium-headless-shell)"


class Browser:
    """One process, for many tabs. Commands go through its file descriptor 3, answers and events come from 4."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self._process, self._write, self._read = process, write, read
        self._rest, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str = "", **params: Any) -> Any:
        """The result of a command. Raises RuntimeError for one that fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser has not answered within {LIMIT_S:g} seconds")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser has ended: {self._process.wait()}")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    @contextmanager
    def tab(self, page: str | Path, width: int = 1100, height: int = 900, **media: str) -> Iterator[Tab]:
        """A tab that shows a page: a file, or HTML in a file of its own. media: such as prefers_color_scheme="dark"."""
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(page, str):
                file = Path(folder, "page.html")
                file.write_text(page, encoding="utf-8")
            else:
                file = page
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            try:
                tab = self.attach(target, width)
                features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
                tab.send("Emulation.setEmulatedMedia", features=features)
                tab.size(width, height)
                tab.send("Page.navigate", url=file.resolve().as_uri())
                tab.wait("document.readyState === 'complete' && !!document.querySelector('svg')")
                yield tab
            finally:
                self.send("Target.closeTarget", targetId=target)

    def attach(self, target: str, width: int) -> Tab:
        """The page of this target."""
        tab = Tab(self, self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], width)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.send(f"{domain}.enable")
        return tab


class Tab:
    """A page: its values, its keys, its pointer, its pictures, and what went wrong in it."""

    def __init__(self, browser: Browser, session: str, width: int) -> None:
        self._browser, self._session, self.width = browser, session, width

    def send(self, method: str, **params: Any) -> Any:
        """The result of a command to this tab."""
        return self._browser.send(method, self._session, **params)

    def frame(self) -> Tab:
        """The page in the one frame of this page, which every browser runs in a process of its own: see FLAGS."""
        me = self.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        frames = self._browser.send("Target.getTargets", filter=[{"type": "iframe"}])["targetInfos"]
        (target,) = [each["targetId"] for each in frames if each.get("parentFrameId") == me]
        return self._browser.attach(target, self.width)

    def size(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON has it; a promise's once it is kept."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, looking at it in every frame."""
        self.value(
            f"""new Promise((done, fail) => {{
              const begin = performance.now();
              (function look() {{
                if ({condition}) done();
                else if (performance.now() - begin > {LIMIT_S * 1000}) fail(new Error('in vain: ' + {condition!r}));
                else setTimeout(look, 10);
              }})();
            }})"""
        )

    def key(self, key: str, shift: bool = False) -> None:
        """Press and release a key, such as "ArrowRight", " " or "t"."""
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9,
                "Escape": 27, "Enter": 13}.get(key, ord(key[0].upper()))  # fmt: skip
        said = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **said, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **said)

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of an element, in the window."""
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
        box = self.value(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def move(self, x: float, y: float, buttons: int = 0) -> None:
        """Move the pointer."""
        self.send(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=x,
            y=y,
            buttons=buttons,
            button="left" if buttons else "none",
        )

    def click(self, selector: str) -> None:
        """Press and release the pointer on an element."""
        x, y = self.middle(selector)
        self.drag(x, y, x, y)

    def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press at one place, release at another."""
        button: dict[str, Any] = {"button": "left", "clickCount": 1}
        self.move(x, y)
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **button)
        self.move(to_x, to_y, buttons=1)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, **button)

    def picture(self, selector: str = "", beyond: bool = True) -> bytes:
        """The page, or one element of it, as PNG. beyond: with what is outside of the window."""
        clip = {}
        if selector:
            box = f"document.querySelector({selector!r}).getBoundingClientRect()"
            x, y, width, height = self.value(f"(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])({box})")
            clip = {"clip": {"x": x, "y": y, "width": width, "height": height, "scale": 1}}
        done = self.send("Page.captureScreenshot", captureBeyondViewport=beyond, **clip)
        return base64.b64decode(done["data"])

    def complaints(self) -> list[str]:
        """Exceptions, and whatever the page has written to its console or log."""
        self.value("0")
        kinds = "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"
        return [json.dumps(event) for event in self._of(*kinds)]

    def requests(self) -> list[str]:
        """The addresses that were asked for, but for the page's own."""
        self.value("0")
        asked = [event["request"]["url"] for event in self._of("Network.requestWillBeSent")]
        return [url for url in asked if not url.endswith(".html") or not url.startswith("file:")]

    def _of(self, *methods: str) -> list[Any]:
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") in methods
        ]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own. Raises FileNotFoundError where there is none: see `missing`."""
    path = _found()
    if path is None:
        raise FileNotFoundError(missing())
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        for end in (ours_in, ours_out):
            stack.callback(os.close, end)
        # The shell puts the two ends where the browser looks for them: 3 and 4.
        ends = f"exec 3<&{theirs_in} 4>&{theirs_out}"
        process = subprocess.Popen(
            ["bash", "-c", f'{ends}; exec "$@"', "browser", path, *FLAGS, f"--user-data-dir={profile}",
             "--remote-debugging-pipe"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        stack.callback(_end, process)
        yield Browser(process, ours_out, ours_in)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
