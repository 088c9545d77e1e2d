"""``descend check`` on files and on two folders that msprobe dumped."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from cli_calls import fails, ok, write_judged
from descend import tensors


@pytest.fixture
def judged(tmp_path):
    return write_judged(tmp_path)


def test_check_passes_and_fails(judged, capsys):
    text = ok("check", judged / "good.npz", judged / "golden.npz")
    assert "2 of 2 tensors pass the single benchmark." in text
    assert "FAIL" not in text
    text = fails(capsys, "check", judged / "bad.npz", judged / "golden.npz", status=1)
    assert "1 of 2 tensors pass" in text
    assert "FAIL" in text


@pytest.mark.parametrize("columns", ["40", None])
def test_check_shows_everything_beside_long_names(tmp_path, monkeypatch, columns):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    names = [f"{'model.layers.self_attention.' * 5}{number}" for number in range(2)]
    golden = np.linspace(-1, 1, 8)
    tensors.write(tmp_path / "golden.npz", dict.fromkeys(names, golden))
    tensors.write(tmp_path / "actual.npz", dict.fromkeys(names, golden.astype(np.float32)))
    for third in ((), ("--third-party", tmp_path / "actual.npz")):
        lines = ok("check", tmp_path / "actual.npz", tmp_path / "golden.npz", *third).splitlines()
        for name in names:
            (line,) = [line for line in lines if name in line]
            assert "float32" in line
            assert "2.0e-08" in line
            assert "pass" in line


def test_check_says_what_it_does_not_judge(judged):
    good = tensors.read(judged / "good.npz")
    tensors.write(judged / "more.npz", good | {"dbeta": good["dgamma"]})
    text = ok("check", judged / "more.npz", judged / "golden.npz")
    assert f"Not judged, for {judged}/golden.npz does not hold them: dbeta." in "".join(text.splitlines()[-2:])
    assert "Not judged" not in ok("check", judged / "good.npz", judged / "golden.npz")


def test_check_takes_an_empty_name_for_what_it_is(judged, capsys):
    good, golden = judged / "good.npz", judged / "golden.npz"
    for files in (("", golden), (good, ""), (good, "", "--third-party", good), (good, golden, "--third-party", "")):
        assert "has no suffix of a known format" in fails(capsys, "check", *files)


def test_check_judges_by_the_dtype_it_is_told(judged, capsys):
    tensors.write(judged / "fair.npz", {"dx": tensors.read(judged / "good.npz")["dx"] * np.float32(1.005)})
    tensors.write(judged / "one.npz", {"any_name": tensors.read(judged / "golden.npz")["dx"]})
    fails(capsys, "check", judged / "fair.npz", judged / "one.npz", status=1)
    assert "bfloat16" in ok("check", judged / "fair.npz", judged / "one.npz", "--dtype", "bf16")


def test_check_against_a_third_party(judged, capsys):
    third = ("--third-party", judged / "bad.npz")
    text = ok("check", judged / "good.npz", judged / "golden.npz", *third, "--level", "L2")
    assert "pass the double benchmark at L2" in text
    third = ("--third-party", judged / "good.npz")
    fails(capsys, "check", judged / "bad.npz", judged / "golden.npz", *third, status=1)
    assert "no level 'L7'" in fails(capsys, "check", judged / "bad.npz", judged / "golden.npz", "--level", "L7")


def test_check_on_raw_files(judged):
    good, golden = (tensors.read(judged / name) for name in ("good.npz", "golden.npz"))
    tensors.write(judged / "dx.bin", {"dx": good["dx"]})
    tensors.write(judged / "golden.bin", {"dx": golden["dx"]})
    tensors.write(judged / "golden.npy", {"dx": golden["dx"]})
    ok("check", f"{judged}/dx.bin:float32", judged / "golden.npy")
    ok("check", f"{judged}/dx.bin:float32:6x16", f"{judged}/golden.bin:float64")


def test_check_fails_what_does_not_match(judged, capsys):
    good = tensors.read(judged / "good.npz")
    tensors.write(judged / "part.npz", {"dx": good["dx"]})
    tensors.write(judged / "flat.npz", good | {"dx": good["dx"].reshape(-1)})
    tensors.write(judged / "nan.npz", good | {"dgamma": good["dgamma"] * np.float32("nan")})
    for name, words in (("part", "missing in part.npz"), ("flat", "has shape 96"), ("nan", "16 infinite or NaN")):
        text = fails(capsys, "check", judged / f"{name}.npz", judged / "golden.npz", status=1)
        assert words in " ".join(text.split())
        assert "1 of 2 tensors pass" in text


def test_check_that_cannot_judge(judged, capsys):
    golden = judged / "golden.npz"
    tensors.write(judged / "other.npz", {"a": np.ones(1), "b": np.ones(1)})
    tensors.write(judged / "ints.npz", {"dx": np.ones((6, 16), np.int32), "dgamma": np.ones(16, np.int32)})
    assert "no name in common" in fails(capsys, "check", judged / "other.npz", golden)
    assert "no threshold for int32" in fails(capsys, "check", judged / "ints.npz", golden)
    assert "does not exist" in fails(capsys, "check", judged / "no.npz", golden)
    assert "is not a dtype" in fails(capsys, "check", judged / "good.npz", golden, "--dtype", "float7")
    assert "golden" in fails(capsys, "check", golden).lower()


@pytest.fixture
def dumped(tmp_path):
    """Two runs of one step as msprobe dumps them: of MindSpore, with bfloat16 as float32."""
    rng = np.random.default_rng(3)
    exact = {f"Mint.layer_norm.{call}.forward.output.0": rng.standard_normal((4, 8)) for call in range(5)}
    for run, process in (("npu", "proc17"), ("cpu", "proc4")):
        folder = tmp_path / run / "step0" / process / "dump_tensor_data"
        folder.mkdir(parents=True)
        described = {}
        for call, (name, values) in enumerate(exact.items()):
            error = 1 + call * 2.0**-10 if run == "npu" else 1
            tensors.write(folder / f"{name}.npy", {name: (values * error).astype(np.float32)})
            tensor = {"type": "mindspore.Tensor", "dtype": "BFloat16", "shape": [4, 8], "data_name": f"{name}.npy"}
            described[name.rsplit(".", 2)[0]] = {"output": [tensor]}
        tensors.write(folder / "Mint.one_hot.0.forward.input.0.npy", {"ids": np.arange(3)})
        (folder.parent / "dump.json").write_text(json.dumps({"task": "tensor", "data": described}))
    return tmp_path


def test_check_judges_a_dumped_step_worst_first(dumped, capsys):
    lines = ok("check", dumped / "npu", dumped / "cpu").splitlines()
    names = [line.split()[0] for line in lines if line.startswith("step0/proc/")]
    calls = [f"step0/proc/Mint.layer_norm.{call}.forward.output.0" for call in (4, 3, 2, 1, 0)]
    assert names == [*calls, "step0/proc/Mint.one_hot.0.forward.input.0"]
    assert sum("bfloat16" in line for line in lines) == 5
    assert "6 of 6 tensors pass the single benchmark." in lines[-1]
    text = ok("check", dumped / "npu", dumped / "cpu", "--most", "2")
    assert "4 better ones are not shown" in text
    assert text.count("step0/") == 2
    third = ("--third-party", dumped / "npu")
    assert "6 of 6 tensors pass the double" in ok("check", dumped / "npu", dumped / "cpu", *third)
    fails(capsys, "check", dumped / "npu", dumped / "cpu", "--dtype", "float32", status=1)


def test_check_puts_what_fails_in_a_dumped_step_before_the_rest(dumped, capsys):
    folder = dumped / "npu" / "step0" / "proc17" / "dump_tensor_data"
    (folder / "Mint.layer_norm.2.forward.output.0.npy").unlink()
    (folder / "Mint.layer_norm.1.forward.output.0.npy").write_bytes(b"no tensor")
    tensors.write(folder / "Mint.one_hot.0.forward.input.0.npy", {"ids": np.arange(3) + 1})
    tensors.write(folder / "Mint.more.0.forward.input.0.npy", {"more": np.ones(3)})
    text = fails(capsys, "check", dumped / "npu", dumped / "cpu", status=1)
    lines = [line for line in text.splitlines() if line.startswith("step0/") and ("pass" in line or "FAIL" in line)]
    assert ["FAIL" in line for line in lines] == [True] * 3 + [False] * 3
    for words in ("missing in npu", "is not a readable .npy file", "3 integers differ", "3 of 6 tensors pass"):
        assert words in " ".join(text.split())
    assert "Not judged" in text
    assert "Mint.more.0.forward.input.0" in text


def test_check_of_folders_that_cannot_be_judged(dumped, judged, capsys):
    (dumped / "empty").mkdir()
    assert "is a folder without tensors" in fails(capsys, "check", dumped / "empty", dumped / "cpu")
    assert "golden results are a folder" in fails(capsys, "check", judged / "good.npz", dumped / "cpu")
    (dumped / "cpu" / "step0" / "proc4" / "dump.json").write_text("{")
    assert "dump.json cannot be read" in fails(capsys, "check", dumped / "npu", dumped / "cpu")
