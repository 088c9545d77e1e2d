"""How programs find Descend instead of CANN, tested with a stand-in for torch_npu that needs no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from descend import sdk

try:
    SDK = sdk.path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)
if not sys.platform.startswith("linux"):
    pytest.skip("torch_npu is for Linux", allow_module_level=True)

# What the real one does first: its libraries need CANN's by name, and it looks at the folders. There are no operators
# that Descend would compute.
LOOKS = """
import ctypes, os, sys, types
sys.modules["descend.npu.kernels"] = types.SimpleNamespace(install=lambda: None, wait_for_graphs=None)
for name in ("composer", "compiling", "graphs", "hifloat8"):
    sys.modules[f"descend.npu.{name}"] = types.SimpleNamespace(install=lambda: None)
for name in ("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so",
             "libacl_tdt_channel.so", "libopapi.so"):
    library = ctypes.CDLL(name)
    library.descendGetVersion.restype = ctypes.c_char_p
    library.descendGetVersion()
assert ctypes.CDLL(None).aclrtMalloc  # a library of LD_PRELOAD that wraps it finds it as the next one
home = os.environ["ASCEND_HOME_PATH"]
assert all(os.path.isdir(f"{home}/{folder}") for folder in ("runtime", "compiler", "opp"))
assert os.path.isdir(os.environ["ASCEND_OPP_PATH"])
__version__ = "2.13.0"
npu = types.SimpleNamespace(is_initialized=lambda: False)
print("loaded")
"""
SUFFIX = ".dist-info"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with that torch_npu, a torch that autoloads it, and no other CANN."""
    for name, source in (("torch_npu", LOOKS), ("torch", "import torch_npu\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
        declare(tmp_path, name, "2.13.0")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "DESCEND_", "LD_", "TORCH_"))}
    beside = Path(sys.executable).parent
    return {**clean, "PYTHONPATH": str(tmp_path), "PATH": f"{beside}:{os.environ['PATH']}"}


def declare(folder: Path, name: str, version: str) -> None:
    """Makes a folder's package look installed."""
    for old in folder.glob(f"{name}-*{SUFFIX}"):
        old.rename(old.with_name(f"{name}-{version}{SUFFIX}"))
    metadata = folder / f"{name}-{version}{SUFFIX}"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(environment: dict[str, str], *command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done


def python(environment: dict[str, str], code: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run(environment, sys.executable, "-c", code, status=status)


def error_of(environment: dict[str, str], code: str) -> str:
    """The last line of the traceback."""
    return python(environment, code, status=1).stderr.strip().splitlines()[-1]


# --- any program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["import torch", "import torch_npu", "import descend.npu, torch", "import descend, torch, descend.npu"],
)
def test_every_import_finds_the_libraries(environment, code):
    assert python(environment, code).stdout == "loaded\n"


def test_the_start_of_python_imports_nothing(environment):
    """One finder is put in front; making it is its only cost."""
    code = "import sys; print(any(hasattr(f, 'is_descend') for f in sys.meta_path), 'descend' in sys.modules)"
    assert python(environment, code).stdout == "True False\n"


def test_to_look_for_torch_npu_loads_nothing(environment):
    code = "import importlib.util as u, os; print(bool(u.find_spec('torch_npu')), 'ASCEND_HOME_PATH' in os.environ)"
    assert python(environment, code).stdout == "True False\n"


def test_torch_npu_need_not_be_there(environment):
    code = "from descend import _npu_hook; print(_npu_hook.find_spec('torch_npu', ['/nowhere']))"
    assert python(environment, code).stdout == "None\n"


def test_without_the_pth_file(environment):
    """Python reads it in site-packages alone."""
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'is_descend')]\n"
    assert "libhccl.so" in error_of(environment, code + "import torch_npu")
    assert python(environment, code + "import descend.npu, torch_npu").stdout == "loaded\n"


def test_children_find_them_too(environment):
    code = "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    assert python(environment, code).stdout.split() == ["loaded", "loaded"]


def test_set_env(environment):
    code = f". '{SDK}/set_env.sh' && '{sys.executable}' -c 'import torch, os; print(os.environ[\"ASCEND_OPP_PATH\"])'"
    assert run(environment, "bash", "-c", code).stdout == f"loaded\n{SDK}/opp\n"


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_another_cann_is_left_alone(environment, tmp_path):
    (tmp_path / "cann").mkdir()
    environment["ASCEND_HOME_PATH"] = str(tmp_path / "cann")
    assert "libhccl.so" in error_of(environment, "import torch_npu")
    last = error_of(environment, "import descend.npu")
    assert last.startswith(f"ImportError: there is a CANN at {tmp_path / 'cann'} (ASCEND_HOME_PATH), ")
    refused = run(environment, "descend", "npu", "-c", "print('ran')", status=2)
    assert str(tmp_path / "cann") in refused.stderr
    assert not refused.stdout


