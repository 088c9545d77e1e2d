"""The command line: what it computes and prints, its exit statuses, and one sentence for everything that goes wrong."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

import descend
from descend import acl, cli, precision, reference, tensors
from descend.cli import main, operators
from descend.cli.app import app
from descend.cli.demos import DEMOS
from descend.cli.run import attribute_value
from descend.contract import OPERATORS, PRODUCTS, Parameter

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DATA = Path(__file__).parents[1] / "examples" / "data"


def ok(*arguments):
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fails(capsys, *arguments, status=2):
    """The one sentence of a command that must fail."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == status
    out, err = capsys.readouterr()
    if status == 2:
        assert err.startswith("descend: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    return out + err


def descend_command(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "descend.cli", *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def inputs(dtype=np.float32, shape=(6, 16), seed=0):
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    gamma = rng.standard_normal(shape[-1:]).astype(dtype)
    rstd = (1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6)).astype(np.float32)
    return {"dy": dy, "x": x, "rstd": rstd, "gamma": gamma}


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


# ops, explain, info, sdk


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
    assert ok("explain", operator.c_name.removeprefix("aclnn")) == text


def test_explain_for_one_product():
    text = ok("explain", "rms_norm_grad", "--product", "atlas-inference")
    assert "BFLOAT16" not in text
    assert "does not exist" not in text
    assert "does not exist on atlas-training: 561003" in ok("explain", "rms_norm_grad", "--product", "atlas-training")


def test_explain_suggests_names(capsys):
    for name in ("rms_norm_grd", "RmsNormGard", "aclnnRmsNormGra"):
        assert f"no operator '{name}'; did you mean rms_norm_grad" in fails(capsys, "explain", name)
    assert "there are rms_norm_grad, rms_norm," in fails(capsys, "explain", "softplus")
    assert ok("explain", "rmsnormgrad") == ok("explain", "RMSNormGrad") == ok("explain", "rms_norm_grad")
    assert "no product 'atlas-a4'; did you mean atlas-a3" in fails(
        capsys, "explain", "rms_norm", "--product", "atlas-a4"
    )


def test_the_version():
    assert ok("--version") == f"descend {descend.__version__}\n"


@pytest.mark.parametrize("command", ["", "run", "portability"])
def test_helps_list_their_commands_in_full(command):
    text = ok(*command.split(), "--help")
    assert "..." not in text[text.index("Commands:") :]


@pytest.mark.parametrize("operator", OPERATORS)
def test_narrow_terminals_lose_nothing_of_the_contract(monkeypatch, operator):
    for command in (("ops",), ("explain", operator)):
        words = []
        for columns in ("500", "80"):
            monkeypatch.setenv("COLUMNS", columns)
            words.append(Counter(word for word in ok(*command).split() if "─" not in word))
        assert words[0] == words[1]


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


# run


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16, np.float64], ids=str)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_run_in_every_format_and_dtype(tmp_path, suffix, dtype):
    if suffix == ".pt":
        pytest.importorskip("torch")
    given = inputs(dtype)
    tensors.write(tmp_path / f"in{suffix}", given)
    text = ok("run", "rms_norm_grad", tmp_path / f"in{suffix}", "-o", tmp_path / f"out{suffix}")
    results = tensors.read(tmp_path / f"out{suffix}")
    assert set(results) == {"dx", "dgamma"}
    for name, expected in zip(("dx", "dgamma"), descend.rms_norm_grad(**given), strict=True):
        same(results[name], expected)
        assert name in text
    for word in ("6x16", str(np.dtype(dtype)), "GB/s", "host"):
        assert word in text


