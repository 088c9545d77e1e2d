"""npu_lstm, npu_lstm_cell and npu_gru: against PyTorch's layers in float64, with gradients; refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.layers import recurrent  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any
REST = (True, 1, 0.0, True, False, False)
"""has_biases, num_layers, dropout, train, bidirectional, batch_first."""


def layer(kind: Any, given: list[Tensor], inputs: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """PyTorch's layer by the weights of torch_npu's operator: leaves in float64, and h and the last state."""
    leaves = [t.double().requires_grad_() for t in given]
    if kind is torch.nn.LSTM:
        x, weight, bias, h, c = leaves
        flat = {"weight_ih_l0": weight[:inputs].T, "weight_hh_l0": weight[inputs:].T, "bias_ih_l0": bias}
        state, bias_hh = (h, c), torch.zeros_like(bias)
    else:
        x, h, w_i, w_h, b_i, bias_hh = leaves
        flat, state = {"weight_ih_l0": w_i.T, "weight_hh_l0": w_h.T, "bias_ih_l0": b_i}, h
    module = kind(inputs, h.shape[-1]).double()
    y, last = torch.func.functional_call(module, flat | {"bias_hh_l0": bias_hh}, (x, state))
    return leaves, y, last


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("steps", [1, 4])
def test_lstm(dtype: Any, steps: int) -> None:
    batch, inputs, size = 3, 5, 4
    shapes = ((steps, batch, inputs), (inputs + size, 4 * size), (4 * size,), (1, batch, size), (1, batch, size))
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    leaves, y, (_, c) = layer(torch.nn.LSTM, given, inputs)
    x, weight, bias, h0, c0 = given
    got = recurrent.npu_lstm(x, weight, bias, torch.empty(0), h0, c0, *REST, False, False)
    for result in got[:2]:
        near(result, y.detach(), size=4.0)
    near(got[2][-1:], c.detach(), size=4.0)
    near(got[6] * got[7], y.detach(), size=4.0)
    near(got[2].double().tanh().to(dtype), got[7].double(), size=4.0)
    dy, dh, dc = (torch.randn(y.shape).to(dtype) for _ in range(3))
    dc[:-1] = 0  # of the layer only the last c is a result
    total = (y * (dy.double() + dh.double())).sum()
    wanted = torch.autograd.grad(total + (c * dc[-1:].double()).sum(), leaves)
    found = recurrent.npu_lstm_backward(dy, dh, dc, x, weight, bias, h0, c0, *got)
    for one, other in zip(found, wanted, strict=True):
        near(one, other, size=16.0)
    near(recurrent.npu_lstm_backward(None, None, None, x, weight, bias, h0, c0, *got)[0], torch.zeros(x.shape).double())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("biases", [True, False])
def test_lstm_cell(dtype: Any, biases: bool) -> None:
    shapes = ((3, 5), (5, 16), (4, 16), (3, 4), (3, 4), (16,), (16,))
    given = [torch.randn(shape).to(dtype) for shape in shapes[: 7 if biases else 5]]
    leaves = [t.double().requires_grad_() for t in given]
    x, w_ih, w_hh, h0, c0, *bias = leaves
    cell = torch.nn.LSTMCell(5, 4, bias=biases).double()
    flat = {"weight_ih": w_ih.T, "weight_hh": w_hh.T} | dict(zip(("bias_ih", "bias_hh"), bias, strict=False))
    h, c = torch.func.functional_call(cell, flat, (x, (h0, c0)))
    got = recurrent.npu_lstm_cell(*given)
    near(got[0][0], h.detach(), size=4.0)
    near(got[1], h.detach(), size=4.0)
    near(got[2], c.detach(), size=4.0)
    assert all(gate.shape == (1, 3, 4) for gate in got[3:])
    dy, dh, dc = torch.randn(1, 3, 4).to(dtype), torch.randn(3, 4).to(dtype), torch.randn(3, 4).to(dtype)
    total = (h * (dy[0].double() + dh.double())).sum() + (c * dc.double()).sum()
    wanted = torch.autograd.grad(total, leaves)
    found = recurrent.npu_lstm_cell_backward(dy, dh, dc, *given[:5], *got)
    order = (0, 1, 2, 5, 6, 3, 4)
    for place, one in zip(order, found, strict=True):
        if place < len(wanted):
            near(one, wanted[place], size=32.0)  # the gates that it is given are rounded


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("flat", [True, False])
def test_gru(dtype: Any, steps: int, flat: bool) -> None:
    batch, inputs, size = 3, 5, 4
    shapes = ((steps, batch, inputs), (1, batch, size), (inputs, 12), (size, 12), (12,), (12,))
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    leaves, y, _ = layer(torch.nn.GRU, given, inputs)
    if flat:
        given[1] = given[1][0]
    got = recurrent.npu_gru(*given, torch.empty(0), *REST)
    for result in got[:2]:
        near(result, y.detach(), size=4.0)
    dy, dh = torch.randn(y.shape).to(dtype), torch.randn(y.shape).to(dtype)
    dx, d0, *rest = torch.autograd.grad(y, leaves, dy.double() + dh.double())
    x, h0, w_i, w_h, b_i, b_h = given
    found = recurrent.npu_gru_backward(dy, dh, x, w_i, w_h, b_i, b_h, torch.empty(0), h0, *got)
    for one, other in zip(found, (rest[0], rest[1], dx, rest[2], rest[3], d0[0] if flat else d0), strict=True):
        near(one, other, size=16.0)


def test_refusals() -> None:
    x, weight, bias, h = torch.randn(2, 3, 5), torch.randn(9, 16), torch.randn(16), torch.randn(1, 3, 4)
    lstm, empty = recurrent.npu_lstm, torch.empty(0)
    refused("flag_seq is True", lstm, x, weight, bias, empty, h, h, *REST, True, False)
    refused("direction is True", lstm, x, weight, bias, empty, h, h, *REST, False, True)
    refused("input is of shape [3, 5]", lstm, x[0], weight, bias, empty, h, h, *REST, False, False)
    refused("h is of shape [3, 4]", lstm, x, weight, bias, empty, h[0], h, *REST, False, False)
    refused("weight is of shape [8, 16]", lstm, x, weight[:8], bias, empty, h, h, *REST, False, False)
    refused("bias is of shape [8]", lstm, x, weight, bias[:8], empty, h, h, *REST, False, False)
    refused("weight is torch.float64", lstm, x, weight.double(), bias, empty, h, h, *REST, False, False)
    results = lstm(x, weight, bias, empty, h, h, *REST, False, False)
    refused("gradh is of shape [1, 3, 4]", recurrent.npu_lstm_backward, None, h, None, x, weight, bias, h, h, *results)
    refused("w_hh is of shape [5, 16]", recurrent.npu_lstm_cell, x[0], weight[:5], weight[:5], h[0], h[0])
    refused("b_hh is of shape [8]", recurrent.npu_lstm_cell, x[0], weight[:5], weight[5:], h[0], h[0], bias, bias[:8])
    refused("h is of shape [1, 3, 4]", recurrent.npu_lstm_cell, x[0], weight[:5], weight[5:], h, h)
    gru, w = recurrent.npu_gru, torch.randn(9, 12)
    refused("hx is of shape [2, 3, 4]", gru, x, torch.randn(2, 3, 4), w[:5], w[5:], w[0], w[0], empty, *REST)
    refused("weight_input is of shape [4, 12]", gru, x, h, w[:4], w[5:], w[0], w[0], empty, *REST)
    refused("bias_hidden is of shape [4]", gru, x, h, w[:5], w[5:], w[0], w[0, :4], empty, *REST)


def test_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).npu().requires_grad_()

    x, weight, bias, h, c = leaf(3, 2, 3), leaf(5, 8), leaf(8), leaf(1, 2, 2), leaf(1, 2, 2)
    empty = torch.empty(0).npu()

    def lstm(*given: Tensor) -> Tensor:
        x, weight, bias, h, c = given
        return npu.npu_lstm(x, weight, bias, empty, h, c, *REST, False, False)[:3]

    assert torch.autograd.gradcheck(lstm, (x, weight, bias, h, c), fast_mode=True)
    cell = (leaf(2, 3), leaf(3, 8), leaf(2, 8), leaf(2, 2), leaf(2, 2), leaf(8), leaf(8))
    assert torch.autograd.gradcheck(lambda *given: npu.npu_lstm_cell(*given)[:3], cell, fast_mode=True)
    given = (x, leaf(1, 2, 2), leaf(3, 6), leaf(2, 6), leaf(6), leaf(6))
    assert torch.autograd.gradcheck(lambda *given: npu.npu_gru(*given, empty, *REST)[:2], given, fast_mode=True)
