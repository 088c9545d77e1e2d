"""The wheel, packed from the build that is there: installed in an empty environment, it works in seconds."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "python"
EXAMPLE = ROOT / "examples" / "cpp" / "rms_norm_grad.cpp"

pytestmark = [pytest.mark.extended, pytest.mark.long]
if not (BUILD / "CMakeCache.txt").is_file():
    pytest.skip("there is no build by ./dev to pack", allow_module_level=True)
if shutil.which("readelf") is None:
    pytest.skip("there is no readelf", allow_module_level=True)


PATIENCE = 900  # seconds: beside other work on few cores all of this takes many times as long


def run(*command: Any, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is made for all processes of this run together: two would pack the same build at a time."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists():
            make(folder)
            complete.touch()
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def pack(folder: Path) -> None:
        said = run(sys.executable, ROOT / "tools" / "wheel.py", folder)
        assert "Building CXX object" not in said, said  # what ./dev has built is packed, and not built again

    return once(tmp_path_factory, "dist", pack)


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def test_the_wheel_is_for_every_python_and_old_systems(wheel):
    assert re.fullmatch(r"descend-[\d.]+-cp310-abi3-manylinux_2_27_\w+", wheel.stem)
    assert wheel.stat().st_size < 10e6


def test_the_libraries_of_the_wheel_are_stripped_and_find_each_other(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path)
    sdk = {f"descend/sdk/lib64/lib{name}.so" for name in ("descend", "ascendcl", "nnopbase", "opapi")}
    assert {"descend/_native.abi3.so", *sdk} <= {*names}
    assert not any(re.search(r"/_(torch|npu)\.", name) for name in names)  # those are for one release of PyTorch
    for name in names:
        about = run("readelf", "-dSW", tmp_path / name)
        assert ".symtab" not in about, name
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", about)
        assert all(path.startswith("$ORIGIN") for line in paths for path in line.split(":")), (name, paths)


def test_the_source_archive_has_what_a_build_needs(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "native/kernels/rms_norm.cpp", "src/descend/__init__.py"} <= names
    assert not any(name.startswith((".ci", "build", "dist")) for name in names)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder bin of a new environment that has the wheel, and what it needs from the registry."""

    def install(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder)
        command = [folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", f"{wheel}[cli]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        missing = done.returncode != 0 and re.search("NewConnectionError|ConnectTimeout", done.stderr)
        if missing and "CI" not in os.environ:
            pytest.skip("the package registry cannot be reached")
        assert done.returncode == 0, done.stdout + done.stderr

    return once(tmp_path_factory, "environment", install) / "bin"


def clean(path: str | Path) -> dict[str, str]:
    """This process's environment without what leads to another Descend or CANN."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "DESCEND_", "LD_", "PYTHON"))}
    return {**kept, "PATH": str(path)}


def test_python_and_the_command_line_need_no_compiler(environment, tmp_path):
    alone = {"cwd": tmp_path, "env": clean(environment)}
    program = (
        "import numpy as np, descend; g = np.ones(8, np.float32); y, rstd = descend.rms_norm(np.eye(8, dtype='f'), g); "
        "print(descend.__file__, descend.rms_norm_grad(y, np.eye(8, dtype='f'), rstd, g)[1].sum())"
    )
    file, total = run(environment / "python", "-c", program, **alone).split()
    assert Path(file).is_relative_to(environment.parent)
    assert float(total) == pytest.approx(8 * 8, rel=1e-4)
    assert "rms_norm_grad" in run(environment / "descend", "demo", **alone)


# What a user does who has PyTorch and installs the wheel. The PyTorch that is here comes last in the path, so that
# Descend is the wheel's.
ENABLE = """
import sys
sys.path.append(sys.argv[1])
import torch
from torch import nn
import descend.torch

torch.manual_seed(0)
model, x = nn.Sequential(nn.LayerNorm(48), nn.RMSNorm(48)), torch.randn(8, 48)

def step():
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))]

expected = step()
descend.torch.enable()
torch.testing.assert_close(step(), expected)
assert torch.equal(model[0](x), descend.torch.layer_norm(x, (48,), model[0].weight, model[0].bias)[0])
assert model(x).grad_fn.name() == "FusedRmsNormBackward0"
descend.torch.disable()
assert all(map(torch.equal, step(), expected))
print(descend.__file__, descend.torch.registration(), len(descend.torch.patch(model).swapped), sep="|")
torch.testing.assert_close(step(), expected)
"""


def test_enable_and_patch_work_with_the_pytorch_that_is_there(environment, tmp_path):
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("enable needs PyTorch 2.13")
    site = Path(torch.__file__).parent.parent
    alone = {**clean(environment), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    file, registration, swapped = run(environment / "python", "-c", ENABLE, site, cwd=tmp_path, env=alone).split("|")
    assert Path(file).is_relative_to(environment.parent)
    assert registration.startswith("Python")
    assert swapped.strip() == "2"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_a_program_builds_with_the_sdk_of_the_wheel(environment, tmp_path):
    home = run(environment / "descend", "sdk", cwd=tmp_path, env=clean(environment)).strip()
    assert Path(home).is_relative_to(environment.parent)
    for name in (EXAMPLE.name, "device.h"):
        shutil.copy(EXAMPLE.parent / name, tmp_path)
    script = f"""set -e
. '{home}/set_env.sh'
g++ {EXAMPLE.name} -o program -I$ASCEND_CUSTOM_PATH/include -L$ASCEND_CUSTOM_PATH/lib64 -lascendcl -lnnopbase -lopapi
./program"""
    assert "dgamma" in run("sh", "-c", script, cwd=tmp_path, env=clean(os.environ["PATH"]))