def test_run_with_a_file_for_each_tensor(tmp_path):
    given = inputs(bfloat16, (2, 3, 8))
    tensors.write(tmp_path / "dy.bin", {"dy": given["dy"]})
    tensors.write(tmp_path / "any.npy", {"x": given["x"]})
    tensors.write(tmp_path / "rest.npz", {"rstd": given["rstd"], "gamma": given["gamma"], "more": np.ones(1)})
    ok(
        *("run", "rms_norm_grad", f"dy={tmp_path}/dy.bin:bf16:2x3x8", f"x={tmp_path}/any.npy"),
        *(f"{tmp_path}/rest.npz", "-o", f"dx={tmp_path}/dx.bin", "-o", f"dgamma={tmp_path}/dgamma.npy"),
    )
    dx, dgamma = descend.rms_norm_grad(**given)
    same(tensors.read(tmp_path / "dx.bin", bfloat16, (2, 3, 8))["dx"], dx)
    same(tensors.read(tmp_path / "dgamma.npy")["dgamma"], dgamma)


def test_run_with_colons_in_the_names_of_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = inputs(np.float32, (4, 8))
    for name, file in (("x", "a:b.bin"), ("x", "x=a.bin"), ("x", "a.npy:1.bin"), ("gamma", "1:2:3.npy")):
        tensors.write(tmp_path / file, {name: given[name]})
    y, _ = descend.rms_norm(given["x"], given["gamma"])
    for x in ("x=a:b.bin:float:4x8", "x=x=a.bin:float:4x8", "x=a.npy:1.bin:float:4x8"):
        ok("run", "rms_norm", x, "gamma=1:2:3.npy", "-o", "out.npz")
        same(tensors.read(tmp_path / "out.npz")["y"], y)
    ok("run", "rms_norm", "x=a:b.bin", "gamma=1:2:3.npy", "--dtype", "float", "--shape", "4x8", "-o", "out:1.npz")
    same(tensors.read(tmp_path / "out:1.npz")["y"], y)

    def sentence(x: str, out: str = "o.npz") -> str:
        return fails(capsys, "run", "rms_norm", x, "gamma=1:2:3.npy", "-o", out)

    assert "c:d.bin does not exist" in sentence("x=c:d.bin:float:4x8")
    assert "'2y3' is not a shape" in sentence("x=a:b.bin:float:2y3")
    assert "'4x8:1' is not a shape" in sentence("x=q.bin:float:4x8:1")
    assert "name the file y:1.npz" in sentence("x=a:b.bin:float:4x8", "y:1.npz:float")


def test_run_on_raw_files_of_one_dtype_and_shape(tmp_path):
    given = inputs(np.float32, (4, 8))
    for name in ("x", "gamma"):
        tensors.write(tmp_path / f"{name}.bin", {name: given[name]})
    ok(
        *("run", "rms_norm", f"x={tmp_path}/x.bin", f"gamma={tmp_path}/gamma.bin:float:8"),
        *("--dtype", "float32", "--shape", "4x8", "--epsilon", "0.5", "-o", f"{tmp_path}/out.npz"),
    )
    results = tensors.read(tmp_path / "out.npz")
    y, rstd = descend.rms_norm(given["x"], given["gamma"], 0.5)
    same(results["y"], y)
    same(results["rstd"], rstd)


def test_forward_results_feed_the_gradient(tmp_path):
    given = inputs()
    tensors.write(tmp_path / "in.npz", {name: given[name] for name in ("dy", "x", "gamma")})
    ok("run", "rms_norm", tmp_path / "in.npz", "-o", tmp_path / "forward.npz")
    ok("run", "rms_norm_grad", tmp_path / "in.npz", tmp_path / "forward.npz", "-o", tmp_path / "out.npz")
    expected = reference.rms_norm_grad(**given)
    for name, golden in zip(("dx", "dgamma"), expected, strict=True):
        assert precision.single_benchmark(tensors.read(tmp_path / "out.npz")[name], golden).passed


def test_run_with_a_prefix(tmp_path):
    given = inputs()
    file = {f"layers.0.norm1.{name}": array for name, array in given.items()} | {"layers.1.norm1.x": given["x"]}
    tensors.write(tmp_path / "in.safetensors", file)
    for prefix in ("layers.0.norm1", "layers.0.norm1."):
        ok("run", "rms_norm_grad", tmp_path / "in.safetensors", "--prefix", prefix, "-o", tmp_path / "out.npz")
        same(tensors.read(tmp_path / "out.npz")["dx"], descend.rms_norm_grad(**given)[0])


