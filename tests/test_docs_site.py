"""The docs as a site, as a browser shows them: every link leads somewhere, every picture is there."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs")

ROOT = Path(__file__).resolve().parent.parent
SEEN = """() => ({
    links: [...document.querySelectorAll("a[href]")].map(a => a.href),
    places: [...document.querySelectorAll("[id]")].map(element => element.id),
    missing: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
    pictures: document.images.length,
    title: document.querySelector("h1")?.textContent ?? "",
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site on a server, and its pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "tools" / "docs_site.py", "--site-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    yield address, [address + str(path.relative_to(folder)) for path in sorted(folder.rglob("*.html"))]
    server.shutdown()
    server.server_close()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.long
def test_links_and_pictures(site, browser):
    address, paths = site
    tab = browser.new_page()
    answers, said = {}, []
    tab.on("response", lambda answer: answers.update({answer.url: answer.status}))
    tab.on("pageerror", lambda error: said.append(str(error)))
    pages = {}
    for path in paths:
        tab.goto(path)
        pages[path] = tab.evaluate(SEEN)
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    wrong = [f"{path}: {image}" for path, page in pages.items() for image in page["missing"]]
    for path, page in pages.items():
        for link in page["links"]:
            target, _, place = link.partition("#")
            if not link.startswith(address):
                continue
            if target not in answers:
                answers[target] = tab.request.head(target).status
            if place and unquote(place) not in pages.get(target, page)["places"]:
                wrong.append(f"{path} -> {link}")
    assert not wrong
    assert not said
    assert {status for url, status in answers.items() if not url.startswith("data:")} <= {200, 304}, answers
    assert all(url.startswith((address, "data:")) for url in answers), "it asks another server"
    readme = pages[address + "index.html"]
    assert readme["title"].startswith("Descend")
    assert readme["pictures"] >= 1
    tab.goto(address)
    tab.get_by_text("Type to start searching").wait_for(state="attached")  # before, nobody listens
    tab.get_by_placeholder("Search").press_sequentially("portability")  # it listens to keys
    tab.locator(".md-search-result__link").first.wait_for()
    tab.close()


def test_every_page_has_a_place():
    pages = {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    assert pages == set(
        re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE)
    )
