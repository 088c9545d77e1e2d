"""LSTM and GRU by torch_npu's own names: npu_lstm, npu_lstm_cell, npu_gru, and their gradients. One layer, one way.

    i, f, j, o = sigmoid, sigmoid, tanh, sigmoid of [x_t, h_(t-1)] weight + bias, each a quarter of the columns
    c_t = f c_(t-1) + i j,    h_t = o tanh(c_t)

    r, z = sigmoid of both halves' sums of x_t weight_input + bias_input and h_(t-1) weight_hidden + bias_hidden
    n = tanh(x_n + r h_n),    h_t = n + z (h_(t-1) - n)

torch.nn.LSTM and GRU do not call these here: PyTorch's own kernels compute them.

Documents: torch_npu.npu_lstm, npu_gru; op-plugin's LstmKernelNpu.cpp, LstmCellKernelNpu.cpp and GruKernelNpu.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_shape, wide
from descend.npu.composed.derivatives import derivatives
from descend.npu.composed.refusal import refuse

Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def npu_lstm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    seq_mask: Tensor,
    h: Tensor,
    c: Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
) -> Eight:
    """h of all steps twice, then c, i, j, f, o and tanh(c), all [T, B, H].

    ``input`` is [T, B, I], ``weight`` [I + H, 4 H], ``h`` and ``c`` are [1, B, H]. As on a processor, has_biases,
    num_layers, dropout, bidirectional and batch_first have no effect.
    """
    operator = "npu_lstm"
    for name, flag in (("flag_seq", flag_seq), ("direction", direction)):
        if flag:
            refuse(operator, name, True, "must be False: the gradient does not know of it")
    _check_lstm(operator, input, weight, bias, h, c)
    results = _lstm(*(wide(t) for t in (input, weight, bias, h, c)))
    own, memory, i, j, f, o, tanh = (t.to(input.dtype) for t in results)
    return own, own.clone(), memory, i, j, f, o, tanh


def npu_lstm_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    gradc: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    hx: Tensor,
    cx: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    c_output: Tensor,
    i: Tensor,
    j: Tensor,
    f: Tensor,
    o: Tensor,
    tanhc: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight, bias, hx and cx. The steps are computed once more."""
    operator = "npu_lstm_backward"
    _check_lstm(operator, input, weight, bias, hx, cx)
    shape = [*input.shape[:2], weight.shape[1] // 4]
    for name, grad in (("grady", grady), ("gradh", gradh), ("gradc", gradc)):
        if grad is not None:
            check_shape(operator, name, grad, shape, "the result")

    def both(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own, memory = _lstm(*given)[:2]
        return own, own.clone(), memory

    given = (input, weight, bias, hx, cx)
    one, two, three, four, five = _derived(both, given, [grady, gradh, gradc])
    return one, two, three, four, five


def npu_lstm_cell(
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    h: Tensor,
    c: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Eight:
    """h [1, B, H], h and c [B, H], and i, j, f, o and tanh(c), [1, B, H], of one step.

    ``input`` is [B, I], ``w_ih`` [I, 4 H], ``w_hh`` [H, 4 H], ``h`` and ``c`` are [B, H].
    """
    operator = "npu_lstm_cell"
    _check_cell(operator, input, w_ih, w_hh, h, c, b_ih, b_hh)
    bias = w_ih.new_zeros(w_ih.shape[1])
    for own in (b_ih, b_hh):
        bias = bias if own is None else wide(bias) + own
    results = _cell(*(wide(t) for t in (input, w_ih, w_hh, h, c, bias)))
    own, memory, i, j, f, o, tanh = (t.to(input.dtype) for t in results)
    return own.unsqueeze(0), own, memory, i[None], j[None], f[None], o[None], tanh[None]


def npu_lstm_cell_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    gradc: Tensor | None,
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    h: Tensor,
    c: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    c_output: Tensor,
    i: Tensor,
    j: Tensor,
    f: Tensor,
    o: Tensor,
    tanhc: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, w_ih, w_hh, both biases, h and c, from the gates i, j, f, o."""
    operator = "npu_lstm_cell_backward"
    _check_cell(operator, input, w_ih, w_hh, h, c, None, None)
    x, first, second, before, memory = (wide(t) for t in (input, w_ih, w_hh, h, c))
    gate_i, gate_j, gate_f, gate_o, tanh = (wide(t).view(h.shape) for t in (i, j, f, o, tanhc))
    dh = torch.zeros_like(before)
    for grad in (grady, gradh):
        dh = dh if grad is None else dh + wide(grad).view(h.shape)
    dc = dh * gate_o * (1 - tanh * tanh)
    dc = dc if gradc is None else dc + wide(gradc)
    gates = torch.cat(
        (
            dc * gate_j * gate_i * (1 - gate_i),
            dc * memory * gate_f * (1 - gate_f),
            dc * gate_i * (1 - gate_j * gate_j),
            dh * tanh * gate_o * (1 - gate_o),
        ),
        1,
    )
    bias = gates.sum(0).to(input.dtype)
    found = (gates @ first.T, x.T @ gates, before.T @ gates, gates @ second.T, dc * gate_f)
    dx, d_ih, d_hh, dh, dc = (t.to(like.dtype) for t, like in zip(found, (input, w_ih, w_hh, h, c), strict=True))
    return dx, d_ih, d_hh, bias, bias.clone(), dh, dc


def npu_gru(
    input: Tensor,
    hx: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
    seq_length: Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h of all steps twice, then z, r, n and h_n, all [T, B, H].

    ``input`` is [T, B, I], ``hx`` [B, H] or [1, B, H], the weights are [I, 3 H] and [H, 3 H]. As on a processor,
    seq_length, has_biases, num_layers, dropout, train, bidirectional and batch_first have no effect.
    """
    operator = "npu_gru"
    given = (input, hx, weight_input, weight_hidden, bias_input, bias_hidden)
    _check_gru(operator, *given)
    own, z, r, n, hidden = (t.to(input.dtype) for t in _gru(*(wide(t) for t in given)))
    return own, own.clone(), z, r, n, hidden


def npu_gru_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    input: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
    seq_length: Tensor,
    hx: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    output_updata: Tensor,
    output_reset: Tensor,
    output_new: Tensor,
    hidden_new: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of weight_input, weight_hidden, input, bias_input, bias_hidden and hx. Steps are computed again."""
    operator = "npu_gru_backward"
    given = (input, hx, weight_input, weight_hidden, bias_input, bias_hidden)
    _check_gru(operator, *given)
    shape = [*input.shape[:2], hx.shape[-1]]
    for name, grad in (("grady", grady), ("gradh", gradh)):
        if grad is not None:
            check_shape(operator, name, grad, shape, "the result")

    def both(*given: Tensor) -> tuple[Tensor, Tensor]:
        own = _gru(*given)[0]
        return own, own.clone()

    dx, dh, d_input, d_hidden, b_input, b_hidden = _derived(both, given, [grady, gradh])
    return d_input, d_hidden, dx, b_input, b_hidden, dh


def _derived(
    function: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...], gradients: list[Tensor | None]
) -> list[Tensor]:
    found = derivatives(function, [wide(t) for t in given], gradients)
    return [gradient.to(t.dtype) for gradient, t in zip(found, given, strict=True) if gradient is not None]


def _cell(x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """h, c, i, j, f, o and tanh(c) of a step."""
    parts = (x @ w_ih + h @ w_hh + bias).chunk(4, 1)
    i, f, j, o = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
    c = f * c + i * j
    tanh = c.tanh()
    return o * tanh, c, i, j, f, o, tanh


def _lstm(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    w_ih, w_hh = weight.split([x.shape[2], h.shape[2]])
    h, c = h[0], c[0]
    steps = []
    for row in x:
        step = _cell(row, w_ih, w_hh, h, c, bias)
        h, c = step[:2]
        steps.append(step)
    return tuple(torch.stack(each) for each in zip(*steps, strict=True))


def _gru(x: Tensor, h: Tensor, w_i: Tensor, w_h: Tensor, b_i: Tensor, b_h: Tensor) -> tuple[Tensor, ...]:
    """h, z, r, n and h_n of all steps."""
    h = h[0] if h.dim() == 3 else h
    steps = []
    for row in x @ w_i + b_i:
        given, hidden = row.chunk(3, 1), (h @ w_h + b_h).chunk(3, 1)
        r, z = (given[0] + hidden[0]).sigmoid(), (given[1] + hidden[1]).sigmoid()
        n = (given[2] + r * hidden[2]).tanh()
        h = n + z * (h - n)
        steps.append((h, z, r, n, hidden[2]))
    return tuple(torch.stack(each) for each in zip(*steps, strict=True))


def _check_steps(operator: str, input: Tensor) -> None:
    if input.dim() != 3 or not len(input):
        refuse(operator, "input", f"of shape {list(input.shape)}", "must be of shape [T, B, I], T from 1 on")


def _check_lstm(operator: str, input: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> None:
    check_alike(operator, "input", input, weight=weight, bias=bias, h=h, c=c)
    _check_steps(operator, input)
    if h.dim() != 3 or list(h.shape[:2]) != [1, input.shape[1]]:
        refuse(operator, "h", f"of shape {list(h.shape)}", f"must be of shape [1, {input.shape[1]}, H]")
    size = h.shape[2]
    check_shape(operator, "c", c, h.shape, "h")
    check_shape(operator, "weight", weight, [input.shape[2] + size, 4 * size], "input and h")
    check_shape(operator, "bias", bias, [4 * size], "the columns of weight")


def _check_cell(
    operator: str,
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    h: Tensor,
    c: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> None:
    check_alike(operator, "input", input, w_ih=w_ih, w_hh=w_hh, h=h, c=c, b_ih=b_ih, b_hh=b_hh)
    for name, tensor in (("input", input), ("h", h)):
        if tensor.dim() != 2 or len(tensor) != len(input):
            refuse(operator, name, f"of shape {list(tensor.shape)}", "must be of shape [B, I], or [B, H]")
    size = h.shape[1]
    check_shape(operator, "c", c, h.shape, "h")
    check_shape(operator, "w_ih", w_ih, [input.shape[1], 4 * size], "input and h")
    check_shape(operator, "w_hh", w_hh, [size, 4 * size], "h")
    for name, bias in (("b_ih", b_ih), ("b_hh", b_hh)):
        if bias is not None:
            check_shape(operator, name, bias, [4 * size], "the columns of w_ih")


def _check_gru(
    operator: str, input: Tensor, hx: Tensor, w_input: Tensor, w_hidden: Tensor, b_input: Tensor, b_hidden: Tensor
) -> None:
    named = {"hx": hx, "weight_input": w_input, "weight_hidden": w_hidden}
    check_alike(operator, "input", input, **named, bias_input=b_input, bias_hidden=b_hidden)
    _check_steps(operator, input)
    size, batch = hx.shape[-1] if hx.dim() else 0, input.shape[1]
    if list(hx.shape) not in ([batch, size], [1, batch, size]):
        refuse(operator, "hx", f"of shape {list(hx.shape)}", f"must be of shape [{batch}, H] or [1, {batch}, H]")
    check_shape(operator, "weight_input", w_input, [input.shape[2], 3 * size], "input and hx")
    check_shape(operator, "weight_hidden", w_hidden, [size, 3 * size], "hx")
    for name, bias in (("bias_input", b_input), ("bias_hidden", b_hidden)):
        check_shape(operator, name, bias, [3 * size], "the columns of weight_hidden")
