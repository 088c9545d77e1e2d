"""Train a small Llama on real text, with PyTorch alone and with Descend, side by side.

    python examples/train_text.py
    python examples/train_text.py --dtype bfloat16 --steps 300 --out /tmp/text

The model reads bytes: RMS norm, rotary attention whose masked softmax is written out, gated MLP. The text is Python's
language reference, as CPython ships it. With Descend, `descend.torch.patch` swaps the norms, the SwiGLU of the MLPs,
the sums before norms, rotary positions and the loss, and one more line the softmax. Printed and drawn: both loss curves
and how far they are apart, the time of a step, the share of it that norms and softmax take, without the sums, and that
of matrix products. Needs the extra `examples` of the
package.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence

try:
    import torch
    from capture_gradients import documents
    from torch import Tensor, nn
    from torch.nn import functional
    from training import (
        OUT,
        AdamW,
        Batch,
        Compiled,
        Dtype,
        Out,
        Precision,
        Seed,
        Settings,
        Size,
        Steps,
        Task,
        Threads,
        compare,
        program,
    )

    import descend.torch
except ModuleNotFoundError as missing:
    raise SystemExit(f'{missing}. What the examples need: pip install "descend[examples]"') from None

LENGTH = 256  # bytes of a sequence
VALIDATION = 16  # sequences that are not learned from


# --- the model -----------------------------------------------------------------------------------------------------


class MaskedSoftmax(nn.Module):
    """The softmax of attention as it is usually written: scaled, masked, in float32 or wider."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Over the last axis; `mask` is true where nothing may be seen."""
        scores = (scores * self.scale).masked_fill(mask, -torch.inf)
        return functional.softmax(scores, -1, dtype=wide(scores)).to(scores.dtype)


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(columns, 3 * columns, bias=False)
        self.softmax = MaskedSoftmax((columns // heads) ** -0.5)
        self.out = nn.Linear(columns, columns, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor) -> Tensor:
        """Attend over [batch, sequence, column]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = rotation
        scores = rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2)
        return self.out((self.softmax(scores, mask) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, columns: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(columns, inner, bias=False)
        self.up = nn.Linear(columns, inner, bias=False)
        self.down = nn.Linear(inner, columns, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last axis."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(columns, eps=1e-6)
        self.attention = Attention(columns, heads)
        self.mlp_norm = nn.RMSNorm(columns, eps=1e-6)
        self.mlp = Mlp(columns, 3 * columns)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Bytes in, and the loss of the next ones."""

    def __init__(self, columns: int = 192, heads: int = 6, blocks: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.blocks = nn.ModuleList(Block(columns, heads) for _ in range(blocks))
        self.norm = nn.RMSNorm(columns, eps=1e-6)
        self.head = nn.Linear(columns, 256, bias=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)
        half = columns // heads // 2
        angle = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("rotation", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """[batch, sequence] and the bytes after these to the loss."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rotation, self.mask)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.to(wide(logits)), targets.flatten())


def wide(x: Tensor) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [batch, head, sequence, column]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def use_descend(model: nn.Module) -> None:
    """The changed lines."""
    descend.torch.patch(model)
    for block in model.blocks:
        block.attention.softmax = descend.torch.ScaledMaskedSoftmax(block.attention.softmax.scale)


# --- what it learns ------------------------------------------------------------------------------------------------


def text(batch: int) -> Task:
    """Predict the next byte of Python's language reference; its last tenth is for validation."""
    corpus = torch.frombuffer(bytearray(b"\n\n".join(documents())), dtype=torch.uint8).long()
    known, rest = corpus[: len(corpus) * 9 // 10], corpus[len(corpus) * 9 // 10 :]

    def pieces(source: Tensor, starts: Sequence[int]) -> Batch:
        tokens = torch.stack([source[start : start + LENGTH + 1] for start in starts])
        return tokens[:, :-1], tokens[:, 1:]

    def draw(random: torch.Generator) -> Batch:
        return pieces(known, torch.randint(len(known) - LENGTH, (batch,), generator=random).tolist())

    def loss(model: nn.Module, given: Batch) -> Tensor:
        return model(*given)

    validation = pieces(rest, range(0, len(rest) - LENGTH, (len(rest) - LENGTH) // VALIDATION)[:VALIDATION])
    frequencies = (torch.bincount(known, minlength=256) + 1) / (len(known) + 256)
    return Task(
        name="train_text",
        data=f"pydoc_data.topics of CPython {platform.python_version()}, (c) Python Software Foundation, PSF License 2",
        unit="nats a byte",
        model=Llama,
        use_descend=use_descend,
        operators=operators,
        loss=loss,
        draw=draw,
        validation=[validation],
        baselines={
            "all bytes alike": math.log(256),
            "each byte by its frequency": -frequencies.log()[validation[1]].mean().item(),
        },
    )


def operators(model: nn.Module) -> Mapping[str, Sequence[nn.Module]]:
    """The modules that Descend computes whole, or PyTorch's at the same places."""
    blocks = list(model.blocks)
    return {
        "RMS norm": [model.norm, *(norm for block in blocks for norm in (block.attention_norm, block.mlp_norm))],
        "masked softmax": [block.attention.softmax for block in blocks],
    }


def main(
    steps: Steps = 150,
    seed: Seed = 0,
    dtype: Precision = Dtype.float32,
    batch: Size = 4,
    threads: Threads = 0,
    adam_w: AdamW = False,
    compiled: Compiled = False,
    out: Out = OUT,
) -> None:
    """Train, print, draw."""
    compare(text(batch), Settings(steps, seed, getattr(torch, dtype.value), threads, adam_w, compiled), out)


if __name__ == "__main__":
    program(main)
