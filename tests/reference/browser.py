"""A headless Chromium, driven through a pipe by its own protocol: no package and no port."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), None)
# The protocol's: the browser reads from 3 and writes to 4.
TO_ITS_PIPES = """
import os, sys
ends = [os.dup2(int(end), 60 + at) for at, end in enumerate(sys.argv[1:3])]
for at, end in enumerate(ends):
    os.dup2(end, 3 + at)
os.execv(sys.argv[3], sys.argv[3:])
"""
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


class Page:
    """A tab, and what it has logged, thrown and asked for since it was opened."""

    def __init__(self, to, replies):
        self._to, self._replies, self._count, self._session = to, replies, 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Ask for something and wait for its answer; events on the way are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while (reply := self._next()).get("id") != self._count:
            pass
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def _next(self):
        letters = bytearray()
        while (letter := self._replies.read(1)) != b"\0":
            if not letter:
                raise RuntimeError("the browser has gone")
            letters += letter
        message = json.loads(letters)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, expression):
        """The value of an expression of JavaScript, of a promise what it keeps."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"]["description"])
        return done["result"].get("value")

    def point_at(self, selector, at=0):
        """Move the mouse to the middle of what a selector finds, scrolled into sight."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{at}]"
        self.value(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settled()
        box = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"({element}.getClientRects()[0])"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        self.settled()

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def settled(self):
        """Wait until the page has been drawn twice more."""
        self.value("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")

    def named(self, method):
        return [event["params"] for event in self.events if event["method"] == method]


@contextmanager
def browser():
    """Start a browser of its own profile, and end it."""
    assert PROGRAM is not None
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, *OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", TO_ITS_PIPES, str(read_there), str(write_there), *command],
            pass_fds=(read_there, write_there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        try:
            with os.fdopen(write_here, "wb") as to, os.fdopen(read_here, "rb") as replies:
                yield Page(to, replies)
        finally:
            process.terminate()
            process.wait()
