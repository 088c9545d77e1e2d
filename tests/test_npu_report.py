"""`descend npu --report`: what ran, where it was computed, how long it took, and which products would accept it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import forks

pytest.importorskip("torch")
pytest.importorskip("torch_npu")
pytest.importorskip("typer")

TRAIN = """
import torch, torch_npu
torch.set_num_threads(1)
torch.manual_seed(0)
x, gamma = torch.randn(4, 16).npu().requires_grad_(), torch.ones(16).npu().requires_grad_()
for _ in range(3):
    y = torch_npu.npu_rms_norm(x, gamma)[0]
    torch_npu.npu_fast_gelu(y).sum().backward()
mask = torch.zeros(2, 1, 32, 32).bool().npu()
torch_npu.npu_scaled_masked_softmax(torch.randn(2, 2, 32, 32).npu().half(), mask)
torch.npu.synchronize()
print("done")
"""
SECOND = "aclnnRmsNormGrad"


LLAMA = """
import transformers
torch.set_num_threads(1)
sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
config = transformers.LlamaConfig(vocab_size=256, num_hidden_layers=1, **sizes)
tokens = torch.randint(256, (2, 64)).npu()
for make, options in (
    (torch.optim.AdamW, {}), (torch.optim.AdamW, {"fused": True}), (torch_npu.optim.NpuFusedAdamW, {})
):
    model = transformers.LlamaForCausalLM(config).npu()
    optimizer = make(model.parameters(), 1e-3, **options)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
torch.npu.synchronize()
"""


@pytest.fixture
def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "DESCEND_", "LD_", "TORCH_"))}
    beside = Path(sys.executable).parent
    return {**clean, "PATH": f"{beside}:{os.environ['PATH']}"}


def launch(
    environment: dict[str, str], *arguments: str | Path, status: int = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "descend.cli", "npu", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def record(file: str | Path, code: str, folder: Path, status: int = 0, **environment: str) -> str:
    """What a program says on standard error that is recorded without the launcher, by the variable that it sets."""
    environment["DESCEND_REPORT"] = str(file)
    done = forks.run("import torch, torch_npu\n" + code, folder=folder, environment=environment)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


def record_calls(code: str, folder: Path, threads: int = 1, **environment: str) -> dict[str, dict[str, Any]]:
    """The operators in the report of a program that has imported torch_npu before it begins to record."""
    begin = "from descend import _npu_report, npu; _npu_report.announce(); _npu_report.begin(npu.kernels)"
    environment["DESCEND_REPORT"] = "r.json"
    forks.run(
        f"import torch, torch_npu\n{begin}\n{code}",
        folder=folder,
        environment=environment,
        check=True,
        loaded="torch_npu",
    )
    return operators(folder / "r.json", threads)


def processes(file: Path, threads: int = 1) -> list[dict[str, Any]]:
    document = json.loads(file.read_text())
    assert (document["schema"], document["version"]) == ("descend-npu-report", 1)
    found: list[dict[str, Any]] = document["processes"]
    for process in found:
        for row in process["operators"]:
            assert row["calls"] == sum(kind["calls"] for kind in row["kinds"]) > 0
            assert row["seconds"] == pytest.approx(sum(kind["seconds"] for kind in row["kinds"]))
            assert 0 <= row["seconds"] <= threads * process["seconds"]
    return found


def operators(file: Path, threads: int = 1) -> dict[str, dict[str, Any]]:
    (process,) = processes(file, threads)
    return {row["operator"]: row for row in process["operators"]}


def calls(file: Path, operator: str) -> list[int]:
    """Of an operator, in each process that called it."""
    found = [row["calls"] for p in processes(file) for row in p["operators"] if row["operator"] == operator]
    return sorted(found)


# --- what it tells ---------------------------------------------------------------------------------------------------


def test_what_ran_and_where(environment, tmp_path):
    done = launch(environment, "--report", tmp_path / "r.json", "-c", TRAIN)
    assert done.stdout.splitlines()[-1] == "done"  # the table is not among what the program prints
    rows = operators(tmp_path / "r.json")
    places = {name: rows[name]["place"] for name in ("aclnnRmsNorm", "aten::sum", "npu::npu_fast_gelu")}
    assert places == {"aclnnRmsNorm": "aclnn", "aten::sum": "cpu", "npu::npu_fast_gelu": "composed"}
    assert rows["aclnnRmsNorm"]["calls"] == rows[SECOND]["calls"] == rows["npu::npu_fast_gelu_backward"]["calls"] == 3
    (kind,) = rows[SECOND]["kinds"]
    assert kind["arguments"]["x"] == "FLOAT[4, 16]"
    assert (kind["runs"], kind["product"], kind["status"], kind["errors"]) == (3, "atlas-a2-training", 0, 0)
    assert kind["seconds"] > 0
    assert set(kind["refused_on"]) == {"atlas-200i-500-a2", "atlas-training"}
    assert "does not exist on atlas-training" in kind["refused_on"]["atlas-training"]["sentence"]
    assert {"atlas-a3", "ascend-950", "host"} < set(kind["accepted_on"])
    (gelu,) = rows["npu::npu_fast_gelu"]["kinds"]
    assert gelu["arguments"] == {"input": "float32[4, 16]"}
    softmax = rows["ScaledMaskedSoftmax"]  # called by name
    assert softmax["place"] == "aclnn"
    assert softmax["kinds"][0]["arguments"]["x"] == "FLOAT16[2, 2, 32, 32]"
    assert softmax["kinds"][0]["runs"] == 1
    table = done.stderr
    assert f"{SECOND}: does not exist there, only on atlas-a3" in table
    assert "npu::npu_fast_gelu_backward" in table
    assert len(table.splitlines()) < 60
    totals = [line.split()[1] for line in table.splitlines() if line.startswith("total")]
    assert totals == ["aclnn", "cpu", "composed"]


def test_kernels_in_python_are_recorded_too(tmp_path):
    """Those that compute where the ones in C++ were not built: the same report."""
    code = """
