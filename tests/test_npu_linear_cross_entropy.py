"""The cross entropy of a linear layer whose vocabulary is shared: against float64, also over two processes' parts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.training import linear_cross_entropy as entropy  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any
FORWARD, LOSS = entropy.npu_fused_linear_online_max_sum, entropy.npu_fused_cross_entropy_loss_with_max_sum
BACKWARD = entropy.npu_fused_linear_cross_entropy_loss_with_max_sum_backward


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 8, 13])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("numbers", [1, memory.NUMBERS])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_two_parts_of_a_vocabulary(
    dtype: Any, rows: int, kept: bool, numbers: int, integer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "NUMBERS", numbers)
    x, w = torch.randn(rows, 6).to(dtype), torch.randn(11, 6).to(dtype)
    target, dy = torch.randint(0, 11, (rows,), dtype=integer), torch.randn(rows)
    dy = dy.double() if dtype == torch.float64 else dy
    parts = [(0, 4), (5, 10)]
    found = [FORWARD(x, w[a : b + 1], target, a, b, kept) for a, b in parts]
    logits = x.double() @ w.double().T
    for (a, b), (largest, total, predicted, mask, masked, own) in zip(parts, found, strict=True):
        part, elsewhere = logits[:, a : b + 1], (target < a) | (target > b)
        near(largest, part.amax(-1))
        near(total, (part - part.amax(-1, keepdim=True)).exp().sum(-1))
        assert masked.dtype == integer
        assert masked.tolist() == [0 if away else t - a for away, t in zip(elsewhere, target.tolist(), strict=True)]
        chosen = part.gather(1, masked.long().unsqueeze(1)).squeeze(1) - part.amax(-1)
        near(predicted, chosen.masked_fill(elsewhere, 0))
        bits = "".join("01"[int(bit)] for bit in elsewhere).ljust(len(mask) * 8, "1")
        assert mask.tolist() == [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]
        assert (own is not None) == kept
        if own is not None:
            assert own.dtype == dtype
            near(own, part)
    largest = torch.maximum(found[0][0], found[1][0])
    shares = [(part[0] - largest).exp() for part in found]
    total = sum(share * part[1] for share, part in zip(shares, found, strict=True))
    # predicted is against each part's own largest, which the processes make good
    predicted = sum(
        (part[2] + part[0] - largest) * ((target >= a) & (target <= b))
        for part, (a, b) in zip(found, parts, strict=True)
    )
    losses = lambda x, w: torch.nn.functional.cross_entropy(x @ w.T, target.long(), reduction="none")  # noqa: E731
    wanted, (dx, dw) = gradients(losses, [x, w], dy)
    got_dx = torch.zeros(rows, 6, dtype=torch.float64)
    got_dw = []
    for (a, b), (*_, mask, masked, own) in zip(parts, found, strict=True):
        loss, softmax = LOSS(largest, total, predicted, vocab_parallel_logits=own)
        near(loss, wanted)
        assert (softmax is not None) == kept
        exact = logits[:, a : b + 1].sub(torch.logsumexp(logits, -1, keepdim=True)).exp()
        saved: dict[str, Any] = {"logits_max": largest, "sum_exp_logits": total}
        if softmax is not None:
            assert softmax.dtype == largest.dtype
            of_rounded = (own.double() - largest.double().unsqueeze(1)).exp() / total.double().unsqueeze(1)
            near(softmax / 4, of_rounded / 4)
            saved = {"softmax": exact.to(softmax.dtype)}
        d_input, d_weight = BACKWARD(dy, x, w[a : b + 1], mask, masked, **saved)
        got_dx += d_input.double()
        got_dw.append(d_weight)
    near(got_dx.to(dtype), dx)
    near(torch.cat(got_dw), dw)


def test_refusals() -> None:
    x, w, target = torch.randn(3, 6), torch.randn(11, 6), torch.tensor([1, 2, 3])
    refused("weight is of shape [11, 5]", FORWARD, x, w[:, 1:], target, 0, 10)
    refused("weight is torch.float16", FORWARD, x, w.half(), target, 0, 10)
    refused("target is torch.float32", FORWARD, x, w, target.float(), 0, 10)
    refused("target is of shape [2]", FORWARD, x, w, target[:2], 0, 10)
    refused("vocab_start_index and vocab_end_index is 0 and 11", FORWARD, x, w, target, 0, 11)
    one = torch.ones(3)
    refused("label_smoothing is 0.1", LOSS, one, one, one, label_smoothing=0.1)
    refused("input is given, but must be None", LOSS, one, one, one, input=x)
    refused("sum_exp_logits is of shape [2]", LOSS, one, one[:2], one)
    refused("vocab_parallel_logits is of shape [11, 6]", LOSS, one, one, one, vocab_parallel_logits=w)
    mask = torch.zeros(1, dtype=torch.uint8)
    refused("logits_max or sum_exp_logits is None", BACKWARD, one, x, w, mask, target)
    refused("masked_target is from 1 to 13", BACKWARD, one, x, w, mask, target * 5 - 4 + (target == 3) * 2, softmax=x)
    refused("target_mask is torch.bool", BACKWARD, one, x, w, mask.bool(), target, softmax=x)
    refused("softmax is of shape [3, 6]", BACKWARD, one, x, w, mask, target, softmax=x)
    refused("label_smoothing is 1", BACKWARD, one, x, w, mask, target, 1)


def test_on_the_device() -> None:
    torch_npu: Any = pytest.importorskip("torch_npu")
    x, w, target = torch.randn(3, 6), torch.randn(11, 6), torch.tensor([1, 2, 3])
    largest, total, predicted, mask, masked, logits = torch_npu.npu_fused_linear_online_max_sum(
        x.npu(), w.npu(), target.npu(), 0, 10
    )
    assert logits is None
    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(largest, total, predicted)
    assert softmax is None
    dy = torch.randn(3)
    backward = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward
    got = backward(dy.npu(), x.npu(), w.npu(), mask, masked, logits_max=largest, sum_exp_logits=total)
    losses = lambda x, w: torch.nn.functional.cross_entropy(x @ w.T, target, reduction="none")  # noqa: E731
    wanted, derived = gradients(losses, [x, w], dy)
    near(loss.cpu(), wanted)
    for gradient, value in zip(got, derived, strict=True):
        near(gradient.cpu(), value)