def masked_calls():
    """An operator, its tensors, and options of which some leave out a result."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((4, 8)).astype(np.float32) for _ in range(2))
    weight = np.ones(8, np.float32)
    _, mean, rstd = descend.layer_norm(x, (8,), weight)
    layer = {"grad_out": dy, "input": x, "mean": mean, "rstd": rstd, "weight": weight}
    empty = {name: array if name == "weight" else array[:0] for name, array in layer.items()}
    _, mean, rstd = descend.group_norm_swish(x, weight, weight, 2)
    group = {"dy": dy, "mean": mean, "rstd": rstd, "x": x, "gamma": weight, "beta": weight}
    for given in (layer, empty):
        for mask in ("true,true,true", "false,true,false", "true,false,true"):
            yield "layer_norm_backward", given, ("--normalized-shape", "8", "--output-mask", mask)
    for given in (group, group | {"dy": np.full_like(dy, np.nan)}):
        for mask in ((), ("--no-dgamma-is-require",), ("--no-dbeta-is-require",)):
            yield "group_norm_swish_grad", given, ("--num-groups", "2", *mask)


def test_raw_results_are_judged_by_golden_ones(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = inputs(bfloat16, (2, 1, 32))
    for name, array in given.items():
        tensors.write(f"{name}.bin", {name: array})
    files = ("dy.bin:bf16:2x1x32", "x.bin:bf16:2x1x32", "rstd.bin:float:2x1", "gamma.bin:bf16:32")
    golden = ("--golden", "-o", "dx=golden-dx.npy", "-o", "dgamma=golden-dgamma.npy")
    text = ok("run", "rms_norm_grad", *files, *golden, "--product", "atlas-a2-training")
    assert "float64" in text
    for name, expected in zip(("dx", "dgamma"), reference.rms_norm_grad(**given), strict=True):
        same(tensors.read(f"golden-{name}.npy")[f"golden-{name}"], expected)
    ok("run", "rms_norm_grad", *files, "-o", "dx=dx.bin", "-o", "dgamma=dgamma.bin")
    ok("check", "dx.bin:bf16", "golden-dx.npy")
    ok("check", "dgamma.bin:float", "golden-dgamma.npy")
    fails(capsys, "check", "dy.bin:bf16", "golden-dx.npy", status=1)
    assert "161002" in fails(capsys, "run", "rms_norm_grad", *files, *golden, "--product", "atlas-inference")


@pytest.mark.parametrize(("operator", "given", "options"), list(masked_calls()))
def test_golden_results_are_named_and_left_out_as_others(tmp_path, operator, given, options):
    tensors.write(tmp_path / "in.npz", given)
    ok("run", operator, tmp_path / "in.npz", "-o", tmp_path / "out.npz", *options)
    ok("run", operator, tmp_path / "in.npz", "-o", tmp_path / "golden.npz", "--golden", *options)
    results, golden = (tensors.read(tmp_path / f"{name}.npz") for name in ("out", "golden"))
    assert list(golden) == list(results)
    for name, array in results.items():
        assert golden[name].dtype == np.float64
        assert golden[name].shape == array.shape
        assert precision.single_benchmark(array, golden[name]).passed


def test_a_prefix_that_is_none_is_put_right(tmp_path, capsys):
    given = inputs()
    file = {f"{prefix}.{name}": array for prefix in ("a.0", "a.1", "b.0", "b.1") for name, array in given.items()}
    tensors.write(tmp_path / "in.npz", file)
    for prefix, hint in (("", "a.0, a.1, b.0, …"), ("b", "b.0, b.1"), ("b.", "b.0, b.1"), ("c", "a.0, a.1, b.0, …")):
        text = fails(
            capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "--prefix", prefix, "-o", tmp_path / "out.npz"
        )
        assert text.endswith(f"; say --prefix, such as {hint}.\n")


@pytest.mark.parametrize("product", [p for p in PRODUCTS if p in OPERATORS["rms_norm_grad"].products])
def test_run_in_two_phases_gives_the_same_bits(tmp_path, product):
    given = inputs(np.float16)
    tensors.write(tmp_path / "in.npz", given)
    text = ok("run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--product", product)
    assert f"{product}, two phases" in text
    for name, expected in zip(("dx", "dgamma"), descend.rms_norm_grad(**given), strict=True):
        same(tensors.read(tmp_path / "out.npz")[name], expected)


def test_a_products_refusal_is_one_sentence(tmp_path, capsys):
    tensors.write(tmp_path / "in.npz", inputs(bfloat16))
    arguments = ("run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--product")
    assert "(ACLNN_ERR_PARAM_INVALID, 161002)." in fails(capsys, *arguments, "atlas-inference")
    assert "(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, 561003)." in fails(capsys, *arguments, "atlas-training")
    assert "no product 'atlas'" in fails(capsys, *arguments, "atlas")
    assert not (tmp_path / "out.npz").exists()


def test_wrong_inputs_of_run_are_one_sentence(tmp_path, capsys):
    given = inputs()
    tensors.write(tmp_path / "in.npz", given)
    tensors.write(tmp_path / "few.npz", {"dy": given["dy"], "x": given["x"]})
    tensors.write(tmp_path / "bad.npz", given | {"gamma": np.ones(5, np.float32)})
    file, out = tmp_path / "in.npz", ("-o", tmp_path / "out.npz")

    def sentence(*arguments):
        return fails(capsys, "run", "rms_norm_grad", *arguments)

    assert "No tensor is given for rstd, gamma; the files hold dy, x." in sentence(tmp_path / "few.npz", *out)
    assert "561002" in sentence(tmp_path / "bad.npz", *out)
    assert "gamma has shape [5]" in sentence(tmp_path / "bad.npz", *out)
    assert "no.npz does not exist" in sentence(tmp_path / "no.npz", *out)
    assert "'z' is no input of this operator; its inputs are dy, x, rstd, gamma" in sentence(f"z={file}", *out)
    assert "holds dy, x, and none is called gamma" in sentence(file, f"gamma={tmp_path}/few.npz", *out)
    assert "holds one tensor, and there are 2" in sentence(file, "-o", tmp_path / "out.npy")
    assert "no suffix of a known format" in sentence(file, "-o", tmp_path / "out.txt")
    assert "is no result of this operator; its results are dx, dgamma" in sentence(file, "-o", f"x={tmp_path}/o.npz")
    assert "Say which result" in sentence(file, "-o", tmp_path / "a.npy", "-o", tmp_path / "b.npy")
    assert "'flaot16' is not a dtype" in sentence(f"dy={tmp_path}/dy.bin:flaot16", *out)
    assert "'2y3' is not a shape" in sentence(f"dy={tmp_path}/dy.bin:float16:2y3", *out)
    assert "--output" in sentence(file)
    assert "--epsilon" in sentence(file, *out, "--epsilon", "1")
    assert "--epsilon" in fails(capsys, "run", "rms_norm", file, *out, "--epsilon", "much")
    assert "rms_norm_gard" in fails(capsys, "run", "rms_norm_gard", file, *out)
    assert "epsilon" in fails(capsys, "run", "rms_norm", file, *out, "--epsilon", "-1")
    assert "--repeat" in sentence(file, *out, "--repeat", "0")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("product", [None, *OPERATORS["rms_norm_grad"].products])
@pytest.mark.parametrize("dtype", [np.int32, np.complex64], ids=str)
def test_a_dtype_that_no_product_takes_is_the_engines_sentence(tmp_path, capsys, product, dtype):
    given = inputs()
    given |= {name: given[name].astype(dtype) for name in ("dy", "x")}
    tensors.write(tmp_path / "in.npz", given)
    on = () if product is None else ("--product", product)
    text = fails(capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "out.npz", *on)
    verdict = descend.aclnn.portability("rms_norm_grad", **given)[product or "host"]
    assert verdict.status == 161002
    assert text == f"descend: {verdict.sentence.removesuffix('.')} (ACLNN_ERR_PARAM_INVALID, 161002).\n"
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(("operator", "given", "options"), list(masked_calls()))
def test_two_phases_give_the_results_that_the_functional_call_gives(tmp_path, monkeypatch, operator, given, options):
    tensors.write(tmp_path / "in.npz", given)
    ok("run", operator, tmp_path / "in.npz", "-o", tmp_path / "host.npz", *options)
    monkeypatch.setattr(operators, "functional", None)  # and need none
    expected = tensors.read(tmp_path / "host.npz")
    for product in OPERATORS[operator].products:
        text = ok(
            *("run", operator, tmp_path / "in.npz", "-o", tmp_path / "out.npz"), *options, *("--product", product)
        )
        results = tensors.read(tmp_path / "out.npz")
        assert list(results) == list(expected)
        for name, array in expected.items():
            same(results[name], array)
        for output in OPERATORS[operator].outputs:
            name = output.python.removesuffix("_out")
            assert (name in text) == (name in expected)


def test_results_are_allocated_in_their_own_dtype():
    given = inputs(np.float16, (1 << 10, 1 << 10))
    tracemalloc.start()
    try:
        outputs = operators.allocate(OPERATORS["rms_norm_grad"], given, "host")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * sum(array.nbytes for array in outputs.values())
    for name, array in outputs.items():
        assert array.dtype == (np.float16 if name == "dx" else np.float32)
        assert np.isnan(array).all()


@pytest.mark.parametrize("operator", ["scaled_masked_softmax", "scaled_masked_softmax_backward"])
@pytest.mark.parametrize("options", [(), ("--fix-triu-mask",)])
def test_an_absent_optional_input_is_none(tmp_path, operator, options):
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    y = descend.scaled_masked_softmax(x, None, 1.0, bool(options))
    given = {"x": x} if operator == "scaled_masked_softmax" else {"grad_output": x, "y": y}
    tensors.write(tmp_path / "in.npz", given)
    ok("run", operator, tmp_path / "in.npz", "-o", tmp_path / "out.npy", *options)
    ok("run", operator, tmp_path / "in.npz", "-o", tmp_path / "host.npy", *options, "--product", "host")
    (result,), (expected,) = (tensors.read(tmp_path / name).values() for name in ("out.npy", "host.npy"))
    same(result, expected)
    assert operator != "scaled_masked_softmax" or np.array_equal(result, y)


def test_unsupported_tensors_matter_only_where_they_are_needed(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    given = {name: torch.from_numpy(array) for name, array in inputs().items()}
    file, out = tmp_path / "in.pt", ("-o", tmp_path / "out.npz")
    torch.save(given | {"scale": torch.ones(2).to(torch.float8_e4m3fn)}, file)
    ok("run", "rms_norm_grad", file, *out)
    same(tensors.read(tmp_path / "out.npz")["dx"], descend.rms_norm_grad(**inputs())[0])
    torch.save(given | {"x": given["x"].to_sparse()}, file)
    text = fails(capsys, "run", "rms_norm_grad", file, *out)
    reason = f"{file}: x is a tensor of torch.float32, torch.sparse_coo, on cpu, which is not supported."
    assert text == f"descend: {reason}\n"
    tensors.write(tmp_path / "x.npy", {"x": inputs()["x"]})
    ok("run", "rms_norm_grad", file, f"x={tmp_path}/x.npy", *out)
    assert reason in fails(capsys, "check", file, file)
    tensors.write(tmp_path / "golden.npz", {"dy": inputs()["dy"]})
    ok("check", file, tmp_path / "golden.npz")
    torch.save({"x": torch.rand(1, 1, 4, 4), "mask": torch.ones(4).to("meta")}, file)
    assert "mask is a tensor" in fails(capsys, "run", "scaled_masked_softmax", file, *out)  # given, though optional


def test_outputs_have_names_and_no_dtypes(tmp_path, capsys, monkeypatch):
    tensors.write(tmp_path / "in.npz", inputs())
    monkeypatch.chdir(tmp_path)
    dx, dgamma = descend.rms_norm_grad(**inputs())
    ok("run", "rms_norm_grad", "in.npz", "-o", "dx=o:1.npy", "-o", "dgamma=a:b:c.bin")
    same(next(iter(tensors.read(tmp_path / "o:1.npy").values())), dx)
    same(next(iter(tensors.read(tmp_path / "a:b:c.bin", np.float32).values())), dgamma)
    ok("run", "rms_norm_grad", "in.npz", "-o", "o.npy:1.npz")
    same(tensors.read(tmp_path / "o.npy:1.npz")["dx"], dx)
    monkeypatch.setattr(operators, "functional", None)  # nothing is computed before
    for text in ("dx=o.npy:float16", "dx=o.bin:float16:3x3", "o.npz:float16"):
        name = text.rpartition("=")[2]
        assert fails(capsys, "run", "rms_norm_grad", "in.npz", "-o", text) == (
            f"descend: {name} asks for a dtype, but a result is written in its own: name the file {name[:5]}.\n"
        )


def test_one_file_for_two_results_is_refused(tmp_path, capsys, monkeypatch):
    tensors.write(tmp_path / "in.npz", inputs())
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operators, "functional", None)  # nothing is computed before
    same = f"{tmp_path}/same.npy"
    for a, b in (("same.npy", "same.npy"), ("same.npy", "./same.npy"), (same, "folder/../same.npy")):
        text = fails(capsys, "run", "rms_norm_grad", "in.npz", "-o", f"dx={a}", "-o", f"dgamma={b}")
        assert text == f"descend: {Path(b)} is named twice, and one result would be lost; name a file for each.\n"
    twice = ("-o", "dx=folder/a.npy", "-o", "dgamma=link/a.npy")
    assert "is named twice" in fails(capsys, "run", "rms_norm_grad", "in.npz", *twice)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "in.npz", "link"]


def test_two_tensors_for_one_input_are_refused(tmp_path, capsys):
    given = inputs()
    tensors.write(tmp_path / "in.npz", given)
    tensors.write(tmp_path / "x.npz", {"x": 2 * given["x"]})
    tensors.write(tmp_path / "a.npy", {"x": given["x"]})
    file, x, a, out = tmp_path / "in.npz", tmp_path / "x.npz", tmp_path / "a.npy", tmp_path / "out.npz"

    def sentence(*files):
        return fails(capsys, "run", "rms_norm_grad", *files, "-o", out)

    assert sentence(file, f"x={a}", f"x={x}") == f"descend: x is given twice, the second time in {x}.\n"
    assert sentence(file, x) == f"descend: x is given twice, the second time in {x}.\n"
    assert not out.exists()
    expected, _ = descend.rms_norm_grad(**given | {"x": 2 * given["x"]})
    for files in ((file, f"x={x}"), (f"x={x}", file)):  # what is given by name goes before what a file happens to hold
        ok("run", "rms_norm_grad", *files, "-o", out)
        same(tensors.read(out)["dx"], expected)


def test_an_output_that_cannot_be_written_is_named(tmp_path, capsys, monkeypatch):
    tensors.write(tmp_path / "in.npz", inputs())
    (tmp_path / "dir.npz").mkdir()
    text = fails(capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "dir.npz")
    assert text == f"descend: {tmp_path}/dir.npz cannot be written: Is a directory.\n"
    if Path("/proc").is_dir():
        text = fails(capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "-o", "/proc/z.npz")
        assert text.startswith("descend: /proc/z.npz cannot be written: ")
    monkeypatch.setattr(operators, "functional", None)  # nothing is computed before, nor is the first file written
    monkeypatch.chdir(tmp_path)
    for name, words in (("dir.npz", "a directory"), ("no/o.npz", "not exist"), ("o.txt", "suffix"), ("-", "suffix")):
        assert words in fails(capsys, "run", "rms_norm_grad", "in.npz", "-o", "dx=dx.npy", "-o", f"dgamma={name}")


def test_files_without_tensors(tmp_path, capsys):
    tensors.write(tmp_path / "empty.npz", {})
    tensors.write(tmp_path / "one.npz", {"dx": np.ones(1)})
    empty, one = tmp_path / "empty.npz", tmp_path / "one.npz"
    common = "no name in common."
    assert f"{empty} holds no tensors, and the golden file no tensors: {common}" in fails(capsys, "check", empty, empty)
    assert f"{empty} holds no tensors, and the golden file dx: {common}" in fails(capsys, "check", empty, one)
    out = ("-o", tmp_path / "out.npz")
    assert f"{empty} holds no tensors, and none is called x." in fails(capsys, "run", "rms_norm", f"x={empty}", *out)
    assert "No tensor is given for x, gamma." in fails(capsys, "run", "rms_norm", empty, *out)


@pytest.mark.parametrize(
    ("operator", "options", "name"),
    [
        ("group_norm_swish", ("--num-groups", 10**20), "num_groups"),
        ("layer_norm", ("--normalized-shape", 10**23), "normalized_shape"),
        ("layer_norm", ("--normalized-shape", f"2,-{10**23}"), "normalized_shape"),
    ],
)
def test_integers_beyond_64_bits(tmp_path, capsys, operator, options, name):
    tensors.write(tmp_path / "in.npz", {p.python: np.ones((2, 4), np.float32) for p in OPERATORS[operator].inputs})
    run = ("run", operator, tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    specs = [f"{p.python}=float32:2x4" for p in OPERATORS[operator].inputs]
    for command in (run, (*run, "--product", "atlas-a3"), ("portability", operator, *specs)):
        text = fails(capsys, *command, *options)
        assert text.startswith(f"descend: {operator}")
        assert name in text


def test_repeat_is_bounded(tmp_path, capsys):
    tensors.write(tmp_path / "in.npz", inputs())
    text = fails(
        capsys, "run", "rms_norm_grad", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--repeat", str(10**20)
    )
    assert "--repeat" in text
    assert "OverflowError" not in text


def attribute(kind, default=None):
    return Parameter("aName", "a_name", kind, "attribute", False, default, False, "", "")


def test_attributes_as_the_api_takes_them():
    for text in ("0,128,272", "[0, 128, 272]", "(0,128,272,)"):
        assert attribute_value(attribute("int_array"), text) == (0, 128, 272)
    assert attribute_value(attribute("int_array"), "") == ()
    assert attribute_value(attribute("int_array"), "-3") == (-3,)
    assert attribute_value(attribute("bool_array"), "True, false,1") == (True, False, True)
    assert attribute_value(attribute("int_array"), None) is None
    assert attribute_value(attribute("float"), 0.5) == 0.5
    assert attribute_value(attribute("str"), "TND") == "TND"
    for kind, text in (("int_array", "1,two"), ("bool_array", "true,maybe"), ("int_array", "1.5")):
        with pytest.raises(ValueError, match=r"^--a-name takes a list such as .*, and got '"):
            attribute_value(attribute(kind), text)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda o: o.name)
def test_every_operator_has_a_subcommand_with_its_attributes(operator):
    text = ok("run", operator.name, "--help")
    for parameter in operator.attributes:
        assert "--" + parameter.python.replace("_", "-") in text


def test_lists_have_examples_of_their_kind():
    text = " ".join(ok("run", "layer_norm_backward", "--help").split())
    assert "A list, as in true,true,false." in text[text.index("--output-mask") :]
    assert "A list, as in 0,128,272." in text[text.index("--normalized-shape") : text.index("--output-mask")]


# check


@pytest.fixture
def judged(tmp_path):
    given = inputs()
    golden = dict(zip(("dx", "dgamma"), reference.rms_norm_grad(**given), strict=True))
    good = {name: array.astype(np.float32) for name, array in golden.items()}
    bad = good | {"dx": good["dx"] * np.float32(1.01)}
    for name, content in (("golden", golden), ("good", good), ("bad", bad)):
        tensors.write(tmp_path / f"{name}.npz", content)
    return tmp_path


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
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 120
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()}
    for name in DEMOS:
        assert " pass " in rows[name]
        assert 0 < float(rows[name].split(" pass ")[0].split()[-1]) < 1  # of what the standard allows
    assert "Worked examples of 5 documents" in text
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

    for arguments in (("ops",), ("ops", "--json"), ("--help",), ("explain", "rms_norm")):
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