many = [torch.ones(2, device="npu") for _ in range(12)]
torch.cat(many)
for n in range(300):
    torch.ones(n, device="npu").neg_()
"""
    reports = []
    for name, form in (("c", ""), ("python", "python")):
        record(f"{name}.json", code, tmp_path, DESCEND_NPU_KERNELS=form)
        rows = operators(tmp_path / f"{name}.json")
        kinds = {
            repr(kind["arguments"]) for operator in ("aten::cat", "aten::neg_") for kind in rows[operator]["kinds"]
        }
        reports.append((rows["aten::cat"]["calls"], rows["aten::neg_"]["calls"], kinds))
    assert reports[0] == reports[1]
    assert len(reports[0][2]) == 258


PRODUCTS_THAT_TRAIN = {
    "atlas-a3": True,
    "atlas-a2-training": True,
    "atlas-a2-inference": True,
    "atlas-200i-500-a2": False,
    "atlas-inference": True,
    "atlas-training": False,
    "ascend-950": True,
}
JUDGED = """
x, gamma = torch.randn(4, 16).npu().requires_grad_(), torch.ones(16).npu().requires_grad_()
try:
    torch_npu.npu_rms_norm(x, gamma)[0].backward(torch.ones(4, 16).npu())
    torch.npu.synchronize()
except RuntimeError as error:
    open("said", "w").write(f"refused {error}")
else:
    open("said", "w").write("accepted")
"""


@pytest.mark.parametrize("product", PRODUCTS_THAT_TRAIN)
def test_calls_are_judged_for_a_product(tmp_path, product):
    rows = record_calls(JUDGED, tmp_path, DESCEND_PRODUCT=product)
    said = (tmp_path / "said").read_text()
    if PRODUCTS_THAT_TRAIN[product]:
        assert "accepted" in said
        by_name = product == "atlas-inference"  # torch_npu has another way there
        second = rows["RmsNormGrad" if by_name else SECOND]
        assert (second["calls"], second["errors"], second["kinds"][0]["runs"]) == (1, 0, 1)
        return
    assert f"aclnnRmsNorm: does not exist on {product}" in said
    assert SECOND not in rows
    (kind,) = rows["aclnnRmsNorm"]["kinds"]
    assert (kind["product"], kind["status"], kind["errors"], kind["runs"]) == (product, 561003, 1, 0)
    assert kind["sentence"] == kind["refused_on"][product]["sentence"]
    assert "atlas-a2-training" in kind["accepted_on"]


def test_host_is_no_device_of_torch_npu(environment):
    """What it would accept every report tells."""
    assert (
        "torch_npu knows no device of the product host"
        in launch(environment, "--product", "host", "-c", "print('ran')", status=2).stderr
    )
    environment["DESCEND_PRODUCT"] = "host"
    assert "torch_npu knows no device of the product host" in launch(environment, "-c", "", status=2).stderr


def test_kinds_are_limited_and_that_is_said(tmp_path):
    code = """
