"""The command line as a whole, and its small commands: what is printed, exit statuses, one sentence for each error."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import descend
from cli_calls import descend_command, fails, inputs, ok, same, write_judged
from descend import acl, cli, tensors
from descend.cli import operators
from descend.cli.demos import DEMOS
from descend.contract import OPERATORS, PRODUCTS

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DATA = Path(__file__).parents[1] / "examples" / "data"


@pytest.fixture
def judged(tmp_path):
    return write_judged(tmp_path)


def test_ops_lists_operators_and_products():
    text = ok("ops")
    for name in [*OPERATORS, *PRODUCTS]:
        assert name in text
    tables = json.loads(ok("ops", "--json"))
    assert [operator["name"] for operator in tables["operators"]] == list(OPERATORS)
    assert [product["name"] for product in tables["products"]] == list(PRODUCTS)
    assert tables["operators"][0]["parameters"]


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda o: o.name)
def test_explain_tells_the_whole_contract(operator):
    text = ok("explain", operator.name)
    words = " ".join(text.split())
    for line in operator.formula.splitlines():
        assert line in text
    for parameter in operator.parameters:
        assert parameter.name in text
        assert parameter.python in text
    for rule in operator.errors:
        assert str(rule.status) in text
        assert rule.name in text
    for product in PRODUCTS:
        assert product in words
    assert ok("explain", operator.c_name) == text


def test_explain_for_one_product():
    text = ok("explain", "rms_norm_grad", "--product", "atlas-inference")
    assert "BFLOAT16" not in text
    assert "does not exist" not in text
    assert "does not exist on atlas-training: 561003" in ok("explain", "rms_norm_grad", "--product", "atlas-training")


def test_explain_suggests_names(capsys):
    for name in ("rms_norm_grd", "RmsNormGard", "aclnnRmsNormGra"):
        assert f"no operator '{name}'; did you mean rms_norm_grad" in fails(capsys, "explain", name)
    assert f"there are {', '.join(OPERATORS)}." in fails(capsys, "explain", "softplus")
    assert (
        ok("explain", "rmsnormgrad")
        == ok("explain", "RmsNormGrad")
        == ok("explain", "RMSNormGrad")
        == ok("explain", "rms_norm_grad")
    )
    assert "no product 'atlas-a4'; did you mean atlas-a3" in fails(
        capsys, "explain", "rms_norm", "--product", "atlas-a4"
    )


def test_the_version():
    assert ok("--version") == f"descend {descend.__version__}\n"


@pytest.mark.parametrize("command", ["", "run", "portability"])
def test_helps_list_their_commands_in_full(command):
    text = ok(*command.split(), "--help")
    assert "..." not in text[text.index("Commands:") :]


@pytest.mark.parametrize("command", ["ops", *(f"explain {operator}" for operator in OPERATORS)])
def test_narrow_terminals_lose_nothing_of_the_contract(monkeypatch, command):
    words = []
    for columns in ("500", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        words.append(Counter(word for word in ok(*command.split()).split() if "─" not in word))
    assert words[0] == words[1]


@pytest.mark.parametrize("columns", ["", "0", "-1", "wide"])
def test_a_width_that_is_none_leaves_the_output_as_it_is(monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    usual = ok("ops")
    monkeypatch.setenv("COLUMNS", columns)
    assert ok("ops") == usual


def test_info(monkeypatch):
    from descend.cli import info

    monkeypatch.setattr(info, "_BYTES", (1 << 12, 1 << 16))
    monkeypatch.setattr(info, "_SECONDS", 0.01)
    text = ok("info")
    assert descend.__version__ in text
    for word in ("instruction set", "product", acl.get_product(), "threads", "memory limit", "GB/s"):
        assert word in text


@pytest.mark.parametrize("variable", ["DESCEND_ISA", "DESCEND_NUM_THREADS", "DESCEND_PRODUCT"])
def test_info_refuses_what_the_environment_says_wrongly(variable):
    command = [sys.executable, "-m", "descend.cli", "info"]
    done = subprocess.run(command, env=os.environ | {variable: "foo"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert variable in done.stderr
    assert "foo" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_sdk_prints_a_folder():
    pytest.importorskip("descend.sdk")
    folder = Path(ok("sdk").strip())
    assert (folder / "include" / "acl" / "acl.h").exists()


# demo


@pytest.fixture
def quick(monkeypatch):
    from descend.cli import demo

    monkeypatch.setattr(demo, "_SECONDS", 0.002)


@pytest.mark.usefixtures("quick")
def test_demo_shows_the_example_and_the_captures(tmp_path):
    for dtype in (np.float32, bfloat16):
        captured = {f"norm.step1.{np.dtype(dtype)}.{name}": array for name, array in inputs(dtype).items()}
        tensors.write(tmp_path / "rms_norm_grad.safetensors", captured)
        text = ok("demo", "--all", "--data", tmp_path)
        assert "48 of 48 numbers" in text
        for number in ("-1155", "-18240", "-860030", "2304"):
            assert text.count(number) >= 2
        assert "norm.step1 " in text
        assert "FAIL" not in text


@pytest.mark.usefixtures("quick")
def test_demo_on_the_real_tensors():
    if not list(DATA.glob("*.safetensors")):
        pytest.skip("no captured tensors in this checkout")
    everything = ok("demo", "--all", "--data", DATA)
    assert max(map(len, everything.splitlines())) <= 150
    assert "4384 of 4384 numbers" in everything
    assert "bfloat16" in everything
    assert "float32" in everything
    assert "FAIL" not in everything


@pytest.mark.usefixtures("quick")
def test_demo_ends_in_one_screen():
    if not list(DATA.glob("*.safetensors")):
        pytest.skip("no captured tensors in this checkout")
    text = ok("demo", "--data", DATA)
    assert len(text.splitlines()) <= len(DEMOS) + 12
    assert max(map(len, text.splitlines())) <= 120
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()}
    for name in DEMOS:
        assert " pass " in rows[name]
        assert 0 < float(rows[name].split(" pass ")[0].split()[-1]) < 1  # of what the standard allows
    assert f"{len(DEMOS)} of {len(DEMOS)} pass" in text
    assert "`descend demo --all`" in text


@pytest.mark.usefixtures("quick")
def test_demo_tells_a_failure_in_its_line(tmp_path, monkeypatch, capsys):
    from descend.cli import demo

    captured = {f"norm.step1.{name}": array for name, array in inputs(np.float32).items()}
    tensors.write(tmp_path / "rms_norm_grad.safetensors", captured)
    golden = demo.operators.golden
    monkeypatch.setattr(
        demo.operators, "golden", lambda *call: {name: array * 1.01 for name, array in golden(*call).items()}
    )
    text = fails(capsys, "demo", "--data", tmp_path, status=1)
    assert "FAIL" in next(line for line in text.splitlines() if line.startswith("rms_norm_grad"))


@pytest.mark.usefixtures("quick")
def test_demo_without_captured_tensors(tmp_path, capsys):
    assert "No captured tensors found" in ok("demo", "--data", tmp_path)
    assert "is no folder" in fails(capsys, "demo", "--data", tmp_path / "no")
    assert "no operator 'foo'" in fails(capsys, "demo", "foo")


def test_demo_finds_the_data_of_the_checkout_that_it_is_run_in(tmp_path, monkeypatch):
    from descend.cli import demo

    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "capture_gradients.py").touch()
    monkeypatch.setattr(demo, "__file__", "/usr/lib/descend/cli/demo.py")
    for folder in (tmp_path, tmp_path / "examples"):
        monkeypatch.chdir(folder)
        assert demo.find_data() == tmp_path / "examples" / "data"


# the process


def test_an_interruption_while_packages_are_imported_is_said(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    assert fails(capsys, "ops", status=130) == "descend: interrupted\n"


def test_a_wrong_call_says_where_the_help_is(capsys):
    assert fails(capsys, "run") == "descend: Missing command. See `descend run --help`.\n"
    assert fails(capsys, "explain").endswith(" See `descend explain --help`.\n")
    assert fails(capsys, "check", "a", "b", "--levle", "L1").endswith(" See `descend check --help`.\n")


def test_an_interruption_is_said(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    tensors.write(tmp_path / "in.npz", inputs())
    monkeypatch.setattr(operators, "functional", interrupted)
    text = fails(capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "out.npz", status=130)
    assert text == "descend: interrupted\n"


@pytest.mark.parametrize("command", ["ops", "ops --json", "sdk", "--help", "check good.npz golden.npz", "check no no"])
def test_a_pipe_that_nobody_reads(judged, command):
    read, write = os.pipe()
    os.close(read)
    both = {"stderr": subprocess.STDOUT} if command == "check no no" else {"stderr": subprocess.PIPE}
    words = [sys.executable, "-m", "descend.cli", *command.split()]
    try:
        result = subprocess.run(words, stdout=write, **both, text=True, timeout=120, cwd=judged)
    finally:
        os.close(write)
    assert result.returncode == 141
    assert not result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["ops", "sdk"])
def test_a_full_disk_is_one_sentence(command):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "descend.cli", *command.split()]
        result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr == "descend: [Errno 28] No space left on device\n"


def test_exit_statuses_of_the_process(judged):
    good = descend_command("check", judged / "good.npz", judged / "golden.npz")
    assert (good.returncode, good.stderr) == (0, "")
    bad = descend_command("check", judged / "bad.npz", judged / "golden.npz")
    assert (bad.returncode, bad.stderr) == (1, "")
    unknown = descend_command("check", judged / "no.npz", judged / "golden.npz")
    assert unknown.returncode == 2
    assert unknown.stderr == f"descend: {judged}/no.npz does not exist.\n"
    wrong = descend_command("chekc")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("descend: ")
    assert wrong.stderr.count("\n") == 1


def test_no_arguments_print_the_help():
    result = descend_command()
    assert result.returncode == 0
    for name in ("ops", "explain", "run", "check", "demo", "info", "sdk"):
        assert name in result.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    tensors.write(tmp_path / "in.npz", inputs())

    def command(*arguments):
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "descend.cli", *arguments]
        result = subprocess.run(shell, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        if ">&-" in closed.split():
            assert result.stdout == ""
        return result.returncode, result.stderr

    for arguments in (("ops", "--json"), ("--help",)):
        assert command(*arguments) == (0, "")
    assert command("run", "rms_norm_grad", "in.npz", "-o", "out.npz") == (0, "")
    same(tensors.read(tmp_path / "out.npz")["dx"], descend.rms_norm_grad(**inputs())[0])
    status, error = command("run", "rms_norm_grad", "no.npz", "-o", "out.npz")
    assert status == 2
    assert error == ("" if "2>&-" in closed else "descend: no.npz does not exist.\n")


def test_a_pickle_is_one_sentence(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "x.pt").write_bytes(pickle.dumps(print))
    result = descend_command("run", "rms_norm", tmp_path / "x.pt", "-o", tmp_path / "out.npz")
    assert result.returncode == 2
    assert result.stderr.startswith("descend: ")
    assert result.stderr.count("\n") == 1


def test_a_terminal_that_knows_no_chinese():
    result = descend_command("ops", env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)})
    assert result.returncode == 0, result.stderr
    assert "Ascend910B1" in result.stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_packages(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from descend.cli import main; sys.exit(main(['ops']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == (
        f'descend: the command line needs {missing}, which is not installed: pip install "descend[cli]"\n'
    )


def test_importing_descend_imports_no_extras():
    code = "import sys, descend; print({'typer', 'rich', 'torch', 'safetensors'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
