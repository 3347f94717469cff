"""Headless Chromium, driven over two pipes by its DevTools protocol: JSON, each message ended by a
NUL."""
import base64
import json
import os
import shutil
import subprocess
import time

import testing

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which(
    "google-chrome")


class Browser:
    """One tab, open while a `with` block runs, which fails where the page has console errors or
    exceptions, or asks for anything but itself: `errors` and `requests`."""

    def __init__(self):
        if not PROGRAM:
            raise testing.Skip("a browser (chromium)")
        folder = testing.scratch()
        down, up = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{down[0]} 4>&{up[1]}', "bash", PROGRAM, "--headless=new",
             "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={folder}",
             "--window-size=1200,900"], pass_fds=[down[0], up[1]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down[0])
        os.close(up[1])
        self.out, self.into = os.fdopen(down[1], "wb", 0), os.fdopen(up[0], "rb")
        self.number, self.session, self.errors, self.requests = 0, None, [], []
        self.own = ("file:", "blob:", "data:", "about:")
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def read(self):
        text = bytearray()
        while (byte := self.into.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(self.own):
                self.requests.append(url)
        return message

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        """A file, or an address of this machine."""
        url = path if path.startswith("http:") else "file://" + os.path.abspath(path)
        self.own += (url,)
        self.call("Page.navigate", url=url)
        self.wait("location.protocol !== 'about:' && document.readyState === 'complete'")

    def value(self, expression):
        """Of a JavaScript expression; of a promise, what it becomes."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression, seconds=60):
        """Until the expression is true; returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"waited in vain for: {expression}"
            time.sleep(0.05)
        return value

    def drag(self, name, value):
        """Moves a slider, or chooses from a list, as a user would."""
        self.value(f"(() => {{ const at = document.getElementById({name!r}); at.value = {value!r};"
                   "at.dispatchEvent(new Event('input', {bubbles: true})); })()")

    def screenshot(self, path):
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        shot = self.call("Page.captureScreenshot")
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.close()
        assert failed or not (self.errors or self.requests), (self.errors, self.requests)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.into.close()