for n in range(1, 301):
    x = torch.ones(n, 8, device="npu")
    torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"))
    x.neg()
"""
    rows = record_calls(code, tmp_path)
    for name in ("aclnnRmsNorm", "aten::neg"):
        assert rows[name]["calls"] == 300
        assert len(rows[name]["kinds"]) == 257
        (rest,) = [kind for kind in rows[name]["kinds"] if kind["arguments"] is None]
        assert rest["calls"] == 44
    (rest,) = [kind for kind in rows["aclnnRmsNorm"]["kinds"] if kind["arguments"] is None]
    assert set(rest["refused_on"]) == {"atlas-200i-500-a2", "atlas-training"}


def test_lists_and_errors(tmp_path):
    code = """
many = [torch.ones(2, device="npu") for _ in range(12)]
torch.cat(many)
try:
    torch.ones(2, 3, device="npu") @ torch.ones(2, 3, device="npu")
except RuntimeError:
    pass
"""
    rows = record_calls(code, tmp_path)
    (cat,) = rows["aten::cat"]["kinds"]
    assert cat["arguments"]["tensors[0]"] == "float32[2]"
    assert cat["arguments"]["tensors[...]"] == "and 4 more"
    assert rows["aten::mm"]["errors"] == 1


def test_the_time_of_threads_is_their_own(tmp_path):
    """Calls of several threads are all counted, and what a thread waits for is counted once."""
    code = """
import threading
torch.set_num_threads(1)
def work():
    for _ in range(200):
        torch.ones(4, device="npu").neg()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
