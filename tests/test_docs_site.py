"""The docs as a site, as a browser shows them: every link leads somewhere, every picture is there."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "tools" / "docs_site.py", "--site-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """What a page links to and shows, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str | None] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places.add(found.get("id"))
        self.links += [link for name in ("href", "src") if (link := found.get(name))]


@pytest.mark.long
def test_links_and_pictures(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].places):
                wrong.append(f"{path.relative_to(site)} -> {link}")
    assert not wrong


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.long
def test_in_a_browser(site, browser):
    """Pictures are there, the search finds, and nothing is asked of another server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    tab = browser.new_page()
    answers, said = {}, []
    tab.on("response", lambda answer: answers.update({answer.url: answer.status}))
    tab.on("pageerror", lambda error: said.append(str(error)))
    for path in ("docs/benchmarks.html", "docs/operators/rms_norm.html", "index.html"):
        tab.goto(address + path)
        widths = tab.evaluate("() => [...document.images].map(image => image.naturalWidth)")
        assert all(widths), path
    assert widths
    assert tab.evaluate("() => document.querySelector('h1').textContent").startswith("Descend")
    tab.get_by_text("Type to start searching").wait_for(state="attached")  # before, nobody listens
    tab.get_by_placeholder("Search").press_sequentially("portability")  # it listens to keys
    tab.locator(".md-search-result__link").first.wait_for()
    tab.close()
    server.shutdown()
    server.server_close()
    assert not said
    assert {status for url, status in answers.items() if not url.startswith("data:")} <= {200, 304}, answers
    assert all(url.startswith((address, "data:")) for url in answers), "it asks another server"


def test_every_page_has_a_place():
    pages = {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    assert pages == set(
        re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE)
    )
