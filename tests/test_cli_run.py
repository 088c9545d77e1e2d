"""``descend run``: an operator on tensors from files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import descend
from cli_calls import fails, inputs, ok, same
from descend import precision, reference, tensors
from descend.cli import operators
from descend.cli.run import attribute_value
from descend.contract import OPERATORS, PRODUCTS, Parameter

bfloat16 = np.dtype(ml_dtypes.bfloat16)


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
    assert "holds one tensor, and there are 2 results (dx, dgamma)." in sentence(file, "-o", tmp_path / "out.npy")
    assert f"a file for each, as in -o dx={tmp_path}/out.npy" in sentence(file, "-o", tmp_path / "out.npy")
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


def test_an_attribute_among_the_tensors(tmp_path, capsys):
    text = fails(capsys, "run", "swi_glu", "x=x.npy", "dim=0", "-o", tmp_path / "y.npy")
    assert text == "descend: dim of swi_glu is no tensor: give --dim 0.\n"
    text = fails(capsys, "run", "softmax_backward", "dim=-1", "-o", tmp_path / "y.npy")
    assert text == "descend: dim of softmax_backward is no tensor: give --dim -1.\n"
    text = fails(capsys, "run", "group_norm_swish", "activate_swish=no", "--num-groups", "2", "-o", tmp_path / "y.npz")
    option = "--activate-swish or --no-activate-swish"
    assert text == f"descend: activate_swish of group_norm_swish is no tensor: give {option}.\n"


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


@pytest.mark.skipif(not shutil.which("unshare"), reason="a small disk cannot be mounted here")
@pytest.mark.parametrize("name", ["npz", "npy", "bin", "safetensors", "pt", "html"])
def test_outputs_on_a_full_disk(name, tmp_path):
    """One sentence, no part of a file is left, and what the file held before is."""
    if name == "pt":
        pytest.importorskip("torch")
    if name == "html":
        pytest.importorskip("matplotlib")
    tensors.write(tmp_path / "in.npz", inputs(shape=(64, 256)))
    disk = tmp_path / "disk"
    disk.mkdir()
    target = disk / f"out.{name}"
    command = ["run", "rms_norm_grad", tmp_path / "in.npz", "-o", f"dx={target}"]
    if name == "html":
        command = ["check", tmp_path / "in.npz", tmp_path / "in.npz", "--html", target]
    script = """
        mount -t tmpfs -o size=16k none "$0" || exit 77
        target=$1
        shift
        printf old >"$target"
        "$@"
        status=$?
        ls -A "$0"
        cat "$target"
        exit $status"""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    words = ["unshare", "-rm", "sh", "-c", script, disk, target, sys.executable, "-m", "descend.cli", *command]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("a small disk cannot be mounted here")
    assert done.returncode == 2
    assert done.stderr.startswith(f"descend: {target} cannot be written: ")
    assert re.search("No space left on device|full disk", done.stderr)
    assert done.stderr.count("\n") == 1
    assert done.stdout.endswith(f"out.{name}\nold")
    assert ".part" not in done.stdout
