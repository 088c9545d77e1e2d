"""``descend check FOLDER``: the calls of a training step that msprobe dumped, each computed anew."""

from __future__ import annotations

import inspect
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import descend
from cli_calls import fails, ok
from descend.cli import dumps
from descend.cli.apis import mindspore, pytorch, torch_npu
from descend.cli.verdicts import Row, worst_first
from msprobe_calls import FAMILIES, layer_norm, nsa_compress, random, rms_norm, scaled_masked_softmax
from msprobe_dumps import bfloat16, call, gradient, write_dump

REAL = Path(__file__).parent / "data" / "msprobe.zip"


def outputs(calls):
    return [array for one in calls.values() for array in one["output"] if array is not None]


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), bfloat16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_each_call_is_computed_anew(tmp_path, capsys, family, dtype):
    if family is nsa_compress and dtype == np.float32:
        pytest.skip("the operator takes 16 bits only")
    calls = family(dtype)
    folder = write_dump(tmp_path / "step0" / "rank0", calls)
    text = ok("check", tmp_path, "--most", "0")
    count = len(outputs(calls))
    assert f"{count} of {count} tensors pass the single benchmark." in text
    assert "Not judged" not in text
    for name, one in calls.items():
        for place, array in enumerate(one["output"]):
            (line,) = [s for s in text.splitlines() if s.startswith(f"step0/rank0/{name}.output.{place} ")] or [""]
            assert ("pass" in line) == (array is not None)
            assert array is None or str(array.dtype) in line
    for file in folder.glob("dump_tensor_data/*.output.*"):  # and a wrong number in each is found
        content = np.load(file)
        content.flat[content.size // 2] = 2 * np.abs(content.flat[content.size // 2]) + 1
        np.save(file, content)
    text = fails(capsys, "check", tmp_path, status=1)
    assert f"0 of {count} tensors pass" in text


def test_what_the_original_does_not_write_is_not_judged(tmp_path):
    x, gamma = random(6, 24), random(24)
    y, mean, rstd, _ = descend.add_layer_norm(x, x, gamma, gamma)
    loss, log_prob, *_ = descend.cross_entropy_loss(x, np.zeros(6, np.int64))
    results = [y, mean.reshape(6, 1), rstd.reshape(6, 1), np.full_like(x, np.nan)]
    calls = {
        "NPU.npu_add_layer_norm.0.forward": call([x, x, gamma, gamma], results),
        "NPU.npu_cross_entropy_loss.0.forward": call(
            [x, np.zeros(6, np.int64)], [loss, log_prob, np.empty(0, np.float32), np.empty(0, np.float32)]
        ),
    }
    write_dump(tmp_path, calls)
    assert "5 of 5 tensors pass" in ok("check", tmp_path)


def test_calls_that_no_operator_computes_are_left_out(tmp_path):
    x, dy = random(2, 8), random(2, 8, seed=1)
    half = np.full((1, 8), 0.5, np.float32)
    turned = descend.rotary_position_embedding(x, half, half)
    write_dump(
        tmp_path,
        {
            "Functional.cross_entropy.0.forward": call([x, np.abs(x)], [np.asarray(x[0, 0])]),
            "NPU.npu_rotary_mul.0.forward": call([x, half, half], [turned], rotary_mode="half"),
            "NPU.npu_rotary_mul.1.forward": call([x, half, half, "half", np.eye(8, dtype=np.float32)], [x]),
            "NPU.npu_rotary_mul.1.backward": gradient([dy], [dy, half, half]),
        },
    )
    text = " ".join(ok("check", tmp_path).split())
    assert "2 of 2 tensors pass" in text
    assert "because its targets are probabilities: 1 Functional.cross_entropy." in text
    assert "because torch_npu does not differentiate the call with a matrix: 1 NPU.npu_rotary_mul backward." in text


def test_gelu_is_of_the_form_that_the_standard_says_is_nearer(tmp_path):
    """The form by erf is nearer to the sum of these results, and has another second one."""
    x = np.array([2.5, -4.0], bfloat16)
    write_dump(tmp_path, {"Functional.gelu.0.forward": call([x], [descend.gelu_v2(x, 1)])})
    assert "1 of 1 tensors pass" in ok("check", tmp_path)
    large = np.full(2, 6e4, np.float16)
    steep = np.array([1.5, -3.0], np.float16)
    d_tanh = descend.gelu_backward_v2(large, steep, "tanh")
    assert np.isinf(d_tanh).any()
    calls = {
        "Functional.gelu.0.forward": call([steep], [descend.gelu_v2(steep, 1)]),
        "Functional.gelu.0.backward": gradient([large], [d_tanh]),
    }
    write_dump(tmp_path / "overflow", calls)
    assert "2 of 2 tensors pass" in ok("check", tmp_path / "overflow")


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_converts_its_input_first(tmp_path, name):
    x, dy = random(3, 40) + np.float32(30), random(3, 40, dtype=np.float16, seed=1)
    compute = getattr(descend, name)
    narrow, rounded = compute(x.astype(np.float16), -1), compute(x.astype(bfloat16), -1)
    wide = compute(x.astype(np.float16), -1, out=np.empty_like(x))
    calls = {
        f"Functional.{name}.0.forward": call([x, -1], [narrow], dtype="torch.float16"),
        f"Functional.{name}.0.backward": gradient([dy], [x]),
        f"Tensor.{name}.0.forward": call([x, -1, "torch.bfloat16"], [rounded]),
        f"Torch.{name}.0.forward": call([x.astype(np.float16), -1], [wide], dtype="torch.float32"),
        f"Torch.{name}.1.forward": call([x.astype(np.float16), -1], [narrow], dtype="another"),
    }
    write_dump(tmp_path, calls)
    text = " ".join(ok("check", tmp_path).split())
    assert "4 of 4 tensors pass" in text
    assert f"a narrower dtype than its input's, which its gradient has: 1 Functional.{name} backward." in text
    prefixes = ["Functional", "Mint"] if name == "softmax" else ["Mint"]  # ops.log_softmax has no dtype
    calls = {f"{prefix}.{name}.0.forward": call([x, -1], [narrow], dtype="Float16") for prefix in prefixes}
    write_dump(tmp_path / "mindspore", calls, "mindspore")
    assert f"{len(calls)} of {len(calls)} tensors pass" in ok("check", tmp_path / "mindspore")


@pytest.mark.parametrize(
    ("name", "one", "sentence"),
    [
        ("Functional.cross_entropy", ([random(2, 8), np.zeros(2, np.int64)], {"reduction": "avg"}), "mean, sum"),
        ("Functional.gelu", ([random(8)], {"approximate": "erf"}), "approximate is 'erf', but it must be none or tanh"),
        ("NPU.npu_gelu_backward", ([random(8), random(8)], {"approximate": "erf"}), "it must be none or tanh"),
        ("NPU.npu_rotary_mul", ([random(1, 8)] * 3, {"rotary_mode": "full"}), "it must be half or interleave or"),
        ("NPU.npu_swiglu", ([random(8)], {"dim": 1}), "cannot be cut into halves along dimension 1"),
        ("NPU.npu_scaled_masked_softmax", ([random(8), None, 1, True], {}), "a matrix has a diagonal"),
        (
            "NPU.npu_apply_adam_w",
            ([0.9, 0.9, 0.1, 0.1, 2, 0.9, 0, random(8), None, None, None], {"out": [random(8)] * 3}),
            "beta1 is 2, but a number that is at least 0 and below 1 is needed",
        ),
        (  # ones for so many channels would take all memory
            "Torch.native_group_norm_backward",
            ([random(2, 6, 4)] * 2 + [random(2, 2)] * 2 + [None, 2, 10**10, 4, 2, [True] * 3], {}),
            "cannot reshape",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)  # fmt: skip
def test_arguments_that_no_call_has(tmp_path, capsys, name, one, sentence):
    given, named = one
    write_dump(tmp_path, {f"{name}.0.forward": call(given, [random(8)], **named)})
    assert sentence in " ".join(fails(capsys, "check", tmp_path, status=1).split())


@pytest.mark.parametrize("other", ["abc", 3, True, [], [{"data_name": "x"}]])
def test_a_result_that_is_no_tensor(tmp_path, capsys, other):
    x = random(2, 8)
    process = write_dump(
        tmp_path, {f"Functional.softmax.{i}.forward": call([x, -1], [descend.softmax(x)]) for i in (0, 1)}
    )
    rewrite(process, lambda content: content["data"]["Functional.softmax.1.forward"]["output"].insert(0, other))
    text = " ".join(fails(capsys, "check", tmp_path, status=1).split())
    assert "1 of 3 tensors pass" in text
    assert "FAIL: the operator gives a tensor here, and dump.json has none" in text


def test_a_folder_called_proc_hides_no_process(tmp_path):
    x = random(2, 8)
    for place in ("proc", "proc7"):
        write_dump(tmp_path / place, {"Functional.softmax.0.forward": call([x, -1], [descend.softmax(x)])})
    assert "2 of 2 tensors pass" in ok("check", tmp_path)


def test_the_tests_call_every_function():
    called = {name.rsplit(".", 2)[0].removesuffix(".default") for family in FAMILIES for name in family(bfloat16)}
    names = {name.rpartition(".")[2] for name in called}
    assert names == {*torch_npu.FUNCTIONS, *pytorch.FUNCTIONS, *(n.rpartition(".")[2] for n in pytorch.OF_PREFIXES)}
    assert set(pytorch.OF_PREFIXES) <= called


OF_MINDSPEED = "npu_rotary_position_embedding"


@pytest.mark.parametrize("name", sorted({*torch_npu.FUNCTIONS} - {OF_MINDSPEED}))
def test_parameters_are_those_of_torch_npu(name):
    theirs = pytest.importorskip("descend.torch_npu")
    signature = bare(getattr(theirs, name)).replace("grad_input_mask,", "grad_input_mask=(True, True, True),")
    assert bare(torch_npu.FUNCTIONS[name].forward).replace("scale=1.0,", "scale=1,") == signature


def bare(function):
    """A function's parameters without types."""
    parameters = inspect.signature(function).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


@pytest.mark.parametrize("name", pytorch.FUNCTIONS)
def test_parameters_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    schema = torch._C._jit_get_schemas_for_operator(f"aten::{name}")[0]
    own = list(inspect.signature(pytorch.FUNCTIONS[name].forward).parameters.values())
    names = [p.name for p in own][: len(schema.arguments)]
    if name in ("softmax", "log_softmax"):  # Python's functions call it input
        names[0] = "self"
    assert [argument.name for argument in schema.arguments] == names
    for argument, parameter in zip(schema.arguments, own, strict=False):
        if argument.has_default_value():
            assert argument.default_value == parameter.default


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])
def test_parameters_are_those_of_torch_nn_functional(name):
    functional = pytest.importorskip("torch.nn.functional")
    assert bare(pytorch.OF_PREFIXES[f"Functional.{name}"].forward) == bare(getattr(functional, name))


def test_a_dump_of_the_real_msprobe(tmp_path):
    pytest.importorskip("torch")
    zipfile.ZipFile(REAL).extractall(tmp_path)
    text = ok("check", tmp_path, "--most", "0")
    assert "140 of 140 tensors pass the single benchmark." in text
    calls = [line.split(".output.")[0].split("/")[-1] for line in text.splitlines() if line.startswith("step")]
    assert sum("backward" in name for name in calls) == 62
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in calls} == {
        *(f"Functional.{name}" for name in ("layer_norm", "group_norm", "gelu", "cross_entropy")),
        *("Torch.layer_norm", "Torch.native_layer_norm", "Torch.native_group_norm"),
        *(f"{kind}.{name}" for kind in ("Functional", "Torch", "Tensor") for name in ("softmax", "log_softmax")),
        *(f"NPU.npu_{name}" for name in ("rms_norm", "add_rms_norm", "group_norm_swish", "group_norm_silu")),
        *(f"NPU.npu_{name}" for name in ("scaled_masked_softmax", "swiglu", "rotary_mul", "gelu")),
        *(f"NPU.npu_{name}" for name in ("cross_entropy_loss", "apply_adam_w")),
    }
    assert sum(" bfloat16 " in line and "100.00%" in line for line in text.splitlines()) > 60
    for words in ("62 Tensor.__mul__,", "6 Module LayerNorm.", "2 NPU.npu_group_norm_silu backward."):
        assert words in " ".join(text.split())


