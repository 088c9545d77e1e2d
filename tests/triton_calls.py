"""Calls every kernel on the GPU, for compute-sanitizer: the operators' small calls, and one of each way of cutting."""

from __future__ import annotations

import torch
from torch import Tensor

import torch_cases
from pages import MISSING
from torch_cases import Call

NAMES = tuple(name for name in torch_cases.NAMES if name.split("-")[0] not in MISSING["triton"])
OPERATORS = tuple(name for name in torch_cases.OPERATORS if name in NAMES)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHAPES = ((5, 1000), (300, 7), (3, 20_000), (1, 70_000))
"""Whole rows, many short rows, rows in chunks, and channels so long that sums of chunks are added up."""


def kernel_calls(dtype: torch.dtype) -> list[Call]:
    """Calls that start every kernel."""
    small = torch_cases.calls(dtype)
    found = [small[name] for name in NAMES]
    statistic = torch.float64 if dtype is torch.float64 else torch.float32
    for rows, columns in SHAPES:
        x, weight, row, channels = (torch.randn(s).to(dtype) for s in ((rows, columns), (columns,), (rows,), (rows,)))
        row = row.to(statistic)
        classes = torch.arange(rows) % columns
        images, group = x.view(1, rows, columns), row[:1].view(1, 1)
        found += [
            Call("rms_norm", (x, weight)),
            Call("gemma_rms_norm", (x, weight)),
            Call("add_rms_norm", (x, x, weight)),
            Call("rms_norm_grad", (x, x, row, weight)),
            Call("layer_norm", (x, [columns], weight, weight)),
            Call("layer_norm_backward", (x, x, [columns], row, row, weight, weight)),
            Call("deep_norm_grad", (x, x, x, weight, row, row)),
            Call("deep_norm", (x, x, weight, weight)),
            Call("add_layer_norm", (x, x, weight, weight)),
            Call("add_layer_norm", (x, x, weight, weight, weight, 1e-5, True)),
            Call("add_layer_norm", (x, x, weight, weight, x)),
            Call("add_layer_norm_grad", (x, x, x, row, row, weight, x)),
            Call("add_layer_norm_grad", (x, x, None, row, row, weight)),
            Call("rotary_position_embedding", (torch.cat((x, x), 1), *[torch.cat((x, x), 1)[:1]] * 2)),
            Call(
                "rotary_position_embedding_grad",
                (torch.cat((x, x), 1), *[torch.cat((x, x), 1)[:1]] * 2, torch.cat((x, x), 1), 1),
            ),
            Call("swi_glu", (torch.cat((x, x), 1),)),
            Call("swi_glu_grad", (x, torch.cat((x, x), 1))),
            Call("apply_adam_w_v2", (x, x, x.abs(), None, x, torch.tensor(3))),
            Call("apply_adam_w_v2", (x, x, x.abs(), x.abs(), x, torch.tensor(3), 0.1, 0.9, 0.99, 0.1, 1e-6, True)),
            Call("cross_entropy_loss", (x, classes)),
            Call("cross_entropy_loss", (x, classes, weight, "none", 3, 0.1, 0.2, True)),
            Call("cross_entropy_loss_grad", (row[:1], x, classes)),
            Call("cross_entropy_loss_grad", (row, x, classes, weight, row, row, "none", 3, 0.1, 0.2)),
            Call("cross_entropy_loss_grad", (row[:1], x, classes, None, None, row[:, None])),
            *(Call("gelu_v2", (x, form)) for form in (0, 1)),
            *(Call("gelu_backward_v2", (x, x, form)) for form in ("none", "tanh")),
            Call("group_norm", (images, channels, None, *images.shape[:2], images[0, 0].numel(), 1)),
            Call(
                "group_norm_backward",
                (images, images, group, group, None, *images.shape[:2], images[0, 0].numel(), 1, (True, True, False)),
            ),
            Call("group_norm_silu", (images, None, channels, 1)),
            Call("group_norm_swish", (images, channels, channels, 1)),
            Call("group_norm_swish_grad", (images, group, group, images, channels, channels, 1)),
            *(Call(name, (x, dim)) for name in ("softmax", "log_softmax") for dim in (0, 1)),
            *(Call(f"{name}_backward", (x, x, dim)) for name in ("softmax", "log_softmax") for dim in (0, 1)),
            Call("scaled_masked_softmax", (x, None, 0.5, True)),
            Call("scaled_masked_softmax", (x, x > 1, 0.5)),
            Call("scaled_masked_softmax_backward", (x, x, None, 0.5, True)),
            Call("scaled_masked_softmax_backward", (x, x, x > 1, 0.5)),
        ]
    return found


def main() -> None:
    for dtype in DTYPES:
        for call in kernel_calls(dtype):
            args = [a.cuda() if isinstance(a, Tensor) else a for a in call.args]
            call.function()(*args, **call.named)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
