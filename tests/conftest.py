"""Where the PyTorch tests make their tensors: ``pytest --device cuda`` makes the same tests on a GPU.

No test depends on the terminal in which it runs. Where PyTorch is told to load no other backend, torch_npu
is not found. Libraries that look for it, such as transformers, would bring it into the process of all later tests.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
    sys.modules["torch_npu"] = None  # type: ignore[assignment]

pytest.register_assert_rewrite("c_problem", "cli_calls")  # their assertions show values, as those of tests do


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the PyTorch tests make their tensors"
    )
    parser.addoption(
        "--pairs",
        action="store_true",
        help="of a test with three parameters and more only so many cases that any two values of two parameters meet",
    )
    parser.addoption("--fakes", action="store_true", help="composed operators of torch_npu beside its fake kernels")
    parser.addoption("--wide", action="store_true", help="all that test_npu_aten.py can compare: minutes, not seconds")


def pytest_configure(config: Any) -> None:
    for name in ("COLUMNS", "LINES"):  # pytest-xdist gives its workers a size, too
        os.environ.pop(name, None)
    config.addinivalue_line("markers", "cpu: about the CPU alone; left out with another --device")
    config.addinivalue_line(
        "markers", "extended: takes long, and seldom finds what others do not; for ./dev test-extended"
    )
    config.addinivalue_line("markers", "long: takes 10 s and more; is begun first, so that no process waits for it")


def pytest_sessionstart(session: Any) -> None:
    """Before tests import the operators by their names."""
    if session.config.getoption("--fakes"):
        import fakes

        fakes.compare_all()


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    """Adds the calls that one of its processes has compared."""
    if node.config.getoption("--fakes"):
        import fakes

        fakes.compared += getattr(node, "workeroutput", {}).get("compared", 0)


def pytest_sessionfinish(session: Any) -> None:
    """With --fakes it is an error that no call was compared: then what compares them may be broken."""
    if session.config.getoption("--fakes"):
        import fakes

        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["compared"] = fakes.compared
        elif not fakes.compared and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if config.getoption("--fakes"):
        import fakes

        terminalreporter.write_line(f"{fakes.compared} calls compared with torch_npu's fake kernels")


def pairs(items: list[Any]) -> list[Any]:
    """Some of the items of one test: any two values of two parameters meet in one, if they do in all."""
    values = {item: [(name, id(value)) for name, value in item.callspec.params.items()] for item in items}
    met = {item: set(itertools.combinations(values[item], 2)) for item in items}
    missing, kept = set().union(*met.values()), []
    while missing:
        kept.append(max(items, key=lambda item: len(met[item] & missing)))
        missing -= met[kept[-1]]
    return kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Python does not look for garbage in what is collected, for it lives to the end, and later seldom looks at all."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    return result


@pytest.fixture(scope="module")
def little_to_collect() -> None:
    """For tests that call gc.collect(): it looks only at what this module has made. To look at all takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after those that are left out by their markers
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if config.getoption("--pairs"):
        tests: dict[str, list[Any]] = {}
        for item in items:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = set()
        for each in tests.values():
            several = hasattr(each[0], "callspec") and len(each[0].callspec.params) > 2
            kept.update(pairs(each) if several else each)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def host() -> Iterator[None]:
    """The calls of this thread obey the rules of this machine, not those of a product."""
    from descend import acl

    with acl.product("host"):
        yield


@pytest.fixture
def on_device(request: Any) -> Iterator[Any]:
    """The device of ``--device``, PyTorch's default one while the test runs."""
    import torch

    name = request.config.getoption("--device")
    if name == "cpu":
        yield torch.device(name)
        return
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if request.node.get_closest_marker("cpu"):
        pytest.skip("it is about the CPU alone")
    torch.set_default_device(name)
    try:
        yield torch.device(name)
    finally:
        torch.set_default_device(None)


@pytest.fixture
def cpp() -> None:
    """The kernels in C++. A release of PyTorch that they were not built for has none: the test is left out."""
    from descend.torch import library

    how = library.registration()
    if "was built for PyTorch" in how:
        pytest.skip(how)
    assert how == "C++", "./dev test builds descend._torch; see cmake/torch.cmake"


@pytest.fixture(params=("C++", "Python"))
def each_registration(request: Any) -> Iterator[None]:
    """The test once with the kernels in C++ and once with those in Python.

    CUDA tensors always have those in Python; a release of PyTorch that those in C++ were not built for has no others.
    """
    from descend.torch import library

    on_cpu = request.config.getoption("--device") == "cpu"
    library.leave_to_python(on_cpu and (request.param == "Python" or library.registration() != "C++"))
    try:
        yield
    finally:
        library.leave_to_python(False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Where there is none the tests are skipped, but on a CI runner they fail."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    try:
        from playwright import sync_api
    except ImportError:
        found = None
    if not found:
        missing = "the page was not looked at: there is no Chromium, or no playwright (./dev test installs both)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()
