"""The SDK's folder where the package is installed read-only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from descend import sdk


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an installation that cannot be written to the current one; two have the same files, to the nanosecond."""

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    try:
        original = sdk.path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sdk, "_write_environment", refuse)

    def make(name: str) -> Path:
        package = tmp_path / name
        shutil.copytree(original, package / "sdk", symlinks=True)
        monkeypatch.setattr(sdk._native, "__file__", str(package / "_native.so"))
        return package

    return make


def test_a_read_only_installation_has_its_folder_in_the_cache(install, tmp_path):
    package = install("one")
    folder = sdk.path()
    assert folder.is_relative_to(tmp_path / "cache")
    assert sdk.path() == folder
    for name in ("libascendcl.so", "libopapi.so", sdk.LIBRARY):
        assert (folder / "lib64" / name).resolve() == package / "sdk" / "lib64" / name
    assert (folder / "include" / "acl" / "acl.h").is_file()
    assert str(folder) in (folder / "set_env.sh").read_text()


def test_two_installations_of_the_same_files_have_a_folder_each(install):
    one = install("one")
    first = sdk.path()
    two = install("two")
    second = sdk.path()
    assert first != second
    assert (second / "lib64" / sdk.LIBRARY).resolve() == two / "sdk" / "lib64" / sdk.LIBRARY
    shutil.rmtree(one)
    assert sdk.path() == second
