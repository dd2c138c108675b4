"""The built site (build/site): links lead somewhere, nothing is fetched from elsewhere, pages fit screens."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "build" / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no built site: mkdocs build -f docs/mkdocs.yml")
SHOWN = (
    "",
    "methods/",
    "methods/fedproto/",
    "methods/feddyn/",
    "feddyn/",
    "topologies/",
    "results/leaderboard/",
    "results/fair/",
    "results/",
    "sources/mnist/",
)
SHOWN += (
    "sources/",
    "networks/resnet18/",
    "reference/settings/",
    "reference/choices/",
    "reference/core/",
    "design/",
    "from/pfllib/",
)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")
MEASURE = """<!doctype html><body><script>
(async () => {
  const wrong = []
  for (const width of [1440, 390]) for (const page of PAGES) {
    const frame = document.createElement("iframe")
    frame.style = `border: 0; height: 900px; width: ${width}px`
    frame.src = "/" + page
    const loaded = new Promise((done) => { frame.onload = done })
    document.body.append(frame)
    await loaded
    await new Promise((done) => setTimeout(done, 300))
    const view = frame.contentWindow, root = frame.contentDocument.documentElement
    if (root.scrollWidth > width) wrong.push([page, width, "the page scrolls sideways", root.scrollWidth])
    const scrolls = (node) => node && (/auto|scroll/.test(view.getComputedStyle(node).overflowX) || scrolls(node.parentElement))
    for (const node of frame.contentDocument.querySelectorAll(".md-content *"))
      if (node.getBoundingClientRect().right > width + 1 && !scrolls(node)) wrong.push([page, width, node.outerHTML.slice(0, 80)])
    for (const image of frame.contentDocument.querySelectorAll(".md-content img"))
      if (image.naturalWidth < image.clientWidth) wrong.push([page, width, "blurred", image.src])
    frame.remove()
  }
  document.body.textContent = "measured " + JSON.stringify(wrong)
})()
</script></body>"""


class Page(HTMLParser):
    """The addresses that a page links and loads, and its anchors."""

    def __init__(self, file: Path):
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors = {"", "__skip"}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag in ("a", "link", "script", "img") and (address := found.get("href") or found.get("src")):
            is_loaded = tag in ("script", "img") or (tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"))
            (self.loaded if is_loaded else self.links).add(address)


read_page = functools.cache(Page)


def locate(page: Path, address: str) -> tuple[Path, str]:
    """Returns the file and the anchor of an address inside the site."""
    path, _, anchor = address.partition("#")
    path = urllib.parse.unquote(path.partition("?")[0])
    place = SITE / path.removeprefix("/") if path.startswith("/") else page.parent / path
    file = (page if not path else place).resolve()
    return (file / "index.html" if file.is_dir() else file), urllib.parse.unquote(anchor)


def test_all_links_lead_to_pages_and_anchors():
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 100
    dead = []
    for page in pages:
        for address in read_page(page).links | read_page(page).loaded:
            if re.match(r"(https?|mailto|data|javascript):", address):
                continue
            file, anchor = locate(page, address)
            if not file.exists() or (file.suffix == ".html" and anchor not in read_page(file).anchors):
                dead.append((str(page.relative_to(SITE)), address))
    assert not dead


def test_pages_load_nothing_from_elsewhere():
    for page in SITE.rglob("*.html"):
        assert not [address for address in read_page(page).loaded if re.match(r"(https?:)?//", address)], page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_pages_fit_desks_and_phones(tmp_path):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/measure":
                return super().do_GET()
            body = MEASURE.replace("PAGES", json.dumps(SHOWN)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/measure"
        flags = ["--headless", *QUIET, f"--user-data-dir={tmp_path}", "--window-size=1500,1000", "--virtual-time-budget=120000"]
        done = subprocess.run([CHROMIUM, *flags, "--dump-dom", address], capture_output=True, text=True, timeout=300)
        server.shutdown()
    (measured,) = re.findall(r"<body>measured (.*?)</body>", done.stdout, re.DOTALL)
    assert json.loads(measured.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")) == []