@pytest.fixture
def step(tmp_path):
    """Two steps of two ranks."""
    for place in ("step0/rank0", "step0/rank1", "step2/rank0"):
        write_dump(tmp_path / "dump" / place, rms_norm(np.float32))
    return tmp_path / "dump"


def spoil(process, name, spoiled):
    """Changes the tensor of a call in a dump."""
    file = process / "dump_tensor_data" / f"{name}.npy"
    np.save(file, spoiled(np.load(file)))


def lines(text):
    """The table's lines by tensor."""
    return {line.split()[0]: line for line in text.splitlines() if " FAIL" in line or " pass " in line}


def test_all_steps_and_ranks_are_judged_worst_first(step, capsys):
    spoil(step / "step0/rank1", "NPU.npu_rms_norm.0.forward.output.0", lambda y: y * np.float32(1.01))
    spoil(step / "step2/rank0", "NPU.npu_rms_norm.0.backward.output.1", lambda y: y * np.float32(1.5))
    text = fails(capsys, "check", step, "--most", "3", status=1)
    assert list(lines(text))[:2] == [
        "step2/rank0/NPU.npu_rms_norm.0.backward.output.1",
        "step0/rank1/NPU.npu_rms_norm.0.forward.output.0",
    ]
    assert "51 better ones are not shown; --most 0 prints all." in text
    assert "52 of 54 tensors pass the single benchmark." in text
    assert "18 of 18 tensors pass" in ok("check", step / "step0" / "rank0")


