"""Opens pages in a real browser, headless Chromium, and returns how it rendered them.

This process serves the pages. An additional page frames them, inspects each from outside, which works although they run no
scripts, and writes its findings into its own text, which the browser prints.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VARIABLE = "DETERMINISM_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_OPTIONS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--no-sandbox",
    "--window-size=1400,2000", "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
"""The browser runs without a sandbox, since root cannot set one up; it opens only the pages of these tests."""
_DARK = "--blink-settings=preferredColorScheme=0"
_LOOKING = Path(__file__).with_name("looking.js").read_text(encoding="utf-8")
_BEGIN, _END = "LOOKED[", "]LOOKED"


def find_browser() -> str | None:
    """Return the browser to test with: `DETERMINISM_TEST_BROWSER`, or the first that is installed; None if there is none."""
    asked = os.environ.get(VARIABLE)
    return asked or next((found for name in _NAMES if (found := shutil.which(name))), None)


def look_at(pages: Mapping[str, str], *, width: int = 1000, is_dark: bool = False) -> dict[str, dict[str, Any]]:
    """Open pages side by side and inspect how they are rendered.

    Args:
        pages: The text of each page, by name.
        width: The width of each page, in pixels.
        is_dark: Whether the browser requests dark pages.

    Returns:
        The findings of `looking.js` on each page; `executed` says whether a script in it ran, `requests` lists its requests to the server.
    """
    requests: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(pages, width, requests))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        text = _opened(f"http://127.0.0.1:{server.server_port}/", is_dark)
    finally:
        server.shutdown()
        server.server_close()
    assert _BEGIN in text, f"The browser did not come to its end: {text[-2000:]}"
    seen = json.loads(html.unescape(text.partition(_BEGIN)[2].partition(_END)[0]))
    served = {"/", *(f"/{name}" for name in pages)}
    for name in pages:
        seen[name]["requests"] = sorted({path for path in requests if path not in served})
    return dict(seen)


def _opened(address: str, is_dark: bool) -> str:
    browser = find_browser()
    assert browser is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [*_OPTIONS, f"--user-data-dir={profile}", *([_DARK] if is_dark else [])]
        ended = subprocess.run([browser, *options, address], capture_output=True, check=False, timeout=600, text=True)
    return ended.stdout


def _handler(pages: Mapping[str, str], width: int, requests: list[str]) -> type[BaseHTTPRequestHandler]:
    frames = "".join(
        f'<iframe name="{name}" src="/{name}" style="width:{width}px;height:900px;border:0"></iframe>' for name in pages
    )
    outside = (
        '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>window.executed = []</script>'
        f"{frames}<pre id=seen></pre><script>{_LOOKING}</script>"
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            text = outside if self.path == "/" else pages.get(self.path[1:])
            self.send_response(200 if text is not None else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
