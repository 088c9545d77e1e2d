"""A small language model, written for Ascend: it uses torch_npu's operators and trains on device npu.

Run it without an Ascend processor: `descend npu examples/train_npu.py`.
"""

from __future__ import annotations

import torch
import torch_npu
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a gated MLP, as in Llama, by torch_npu's operators."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size))
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 8 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From x to x, of shape [batch, positions, size]."""
        h, _ = torch_npu.npu_rms_norm(x, self.norm)
        q, k, v = self.qkv(h).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scale = (x.shape[-1] // self.heads) ** -0.5
        x = x + self.out(torch_npu.npu_fusion_attention(q, k, v, self.heads, "BSH", atten_mask=mask, scale=scale)[0])
        h, _ = torch_npu.npu_rms_norm(x, self.mlp_norm)
        return x + self.down(torch_npu.npu_swiglu(self.up(h)))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 128), Block(128, 4), Block(128, 4), nn.Linear(128, 64)).npu()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
text = torch.randint(64, (8, 65)).npu()
for step in range(30):
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.3f} on {loss.device}")