def test_a_gradient_is_of_the_statistics_that_were_dumped(step, capsys):
    spoil(step / "step0/rank0", "NPU.npu_rms_norm.0.forward.output.1", lambda rstd: rstd * 2)
    spoil(step / "step0/rank0", "Torch._fused_rms_norm.0.forward.output.1", lambda rstd: rstd * 2)
    table = lines(fails(capsys, "check", step / "step0/rank0", "--most", "0", status=1))
    assert {name for name, line in table.items() if "FAIL" in line} == {
        "NPU.npu_rms_norm.0.forward.output.1",
        "NPU.npu_rms_norm.0.backward.output.0",
        "NPU.npu_rms_norm.0.backward.output.1",
        "Torch._fused_rms_norm.0.forward.output.1",
        "Torch._fused_rms_norm.0.backward.output.0",
    }


def test_what_is_wrong_with_one_tensor_does_not_stop_the_rest(step, capsys):
    process = step / "step0" / "rank0"
    folder = process / "dump_tensor_data"
    (folder / "NPU.npu_rms_norm.0.forward.output.0.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (folder / "NPU.npu_rms_norm.1.forward.output.0.npy").unlink()
    (folder / "NPU.npu_rms_norm.1.backward.input.0.npy").write_bytes(b"")
    spoil(process, "Functional.rms_norm.0.forward.input.0", lambda x: x[..., 1:])
    spoil(process, "Functional.rms_norm.0.forward.output.0", lambda y: y[1:])
    spoil(process, "NPU.npu_rms_norm_backward.0.forward.output.0", lambda dx: dx[1:])
    spoil(process, "NPU.npu_rms_norm_backward.0.forward.output.1", lambda dx: dx.astype(np.int32))
    spoil(process, "Torch._fused_rms_norm.0.forward.input.0", lambda x: x + 1j)
    spoil(process, "Torch._fused_rms_norm.1.forward.output.0", lambda y: np.where(y > 1, np.nan, y))
    (step / "step2" / "rank0" / "dump.json").write_text('{"task": "tensor", "data": {"cut')
    text = " ".join(fails(capsys, "check", step, "--most", "0", status=1).split())
    for name, sentence in {
        "NPU.npu_rms_norm.0.forward.output.0": "is not a readable .npy file",
        "NPU.npu_rms_norm.1.forward.output.0": "NPU.npu_rms_norm.1.forward.output.0.npy does not exist.",
        "NPU.npu_rms_norm.1.backward.output.1": "NPU.npu_rms_norm.1.backward.input.0.npy is not a readable .npy file",
        "Functional.rms_norm.0.forward.output.0": "it cannot be computed from its arguments: ",
        "NPU.npu_rms_norm_backward.0.forward.output.0": "has shape [3, 3, 24], but its golden value",
        "NPU.npu_rms_norm_backward.0.forward.output.1": "FAIL",
        "Torch._fused_rms_norm.0.forward.output.1": "holds complex numbers.",
        "Torch._fused_rms_norm.1.forward.output.0": "infinite or NaN, not the same on both sides",
    }.items():
        row = text[text.index(f"step0/rank0/{name} ") :].split("step0/rank")[1]
        assert "FAIL" in row, name
        assert sentence in text[text.index(f"step0/rank0/{name} ") :][:900], name
    assert "step2/rank0/dump.json FAIL: " in text
    assert f"{step}/step2/rank0/dump.json cannot be read (" in text
    assert "25 of 37 tensors pass" in text


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"data": []}', '{"data": {"NPU.npu_rms_norm.0.forward": 3}}',
     '{"data": {"NPU.npu_rms_norm.0.forward": {"input_args": [3, null], "output": [{"data_name": 7, "shape": 1}]}}}',
     '{"data": {"NPU.npu_rms_norm.0.forward": {"input_args": [{"shape": [1], "data_name": "no"}, {"value": {}}], '
     '"input_kwargs": null, "output": [{"data_name": "../dump.json", "dtype": 1}]}}}'],
)  # fmt: skip
def test_descriptions_that_are_none(tmp_path, capsys, content):
    (tmp_path / "dump.json").write_text(content)
    assert "0 of 1 tensors pass" in fails(capsys, "check", tmp_path, status=1)


