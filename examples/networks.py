"""The networks that capture_gradients.py trains, of the layers in layers.py."""

from __future__ import annotations

import torch
from layers import (
    AddRmsNorm,
    Compress,
    DeepNorm,
    Gelu,
    GemmaRmsNorm,
    GroupNorm,
    GroupNormSwish,
    LayerNorm,
    LogSoftmax,
    MaskedSoftmax,
    RmsNorm,
    Rotary,
    Softmax,
    SwiGlu,
)
from torch import Tensor, nn
from torch.nn import functional

LENGTH = 32  # bytes of a sequence


class Attention(nn.Module):
    """Causal attention with normalised queries and keys."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(columns, 3 * columns, bias=False)
        self.out = nn.Linear(columns, columns, bias=False)
        self.q_norm = RmsNorm(columns // heads)
        self.k_norm = RmsNorm(columns // heads)
        self.q_rotary, self.k_rotary = Rotary(), Rotary()

    def forward(self, x: Tensor) -> Tensor:
        """Attend over [batch, sequence, column]."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).unbind(2)
        q, k = self.q_rotary(self.q_norm(q)), self.k_rotary(self.k_norm(k))
        y = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gate = nn.Linear(columns, 3 * columns, bias=False)
        self.up = nn.Linear(columns, 3 * columns, bias=False)
        self.down = nn.Linear(3 * columns, columns, bias=False)
        self.swi_glu = SwiGlu()

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last axis."""
        return self.down(self.swi_glu(self.gate(x), self.up(x)))


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(columns)
        self.attention = Attention(columns, heads)
        self.mlp_norm = RmsNorm(columns)
        self.mlp = Mlp(columns)

    def forward(self, x: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out.

    The last norm sees tokens as rows of a matrix, and its gamma stays in float32.
    """

    def __init__(self, columns: int = 72, heads: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.blocks = nn.ModuleList(Block(columns, heads) for _ in range(blocks))
        self.final_norm = RmsNorm(columns, in_float32=True)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x.flatten(0, 1)))


class AddingBlock(nn.Module):
    """The same, with the sums of the residuals in the norms after them."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = AddRmsNorm(columns)
        self.attention = Attention(columns, heads)
        self.mlp_norm = AddRmsNorm(columns)
        self.mlp = Mlp(columns)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What is to be added to the residual stream, and the stream."""
        x, residual = self.attention_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x), residual)
        return self.mlp(x), residual