"""
    assert record_calls(code, tmp_path, threads=4)["aten::neg"]["calls"] == 800


# --- how programs end ------------------------------------------------------------------------------------------------

ONE = "import torch; torch.ones(3, device='npu').neg()\n"
# A shell starts what runs in its background with SIGINT ignored.
INTERRUPTED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit(130)", 130),
        ("import sys; sys.exit('a sentence')", 1),
        ("import atexit; atexit.register(lambda: 1 / 0)", 0),
        ("import atexit; atexit.register(lambda: torch.ones(3, device='npu').neg())", 0),
        ("import os; os.chdir('/')", 0),
        ("raise ValueError('no')", 1),
        (INTERRUPTED, -signal.SIGINT),
    ],
)
def test_nothing_is_lost_at_the_end(environment, tmp_path, end, status):
    said = record("r.json", ONE + end, tmp_path, status)
    assert calls(tmp_path / "r.json", "aten::neg") == [2 if "lambda: torch" in end else 1]
    if "sentence" in end:
        assert "a sentence" in said
    if status:  # the launcher's status, of a program that needs no device
        done = launch(environment, "--report", "none.json", "-c", end, status=status, cwd=tmp_path)
        assert done.stderr.startswith("a sentence") == ("sentence" in end)


@pytest.mark.parametrize(
    ("end", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_a_program_that_leaves_no_report(environment, tmp_path, end, status):
    end = f"import os, signal; {end}"
    record("r.json", ONE + end, tmp_path, status)
    assert not (tmp_path / "r.json").exists()
    done = launch(environment, "--report", tmp_path / "r.json", "-c", end, status=status)
    assert not processes(tmp_path / "r.json")
    assert "no process has left a report" in done.stderr


def test_signals_reach_the_program(environment, tmp_path):
    code = (
        "import signal, time, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(100)"
    )
    command = [sys.executable, "-m", "descend.cli", "npu", "--report", str(tmp_path / "r.json"), "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert "ready\n" in iter(it.stdout.readline, "")
        it.send_signal(signal.SIGTERM)
        started = time.monotonic()
        it.communicate(timeout=60)
        assert time.monotonic() - started < 50
    assert it.returncode == 5


def test_a_program_without_the_device(environment, tmp_path):
    done = launch(environment, "--report", tmp_path / "r.json", "-c", "print(1)")
    assert done.stdout == "1\n"
    assert not processes(tmp_path / "r.json")


# --- which programs, which files -------------------------------------------------------------------------------------


def test_odd_names_and_programs(environment, tmp_path):
    folder = tmp_path / "日本 [b]'\""
    folder.mkdir()
    (folder / "mod ül.py").write_text(ONE)
    (tmp_path / "plain.py").write_text("import os, sys\nprint(os.environ['DESCEND_REPORT'], *sys.argv[1:])\n")
    launch(environment, "--report", folder / "größe.json", folder / "mod ül.py", "日本")
    (process,) = processes(folder / "größe.json")
    assert process["program"][-1] == "日本"
    assert calls(folder / "größe.json", "aten::neg") == [1]
    done = launch(environment, "--report", "m.json", "-m", "plain", "one", cwd=tmp_path)
    assert done.stdout == f"{tmp_path / 'm.json'} one\n"
    done = launch(
        environment, "--report", "in.json", "-", "more", cwd=tmp_path, input=(tmp_path / "plain.py").read_text()
    )
    assert done.stdout == f"{tmp_path / 'in.json'} more\n"
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []


def test_the_variable_alone(tmp_path):
    """Programs add up in one file."""
    for _ in range(2):
        record("r.json", ONE, tmp_path)
    assert calls(tmp_path / "r.json", "aten::neg") == [1, 1]
    assert "nothing can be written to its folder" in record("none/r.json", ONE, tmp_path, status=1)


@pytest.mark.parametrize("path", ["none/r.json", ".", "/dev/null", "/proc/r.json", "mine.py"])
def test_a_report_that_cannot_be_written(environment, tmp_path, path):
    (tmp_path / "mine.py").write_text("a program of mine")
    done = launch(environment, "--report", path, "-c", "print('ran')", status=2, cwd=tmp_path)
    assert not done.stdout
    assert "the report cannot be written to" in done.stderr
    assert (tmp_path / "mine.py").read_text() == "a program of mine"
    assert len(done.stderr.strip().splitlines()) == 1


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_children(environment, tmp_path):
    """Spawned, forked by multiprocessing, and forked by hand: each is in the report once, with its own calls."""
    (tmp_path / "train.py").write_text("""
import multiprocessing, os, sys
import torch

def work(n):
    for _ in range(n):
        torch.ones(3, device="npu").neg()

if __name__ == "__main__":
    for n, way in ((1, "fork"), (2, "spawn"), (3, "forkserver")):
        child = multiprocessing.get_context(way).Process(target=work, args=(n,))
        child.start(), child.join()
        assert child.exitcode == 0
    if os.fork() == 0:
        work(4)
        sys.exit(0)
    assert os.wait()[1] == 0
    work(5)
    if os.fork() == 0:  # too late to use the device
        os._exit(0)
    assert os.wait()[1] == 0
""")
    done = launch(environment, "--report", tmp_path / "r.json", tmp_path / "train.py")
    assert calls(tmp_path / "r.json", "aten::neg") == [1, 2, 3, 4, 5]
    assert len(processes(tmp_path / "r.json")) == 5
    assert "by 5 processes" in done.stderr


def test_a_step_of_a_llama_has_nothing_composed_but_attention(tmp_path):
    """Forward, loss, backward and AdamW, of PyTorch and of torch_npu."""
    pytest.importorskip("transformers")
    found = record_calls(LLAMA, tmp_path)
    composed = {name for name, row in found.items() if row["place"] == "composed"}
    assert composed == {"npu::npu_fusion_attention_v3", "npu::npu_fusion_attention_grad_v3"}