def test_what_is_not_judged_is_counted(tmp_path):
    x, y = random(4, 24), random(4, 24)
    calls = rms_norm(np.float32)
    forward = dict(calls["NPU.npu_rms_norm.0.forward"])
    described = call([x, np.ones(24, np.float32)], [y])
    write_dump(
        tmp_path / "rank0",
        {
            "NPU.npu_rms_norm.0.forward": forward,
            "NPU.npu_rms_norm.1.forward": {"output": forward["output"]},
            "NPU.npu_rms_norm.2.forward": {"input_args": forward["input_args"], "input_kwargs": {}},
            "NPU.npu_rms_norm.4.backward": calls["NPU.npu_rms_norm.0.backward"],
            "Functional.rms_norm.0.forward": calls["Functional.rms_norm.0.forward"],
            "Functional.rms_norm.0.backward": gradient([x], [x]),
            "Functional.linear.0.forward": described,
            "Functional.linear.1.forward": described,
            "Functional.linear.1.backward": described,
            "layer_norm.0.forward": described,
            "Tensor.layer_norm.0.forward": described,
            "Module.layers.0.norm.LlamaRMSNorm.forward.0": described,
            "Module.layers.0.norm.LlamaRMSNorm.parameters_grad.0": {"weight": [x]},
            "Module.layers.0.proj.Linear.backward.12": described,
            "Cell.<b>.Dense.forward.0": described,
        },
    )
    text = " ".join(ok("check", tmp_path).split())
    assert "3 of 3 tensors pass" in text
    others = "1 Cell Dense, 1 Functional.linear backward, 1 Module Linear, 1 Tensor.layer_norm, 1 layer_norm.0.forward."
    for sentence in (
        f"Not judged, because descend check cannot compute them: 2 Functional.linear, {others}",
        "Not judged, because a module's dump has no epsilon; with level L1 or mix the function that it calls is "
        "dumped: 2 Module LlamaRMSNorm.",
        "Not judged, because its arguments were not dumped: 1 NPU.npu_rms_norm, 1 NPU.npu_rms_norm backward.",
        "Not judged, because its results were not dumped: 1 NPU.npu_rms_norm.",
        "msprobe then dumps the gradients of the last one: 1 Functional.rms_norm backward.",
    ):
        assert sentence in text


