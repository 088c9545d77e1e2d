"""Builds the docs as a site, with search, in build/site: ``./dev docs --site``.

MkDocs builds it, by mkdocs.yml. A page without a place in the navigation, or a link that leads nowhere, is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "docs", "examples", "include")


def copy(source: Path) -> None:
    """What the site shows, where it is in the repository: links are relative to that."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for name in SHOWN:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
        else:
            shutil.copy(path, source / name)


def main() -> int:
    """Builds the site; MkDocs' exit status."""
    copy(ROOT / "build" / "site-source")
    command = [sys.executable, "-m", "mkdocs", "build", *sys.argv[1:]]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
    if not status:
        print("Open build/site/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