class AddingLanguageModel(nn.Module):
    """The small Llama as inference engines run it, with each sum in the norm after it; bytes in, logits out."""

    def __init__(self, columns: int = 72, heads: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.blocks = nn.ModuleList(AddingBlock(columns, heads) for _ in range(blocks))
        self.final_norm = AddRmsNorm(columns)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        return self.head(self.final_norm(x, residual)[0].flatten(0, 1))


class GemmaBlock(nn.Module):
    """Attention and an MLP gated by GELU, with Gemma's norms before and after each, and residuals."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention_post_norm = GemmaRmsNorm(columns), GemmaRmsNorm(columns)
        self.attention = Attention(columns, heads)
        self.mlp_norm, self.mlp_post_norm = GemmaRmsNorm(columns), GemmaRmsNorm(columns)
        self.gate, self.up = (nn.Linear(columns, 3 * columns, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * columns, columns, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x)))
        inner = self.mlp_norm(x)
        return x + self.mlp_post_norm(self.down(functional.gelu(self.gate(inner)) * self.up(inner)))


class Gemma(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, columns: int = 72, heads: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.blocks = nn.ModuleList(GemmaBlock(columns, heads) for _ in range(blocks))
        self.final_norm = GemmaRmsNorm(columns)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x.flatten(0, 1)))


class GptAttention(nn.Module):
    """Causal attention, with its softmax as a layer of its own."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(columns, 3 * columns)
        self.softmax = MaskedSoftmax((columns // heads) ** -0.5)
        self.out = nn.Linear(columns, columns)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over [batch, sequence, column]."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        future = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = self.softmax(q @ k.transpose(-1, -2), future) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))


class GptBlock(nn.Module):
    """Attention and MLP, each after a layer norm and with a residual."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(columns)
        self.attention = GptAttention(columns, heads)
        self.mlp_norm = LayerNorm(columns)
        self.mlp = nn.Sequential(nn.Linear(columns, 4 * columns), Gelu(), nn.Linear(4 * columns, columns))

    def forward(self, x: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out. The last norm sees tokens as rows; its parameters stay in float32."""

    def __init__(self, columns: int = 72, heads: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.positions = nn.Embedding(LENGTH, columns)
        self.blocks = nn.ModuleList(GptBlock(columns, heads) for _ in range(blocks))
        self.final_norm = LayerNorm(columns, in_float32=True)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x.flatten(0, 1)))


class DeepBlock(nn.Module):
    """Attention and MLP, each before a deep norm, which has the residual connection in it."""

    def __init__(self, columns: int, heads: int, alpha: float) -> None:
        super().__init__()
        self.attention = GptAttention(columns, heads)
        self.attention_norm = DeepNorm(columns, alpha)
        self.mlp = nn.Sequential(nn.Linear(columns, 4 * columns), nn.GELU(), nn.Linear(4 * columns, columns))
        self.mlp_norm = DeepNorm(columns, alpha)

    def forward(self, x: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = self.attention_norm(x, self.attention(x))
        return self.mlp_norm(x, self.mlp(x))


class DeepGpt(nn.Module):
    """Bytes in, logits of the next byte out; alpha is DeepNet's of a decoder with so many blocks."""

    def __init__(self, columns: int = 72, heads: int = 3, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.positions = nn.Embedding(LENGTH, columns)
        self.blocks = nn.ModuleList(DeepBlock(columns, heads, (2 * blocks) ** 0.25) for _ in range(blocks))
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))


class SparseAttention(nn.Module):
    """Attention of packed sequences to the last 16 tokens, and to compressed windows of the tokens before."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(columns, 3 * columns, bias=False)
        self.compress_keys = Compress(heads)
        self.compress_values = Compress(heads)
        self.rotary = Rotary()
        self.out = nn.Linear(columns, columns, bias=False)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """Attend over [token, column]; `ends` says where the sequences end."""
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = self.rotary(q[None])[0], self.rotary(k[None])[0]
        keys, values = torch.cat([k, self.compress_keys(k, ends)]), torch.cat([v, self.compress_values(v, ends)])
        here = torch.arange(len(x))
        last = self.compress_keys.starts(ends) + len(self.compress_keys.weight) - 1  # token of each window
        begin = torch.cat([torch.zeros(1, dtype=ends.dtype), ends])[torch.bucketize(here, ends, right=True)]  # of mine
        near = (here <= here[:, None]) & (here > here[:, None] - 16) & (here >= begin[:, None])
        far = (last <= here[:, None]) & (last >= begin[:, None])
        scores = torch.einsum("tnd,snd->nts", q, keys) * q.shape[-1] ** -0.5
        y = torch.softmax(scores.float().masked_fill(~torch.cat([near, far], 1), -torch.inf), -1).to(x.dtype)
        return self.out(torch.einsum("nts,snd->tnd", y, values).reshape(x.shape))


class SparseBlock(nn.Module):
    """Sparse attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(columns)
        self.attention = SparseAttention(columns, heads)
        self.mlp_norm = RmsNorm(columns)
        self.mlp = Mlp(columns)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """One block of the residual stream."""
        x = x + self.attention(self.attention_norm(x), ends)
        return x + self.mlp(self.mlp_norm(x))


class SparseLanguageModel(nn.Module):
    """Packed sequences of bytes in, logits of the next byte out."""

    def __init__(self, columns: int = 48, heads: int = 3, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, columns)
        self.blocks = nn.ModuleList(SparseBlock(columns, heads) for _ in range(blocks))
        self.final_norm = RmsNorm(columns)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """[token] to [token, 256]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, ends)
        return self.head(self.final_norm(x))


class ConvolutionalNetwork(nn.Module):
    """Images of 8 x 8 in, logits of the ten digits out."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride, 1, bias=False) for a, b, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1))
        )
        self.norms = nn.ModuleList(GroupNormSwish(channels, groups) for channels, groups in ((16, 4), (32, 8), (32, 8)))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[image, 1, 8, 8] to [image, 10]."""
        x = images.to(self.head.weight.dtype)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x))
        return self.head(x.mean((2, 3)))


class DenseNetwork(nn.Module):
    """Images of 8 x 8 in; logarithms of the probabilities of the ten digits out, at each of 4 x 4 places.

    As the networks of diffusion and segmentation it has group norms before SiLU, and attention between places.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride, 1, bias=False) for a, b, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1))
        )
        self.norms = nn.ModuleList(GroupNorm(channels, groups) for channels, groups in ((16, 4), (32, 8), (32, 8)))
        self.qkv, self.out = nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1)
        self.softmax = Softmax()
        self.head = nn.Conv2d(32, 10, 1)
        self.log_softmax = LogSoftmax()

    def forward(self, images: Tensor) -> Tensor:
        """[image, 1, 8, 8] to [image, 10, 4, 4]."""
        x = images.to(self.head.weight.dtype)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.silu(norm(convolution(x)))
        q, k, v = self.qkv(x).view(len(x), 3, 2, 16, 16).unbind(1)  # two heads of 16 channels, 16 places
        weights = self.softmax(q.transpose(-1, -2) @ k / 4)
        x = x + self.out((v @ weights.transpose(-1, -2)).reshape(x.shape))
        return self.log_softmax(self.head(x))