def rewrite(process, change):
    """Changes what dump.json says."""
    file = process / "dump.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_calls_whose_tensors_were_not_dumped(step, tmp_path, capsys):
    process = step / "step0" / "rank0"

    def no_tensors(content):
        content["task"] = "statistics"
        for one in content["data"].values():
            for described in [*one.get("input_args", one.get("input", [])), *one["output"]]:
                if isinstance(described, dict):
                    described.pop("data_name", None)

    rewrite(process, no_tensors)
    assert fails(capsys, "check", process) == (
        f'descend: {process} has statistics only, and no tensors: dump with "task": "tensor" in '
        "msprobe's configuration.\n"
    )
    assert "36 of 36 tensors pass" in ok("check", step)
    other = tmp_path / "other" / "rank0"
    write_dump(other, {"Functional.linear.0.forward": call([random(2, 2)], [random(2, 2)])})
    assert fails(capsys, "check", other) == (
        f"descend: {other} has no call that Descend can judge. Not judged, because descend check cannot compute "
        "them: 1 Functional.linear.\n"
    )


def test_parts_of_tensors_are_not_judged(step, capsys):
    process = step / "step0" / "rank0"

    def shard(content):
        described = content["data"]["Functional.rms_norm.0.forward"]["input_args"][0]
        described |= {"type": "torch.distributed.tensor.DTensor", "placements": [{"Shard": {"dim": 1}}]}
        whole = content["data"]["NPU.npu_rms_norm.0.forward"]["input_args"][0]
        whole |= {"type": "torch.distributed.tensor.DTensor", "placements": [{"Replicate": {}}]}

    rewrite(process, shard)
    text = " ".join(ok("check", process).split())
    assert "because its tensors are parts of larger ones (DTensor): 1 Functional.rms_norm." in text
    assert "17 of 17 tensors pass" in text