def test_another_cann_that_the_loader_finds(environment, tmp_path):
    """Makes any library of CANN's name that is not Descend's."""
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libascendcl.so").symlink_to(libc)
    environment["LD_LIBRARY_PATH"] = str(tmp_path / "lib")
    assert "there is a CANN at " in error_of(environment, "import descend.npu")
    assert "libhccl.so" in error_of(environment, "import torch_npu")


def test_releases_that_do_not_match(environment, tmp_path):
    declare(tmp_path, "torch", "2.14.0+cpu")
    last = error_of(environment, "import torch")
    assert last == (
        "ImportError: torch_npu 2.13.0 is made for torch 2.13.0, but torch 2.14.0+cpu is installed: "
        "pip install torch==2.13.0"
    )


def test_pytorch_for_cuda_is_refused(environment, tmp_path):
    version = tmp_path / "torch" / "version.py"
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = 'none'\n")
    assert python(environment, "import torch").stdout == "loaded\n"
    version.write_text("cuda: Optional[str] = '13.0'\n")
    assert error_of(environment, "import torch") == (
        "ImportError: torch_npu ends the process beside PyTorch for CUDA, and torch 2.13.0 here is for CUDA: pip "
        "install --force-reinstall --no-deps torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
    )


def test_a_post_release_matches(environment, tmp_path):
    declare(tmp_path, "torch_npu", "2.13.0.post2")
    declare(tmp_path, "torch", "2.13.0+cpu")
    assert python(environment, "import torch").stdout == "loaded\n"


def test_a_second_load_is_refused(environment):
    for again in ("importlib.reload(torch_npu)", "del sys.modules['torch_npu']; import torch_npu"):
        last = error_of(environment, f"import importlib, sys, torch_npu; {again}")
        assert last.startswith("ImportError: torch_npu is in this process already")


def test_torch_npu_before_descend_on_libraries_of_its_own(environment, tmp_path):
    (tmp_path / "torch_npu" / "__init__.py").write_text("")
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'is_descend')]\n"
    last = error_of(environment, code + "import torch_npu, descend.npu")
    assert last == "ImportError: torch_npu was imported before descend.npu, without it: import descend.npu first."


# --- the launcher ----------------------------------------------------------------------------------------------------


PRINT = (
    "import os, sys, torch; print(sys.argv[1:], os.environ.get('DESCEND_PRODUCT'), os.environ.get('DESCEND_DEVICES'))"
)


def test_a_file_a_module_and_code(environment, tmp_path):
    (tmp_path / "train.py").write_text(PRINT)
    arguments = ["--product", "mine", "-m", "--check", "--", "--help"]
    for program in ([str(tmp_path / "train.py")], ["-m", "train"], ["-c", PRINT]):
        options = ["--product", "atlas-a3", "--devices", "2"]
        done = run(environment, "descend", "npu", *options, *program, *arguments)
        assert done.stdout == f"loaded\n{arguments} atlas-a3 2\n"


def test_a_command_and_its_status(environment, tmp_path):
    """Such as torchrun: what it starts finds the libraries, too, and what it returns is returned."""
    command = tmp_path / "launch"
    command.write_text(f"#!/bin/sh\n'{sys.executable}' -c 'import torch'\nexit 7\n")
    command.chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    assert run(environment, "descend", "npu", "launch", status=7).stdout == "loaded\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-command"], "neither a file nor a command no-such-command"),
        ([], "a program is missing"),
        (["--product", "atlas-9", "-c", "pass"], "there is no product 'atlas-9'"),
        (["--devices", "0", "-c", "pass"], "--devices"),
        (["--report", "/none/r.json", "-c", "pass"], "the report cannot be written to /none/r.json"),
    ],
)
def test_a_wrong_call_of_the_launcher(environment, arguments, words):
    done = run(environment, "descend", "npu", *arguments, status=2)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DESCEND_PRODUCT", "atlas-9"), ("DESCEND_NUM_THREADS", "many"), ("DESCEND_DEVICES", "-1"), ("DESCEND_ISA", "Z")],
)
def test_a_wrong_setting_is_told_before_the_program_starts(environment, variable, value):
    environment[variable] = value
    done = run(environment, "descend", "npu", "-c", "print('ran')", status=2)
    assert not done.stdout
    assert done.stderr.startswith(f"descend: {variable}")
    assert len(done.stderr.strip().splitlines()) == 1
    done = run(environment, "descend", "npu", "--check", status=2 if variable == "DESCEND_PRODUCT" else 1)
    assert variable in done.stdout + done.stderr
    assert "torch_npu runs here" not in done.stdout


def test_a_program_on_standard_input(environment):
    command = ["descend", "npu", "--devices", "2", "-", "--product"]
    done = subprocess.run(
        command, input=PRINT, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "loaded\n['--product'] None 2\n"


def test_an_empty_home_is_none(environment: dict[str, str]) -> None:
    environment["ASCEND_HOME_PATH"] = ""
    assert run(environment, sys.executable, "-c", "import torch").stdout == "loaded\n"
