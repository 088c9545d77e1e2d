"""What the documents print must run as printed, and what they point to must be there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import forks
from descend.contract import OPERATORS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if match[1] == language:
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    # The command `descend` of the interpreter that runs the tests.
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize("source", blocks("python"))
def test_python_block_runs(source: str, tmp_path: Path) -> None:
    if "\nimport torch_npu\n" in source and not PathFinder.find_spec("torch_npu"):
        pytest.skip("torch_npu is not installed")
    if "torch" in source:
        done = forks.run(source, folder=tmp_path)
    else:
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", blocks("console"))
def test_console_block_runs(source: str, environment: dict[str, str]) -> None:
    commands = [line.removeprefix("$ ") for line in source.splitlines() if line.startswith("$ ")]
    assert commands, "a console block shows commands after '$ '"
    if "$ g++ " in source and not shutil.which("g++"):
        pytest.skip("there is no g++")
    if "$ descend npu" in source and not PathFinder.find_spec("torch_npu"):
        pytest.skip("torch_npu is not installed")
    # Those left out set up what the tests run in. The others run in one shell, as a reader would type them.
    typed = [command for command in commands if shlex.split(command)[0] not in ("./dev", "git", "pip")]
    script = ["bash", "-exc", "\n".join(typed)]
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name} points to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} points to {target}"


def test_every_operator_has_a_page() -> None:
    assert {page.stem for page in (ROOT / "docs" / "operators").glob("*.md")} == set(OPERATORS)