def test_a_second_result_with_a_gradient_is_not_judged(step):
    process = step / "step0" / "rank0"
    name = "NPU.npu_rms_norm.0.backward"

    def more(content):
        content["data"][name]["input"] *= 2

    rewrite(process, more)
    text = " ".join(ok("check", process).split())
    assert (
        "because it got gradients of results that Descend does not differentiate: 1 NPU.npu_rms_norm backward." in text
    )


def test_gradients_of_another_function_are_not_judged(step):
    process = step / "step0" / "rank0"
    rewrite(process, lambda content: content["data"]["NPU.npu_rms_norm.0.backward"]["output"].append(None))
    text = " ".join(ok("check", process).split())
    assert "because the operator has 2 gradients, and the dump 3: 1 NPU.npu_rms_norm backward." in text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_nothing_waits_for_a_pipe(step, capsys):
    process = step / "step0" / "rank0"
    file = process / "dump_tensor_data" / "NPU.npu_rms_norm.0.forward.output.0.npy"
    file.unlink()
    os.mkfifo(file)
    (step / "step2/rank0/dump.json").unlink()
    os.mkfifo(step / "step2/rank0/dump.json")
    text = " ".join(fails(capsys, "check", step, status=1).split())
    assert "forward.output.0.npy is no regular file." in text
    assert "step2/rank0/dump.json is no regular file." in text
    assert "35 of 37 tensors pass" in text


def test_mindspore(tmp_path):
    x, gamma, beta = random(4, 24, dtype=bfloat16), random(24, dtype=bfloat16), random(24, dtype=bfloat16, seed=1)
    y = [descend.layer_norm(x, (24,), gamma, beta)[0]]
    calls = {
        "Functional.rms_norm.0.forward": call([x, gamma], list(descend.rms_norm(x, gamma))),
        "Functional.layer_norm.0.forward": call([x, [24], gamma, beta, 1e-5], y),
        "Mint.layer_norm.0.forward": call([x, [24]], y, weight=gamma, bias=beta),
        "MintFunctional.layer_norm.0.forward": call([x, [24], gamma, beta], y),
        "MintFunctional.layer_norm.0.backward": gradient([x], [x]),
        "Primitive.norm.LayerNorm.0.forward": call([x], y),
    }
    write_dump(tmp_path / "step0" / "proc77", calls, "mindspore")
    text = ok("check", tmp_path)
    assert "5 of 5 tensors pass" in text
    assert sum("100.00%" in line and line.startswith("step0/proc/") for line in text.splitlines()) == 4
    assert "the order of MindSpore's gradients is not known: 1 MintFunctional.layer_norm backward." in " ".join(
        text.split()
    )


