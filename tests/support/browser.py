"""A real headless Chromium, driven over its debugging pipe: pages are opened, read, clicked and typed at.

Takes: the path of the browser. Gives: pages. Unlike a dump in virtual time, it waits for what really happens: for the
network, for what is drawn, for what a test does meanwhile.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import trio

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-extensions",
    "--remote-debugging-pipe",
)
_LOOK_S = 0.05


@final
class Browser:
    """See `open_browser`, which makes one."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._waiting: dict[int, trio.Event] = {}

    async def listen(self) -> None:
        """Takes what the browser says, until it ends."""
        actual = b""
        while True:
            await trio.lowlevel.wait_readable(self._read_fd)
            data = os.read(self._read_fd, 1 << 16)
            if not data:
                return
            *messages, actual = (actual + data).split(b"\0")
            for message in map(json.loads, messages):
                if message.get("id") in self._waiting:
                    self._answers[message["id"]] = message
                    self._waiting.pop(message["id"]).set()

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command; what it answers."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        event = self._waiting[number] = trio.Event()
        left = json.dumps(message).encode() + b"\0"
        while left:
            await trio.lowlevel.wait_writable(self._write_fd)
            left = left[os.write(self._write_fd, left[:4096]) :]
        try:
            await event.wait()
        except trio.Cancelled:
            sys.stderr.write(f"the browser did not answer {method} {parameters}\n")
            raise
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new page."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        await page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        await self.call("Page.navigate", session, url=url)
        return page


@final
class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    async def resize(self, width: int, height: int = 900) -> None:
        """Its window, in CSS pixels."""
        facts = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._browser.call("Emulation.setDeviceMetricsOverride", self._session, **facts)

    async def value(self, script: str) -> Any:
        """What an expression of JavaScript is worth there, as plain data."""
        actual = await self._browser.call(
            "Runtime.evaluate", self._session, expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in actual:
            raise AssertionError(f"{script}: {actual['exceptionDetails'].get('exception', actual['exceptionDetails'])}")
        return actual["result"].get("value")

    async def until(self, script: str) -> Any:
        """Looks until an expression is true; its value. The test's own patience ends the wait."""
        while True:
            try:
                actual = await self.value(script)
            except AssertionError:  # the page is not there yet
                actual = None
            if actual or actual == {}:  # an element has no plain data
                return actual
            try:
                await trio.sleep(_LOOK_S)
            except trio.Cancelled:
                sys.stderr.write(f"it waited for {script}, which was {actual!r}\n")
                raise

    async def press(self, key: str, *, text: str = "") -> None:
        """A key, as a keyboard would: `Enter`, `l`, `ArrowLeft`."""
        for kind in ("keyDown", "keyUp"):
            facts = {"type": kind, "key": key, "code": key, "text": text if kind == "keyDown" else ""}
            await self._browser.call("Input.dispatchKeyEvent", self._session, **facts)

    async def picture(self, path: Path) -> None:
        """A picture of all of it, for people."""
        actual = await self._browser.call(
            "Page.captureScreenshot", self._session, format="png", captureBeyondViewport=True
        )
        await trio.Path(path).write_bytes(base64.b64decode(actual["data"]))


@asynccontextmanager
async def open_browser(path: str) -> AsyncIterator[Browser]:
    """A browser for as long as the block runs.

    Args:
        path: of Chromium.
    """
    folder = tempfile.mkdtemp(prefix="netstack-browser-")
    to_read, write_fd = os.pipe()
    read_fd, to_write = os.pipe()
    # The browser reads its file 3 and writes its file 4.
    script = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
    command = ["/bin/bash", "-c", script, path, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(  # noqa: ASYNC220  # of a millisecond
        command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(to_write)
    try:
        browser = Browser(write_fd, read_fd)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(browser.listen)
            yield browser
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        process.wait()
        os.close(write_fd)
        os.close(read_fd)
        shutil.rmtree(folder, ignore_errors=True)
