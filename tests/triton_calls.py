"""Calls every kernel on the GPU, for compute-sanitizer: the operators' small calls, and one of each way of cutting."""

from __future__ import annotations

import torch

import descend.torch
from torch_cases import calls

SHAPES = ((5, 1000), (300, 7), (3, 20_000))


def main() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for call in calls(dtype).values():
            args = [a.cuda() if isinstance(a, torch.Tensor) else a for a in call.args]
            call.function()(*args, **call.named)
        for rows, columns in SHAPES:
            x = torch.randn(rows, columns, device="cuda").to(dtype).requires_grad_()
            gamma = torch.ones(columns, device="cuda", dtype=dtype, requires_grad=True)
            planes = x.view(1, rows, columns)
            channels = torch.ones(rows, device="cuda", dtype=dtype, requires_grad=True)
            results = (
                descend.torch.rms_norm(x, gamma)[0],
                descend.torch.layer_norm(x, [columns], gamma, gamma)[0],
                descend.torch.group_norm_swish(planes, channels, channels, 1)[0],
                descend.torch.scaled_masked_softmax(x, None, 0.5, True),
            )
            for y in results:
                y.float().sum().backward()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