def test_more_of_mindspore(tmp_path):
    x, classes = random(4, 24), np.array([3, 0, 23, -100])
    cos, sin = random(1, 24, seed=1), random(1, 24, seed=2)
    softmax, log_softmax = descend.softmax(x, -1), descend.log_softmax(x, -1)
    loss = np.asarray(descend.cross_entropy_loss(x, classes, label_smoothing=0.1)[0][0])
    groups = descend.group_norm(x, None, None, 4, 24, 1, 3)[0]
    calls = {
        "Functional.softmax.0.forward": call([x], [softmax]),
        "Functional.log_softmax.0.forward": call([x], [log_softmax], axis=1),
        "Functional.gelu.0.forward": call([x, "tanh"], [descend.gelu_v2(x, 1)]),
        "Functional.group_norm.0.forward": call([x, 3], [groups]),
        "Functional.cross_entropy.0.forward": call([x, classes, None, -100, "mean", 0.1], [loss]),
        "Functional.rotary_position_embedding.0.forward": call(
            [x, cos, sin, 1], [descend.rotary_position_embedding(x, cos, sin, 1)]
        ),
        "Mint.softmax.0.forward": call([x, 1], [softmax]),
        "Mint.gelu.0.forward": call([x], [descend.gelu_v2(x)], approximate="none"),
        "MintFunctional.log_softmax.0.forward": call([x], [log_softmax]),
        "MintFunctional.group_norm.0.forward": call([x, 3, None, None, 1e-5], [groups]),
    }
    write_dump(tmp_path, calls, "mindspore")
    assert "10 of 10 tensors pass" in ok("check", tmp_path)
    assert {name.rsplit(".", 2)[0] for name in calls} <= set(mindspore.FUNCTIONS)


def test_pytorchs_functions_run_by_mindspore(tmp_path):
    write_dump(tmp_path, scaled_masked_softmax(np.float32) | layer_norm(np.float32), "mindtorch")
    text = " ".join(ok("check", tmp_path).split())
    assert "16 of 16 tensors pass" in text
    assert (
        "because the order of MindSpore's gradients is not known: 2 Functional.layer_norm backward, "
        "2 Torch.native_layer_norm backward, 1 NPU.npu_scaled_masked_softmax backward." in text
    )


def test_a_third_party_is_judged_by_its_own_inputs(step, tmp_path, capsys):
    other = tmp_path / "other"
    for place in ("step0/rank0", "step0/rank1", "step2/rank0"):
        calls = rms_norm(np.float32)
        del calls["Functional.rms_norm.0.forward"]
        write_dump(other / place, calls)
    assert "3 better" not in ok("check", step / "step0", "--third-party", step / "step0", "--most", "0")
    text = fails(capsys, "check", step, "--third-party", other, "--level", "L1", "--most", "0", status=1)
    text = " ".join(text.split())
    assert "51 of 54 tensors pass the double benchmark at L1." in text
    assert text.count("third party: it is missing") == 3
    for place in ("step0/rank0", "step0/rank1", "step2/rank0"):  # twice as large inputs have twice as large results
        process = other / place
        for name in ("forward.input.1", "forward.output.0"):
            spoil(process, f"NPU.npu_rms_norm.0.{name}", lambda values: values * 2)
    table = lines(fails(capsys, "check", step, "--third-party", other, "--most", "0", status=1))
    row = table["step0/rank0/NPU.npu_rms_norm.0.forward.output.0"]
    assert "pass" in row
    assert [float(ratio) for ratio in row.split()[-4:-1]] == pytest.approx([1, 1, 0.5], rel=0.05)


def test_failures_come_first_whatever_their_errors_are():
    rows = [Row("a", "", "", True, share=0.9), Row("b", "", "", False, share=0.5), Row("c", "", "", False)]
    assert [row.name for row in worst_first(rows)] == ["c", "b", "a"]


def test_folders_that_are_no_dumps(tmp_path, capsys):
    (tmp_path / "x.npy").touch()
    assert "has no dump.json, in which msprobe describes" in fails(capsys, "check", tmp_path)
    assert f"name a file with its golden results, too: descend check {tmp_path}/x.npy GOLDEN." in fails(
        capsys, "check", tmp_path / "x.npy"
    )
    assert f"{tmp_path}/no does not exist" in fails(capsys, "check", tmp_path / "no")


def test_links_in_circles_end_and_unreadable_folders_are_named(step, capsys, monkeypatch):
    (step / "step0" / "again").symlink_to(step)
    assert "54 of 54 tensors" in ok("check", step)
    (step / "locked").mkdir()
    walk = os.walk

    def refuse(top, onerror=None):
        for place in walk(top, onerror=onerror):
            if place[0].endswith("locked"):
                onerror(PermissionError(13, "Permission denied", place[0]))
            else:
                yield place

    monkeypatch.setattr(dumps.os, "walk", refuse)
    text = fails(capsys, "check", step, status=1)
    assert "locked FAIL: Permission denied" in " ".join(text.split())
    assert "54 of 55 tensors" in text
    assert "locked cannot be read: Permission denied." in fails(capsys, "check", step, step)
