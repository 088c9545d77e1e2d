"""Programs on device npu: their losses are those on the CPU, and what PyTorch offers around them works."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_npu")

import torch_npu  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

OPTIMIZERS = [
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32, 10))


def losses(device: str, optimizer: Callable[..., Any], layout: torch.memory_format = torch.contiguous_format) -> Any:
    module = network().to(device, memory_format=layout)
    steps, random, found = optimizer(module.parameters()), torch.Generator().manual_seed(1), []
    for _ in range(3):
        x = torch.randn(4, 3, 12, 12, generator=random).to(device)
        y = torch.randint(0, 10, (4,), generator=random).to(device)
        steps.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        steps.step()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    made = getattr(torch.optim, name)
    for form in ({}, {"foreach": True}, {"fused": True}):
        try:
            here = losses("cpu", lambda p, form=form: made(p, lr=1e-2, **form))
        except (TypeError, RuntimeError):
            continue  # there is no such form on the CPU
        there = losses("npu", lambda p, form=form: made(p, lr=1e-2, **form))
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


def test_channels_last():
    runs = [losses(d, torch.optim.SGD, torch.channels_last) for d in ("cpu", "npu")]
    torch.testing.assert_close(*runs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_llama_of_transformers(attention):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        vocab_size=100, num_key_value_heads=2, attn_implementation=attention, max_position_embeddings=32, **sizes
    )
    found = {}
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).to(device)
        optimizer, random = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.Generator().manual_seed(1)
        found[device] = []
        for _ in range(4):
            tokens = torch.randint(0, 100, (2, 16), generator=random).to(device)
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            found[device].append(loss.item())
    torch.testing.assert_close(torch.tensor(found["npu"]), torch.tensor(found["cpu"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    here = kind(4, 6, num_layers=2, batch_first=True, bidirectional=True)
    there, x = copy.deepcopy(here).npu(), torch.randn(3, 5, 4)
    for pack in (False, True):
        given = []
        for layer, data in ((here, x), (there, x.npu())):
            layer.zero_grad()
            data = nn.utils.rnn.pack_padded_sequence(data, [5, 3, 2], batch_first=True) if pack else data
            result = layer(data)[0]
            result = nn.utils.rnn.pad_packed_sequence(result, batch_first=True)[0] if pack else result
            result.square().sum().backward()
            given.append((result.cpu(), layer.weight_hh_l0.grad.cpu(), layer.bias_ih_l1.grad.cpu()))
        for a, b in zip(*given, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_scaled_gradients(dtype):
    module, scaler = network().npu(), torch.amp.GradScaler("npu")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module[0].weight.detach().clone()
    with torch.autocast("npu", dtype=dtype):
        result = module(torch.randn(4, 3, 12, 12).npu())
        assert result.dtype is dtype
        loss = nn.functional.cross_entropy(result, torch.zeros(4, dtype=torch.int64, device="npu"))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, module[0].weight)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_random_numbers(reentrant):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).npu()
    x, found = torch.randn(3, 4).npu().requires_grad_(), []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=reentrant)):
        torch.npu.manual_seed(1)
        found += torch.autograd.grad(run(x).sum(), x) if run is module or not reentrant else [_grad(run(x), x)]
    assert torch.equal(*found)


def _grad(y: Tensor, x: Tensor) -> Tensor:
    y.sum().backward()
    return x.grad


def test_saved_copied_and_pickled_tensors():
    state = network().npu().state_dict()
    for where, device in ((None, "npu"), ("cpu", "cpu")):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert all(t.device.type == device and torch.equal(t.cpu(), state[n].cpu()) for n, t in loaded.items())
    file = io.BytesIO()
    torch.save(network().state_dict(), file)
    file.seek(0)
    assert torch.load(file, map_location="npu")["0.weight"].device.type == "npu"
    x = torch.arange(3.0, device="npu")
    assert pickle.loads(pickle.dumps(x)).tolist() == copy.deepcopy(x).tolist() == [0, 1, 2]
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(12)
    assert x.fill_(2).sum().item() == 6


def test_streams_and_events_around_the_work():
    stream, begin, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x, gamma = torch.randn(512, 1024).npu(), torch.ones(1024, device="npu")
    with torch.npu.stream(stream):
        begin.record()
        y = torch_npu.npu_rms_norm(x, gamma)[0]  # in torch_npu's queue when the next line begins
        z = y + 1
        end.record()
    torch.npu.current_stream().wait_stream(stream)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    wanted = nn.functional.rms_norm(x.cpu(), (1024,), eps=1e-6) + 1
    torch.testing.assert_close(z.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_pinned_memory():
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert pinned.npu(non_blocking=True).tolist() == [1, 1, 1]


def test_threads_and_hooks():
    found: list[float] = []

    def work() -> None:
        for _ in range(50):
            found.append((torch.ones(10, 10, device="npu") @ torch.ones(10, 10, device="npu")).sum().item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [1000.0] * 200
    seen: list[Tensor] = []
    x = torch.ones(3, device="npu", requires_grad=True)
    x.register_hook(seen.append)
    (x * 2).sum().backward()
    assert seen[0].tolist() == [2, 2, 2]


def test_operators_of_torch_npu_reach_what_computes_them():
    x, gamma = torch.randn(4, 8), torch.randn(8)
    there = [t.npu().requires_grad_() for t in (x, gamma)]
    here = [t.double().requires_grad_() for t in (x, gamma)]
    given = torch.randn(4, 8)
    torch_npu.npu_rms_norm(*there)[0].backward(given.npu())
    nn.functional.rms_norm(here[0], (8,), here[1], eps=1e-6).backward(given.double())
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=1e-4, atol=1e-5)
    z = torch_npu.npu_swiglu(there[0], dim=-1)
    torch.testing.assert_close(z.detach().cpu(), nn.functional.silu(x[:, :4]) * x[:, 4:], rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(z.sum(), there[0])
    assert grad.shape == x.shape


def test_trainer_and_accelerate_find_the_device(tmp_path):
    transformers, accelerate = pytest.importorskip("transformers"), pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    data = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
    model = transformers.LlamaForCausalLM(config)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no"
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    assert trainer.args.device.type == model.device.type == "npu"
    assert 0 < trainer.train().training_loss < 10
    accelerator = accelerate.Accelerator()
    assert accelerator.device.type == "npu"
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer, optimizer = accelerator.prepare(layer, optimizer)
    before = layer.weight.detach().clone()
    accelerator.backward(layer(torch.ones(2, 4, device="npu")).sum())
    optimizer.step()
    assert not torch.equal(before, layer.weight)


def test_the_example_of_the_readme():
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "descend.cli", "npu", "examples/train_npu.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^step \d+: loss ([\d.]+) on npu:0$", done.stdout, re.MULTILINE)
    printed = re.findall(r"^step \d+: loss ([\d.]+) on npu:0$", (root / "README.md").read_text(), re.MULTILINE)
    assert len(printed) == 3
    assert [float(loss) for loss in found] == pytest.approx([float(loss) for loss in printed], rel=0.02)
