"""Capture what an operator's backward pass takes while a small language model really trains.

    python examples/capture_gradients.py                     # writes examples/data/rms_norm_grad.safetensors
    python examples/capture_gradients.py --steps 100 --out /tmp/rms_norm_grad.safetensors

A byte-level Llama in miniature (RMS norm before each half of a block and on queries and keys, rotary positions, gated
MLP) learns the text of Python's own language reference, once in float32 and once with bfloat16 weights and activations.
At the first, a middle and the last step the chosen layers' inputs, statistics and incoming gradients are kept.

Another operator is one more entry in OPERATORS: a layer that derives from Captured, a model that uses it, and the
layers and steps worth keeping. Needs torch and safetensors.
"""

from __future__ import annotations

import argparse
import json
import platform
import pydoc_data.topics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

SEQUENCES, LENGTH = 2, 32  # one forward and backward pass: small, so that whole tensors fit into the repository
PASSES = 8  # passes whose gradients one step adds up
LEARNING_RATE = 3e-3


class Captured(nn.Module):
    """A layer whose backward pass is an operator; its forward pass fills `saved`."""

    result_gradient: ClassVar[str]
    """The operator's name for the gradient of the layer's result."""
    saved: dict[str, Tensor]
    """The operator's other inputs, by parameter name."""


class RmsNorm(Captured):
    """RMS norm over the last axis: statistics in float32, one rounding to x's dtype."""

    result_gradient = "dy"

    def __init__(self, columns: int, gamma_in_float32: bool = False) -> None:
        """`gamma_in_float32` keeps gamma at full precision where the model is cast to a narrower dtype."""
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(columns))
        self.gamma_in_float32 = gamma_in_float32

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what rms_norm_grad takes besides dy."""
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        self.saved = {"x": x, "rstd": rstd, "gamma": self.gamma}
        return (wide * rstd * self.gamma.float()).to(x.dtype)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on [batch, sequence, head, column]."""
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[1]).float(), 1000.0 ** (-torch.arange(half) / half))[:, None, :]
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class Attention(nn.Module):
    """Causal attention with normalised queries and keys."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(columns, 3 * columns, bias=False)
        self.out = nn.Linear(columns, columns, bias=False)
        self.q_norm = RmsNorm(columns // heads)
        self.k_norm = RmsNorm(columns // heads)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over [batch, sequence, column]."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).unbind(2)
        q, k = rotate(self.q_norm(q)), rotate(self.k_norm(k))
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

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last axis."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

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
        self.final_norm = RmsNorm(columns, gamma_in_float32=True)
        self.head = nn.Linear(columns, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] to [batch * sequence, 256]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x.flatten(0, 1)))


@dataclass(frozen=True)
class Operator:
    """What to train for an operator, and what to keep of it."""

    model: Callable[[], nn.Module]
    layers: dict[str, tuple[str, ...]]
    """Layer to the moments at which it is kept: first, middle, last."""


OPERATORS = {
    "rms_norm_grad": Operator(
        LanguageModel,
        {
            "blocks.0.attention_norm": ("first", "last"),
            "blocks.1.attention.q_norm": ("middle",),
            "blocks.2.mlp_norm": ("middle",),
            "final_norm": ("first", "middle", "last"),
        },
    ),
}


def keep(layer: nn.Module, case: str, into: dict[str, Tensor]) -> torch.utils.hooks.RemovableHandle:
    """Copy the tensors of the layer's forward and backward pass into `into`, as `<case>.<parameter>`."""
    assert isinstance(layer, Captured)

    def backward(gradient: Tensor) -> None:
        into[f"{case}.{layer.result_gradient}"] = gradient.detach().clone().contiguous()

    def forward(layer: Captured, _arguments: object, result: Tensor) -> None:
        for name, tensor in layer.saved.items():
            into[f"{case}.{name}"] = tensor.detach().clone().contiguous()
        result.register_hook(backward)

    return layer.register_forward_hook(forward)


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Bring the model to a dtype, but for the gammas that stay in float32."""
    model.to(dtype)
    for layer in model.modules():
        if isinstance(layer, RmsNorm) and layer.gamma_in_float32:
            layer.float()
    return model


def train(
    operator: Operator, text: Tensor, dtype: torch.dtype, steps: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train a fresh model; return the captured tensors and the loss at the moments of capture."""
    torch.manual_seed(seed)
    model = cast(operator.model(), dtype)
    short = str(dtype).removeprefix("torch.")
    # The optimizer works on float32 copies: in bfloat16 its small steps would be rounded away.
    weights = list(model.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    moments = {"first": 1, "middle": (steps + 1) // 2, "last": steps}

    tensors: dict[str, Tensor] = {}
    losses: dict[str, float] = {}
    for step in range(1, steps + 1):
        handles = [
            keep(model.get_submodule(layer), f"{layer}.step{step}.{short}", tensors)
            for layer, when in operator.layers.items()
            if step in {moments[moment] for moment in when}
        ]
        for master in masters:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for _ in range(PASSES):
            starts = torch.randint(len(text) - LENGTH, (SEQUENCES,))
            tokens = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()]).long()
            loss = functional.cross_entropy(model(tokens[:, :-1]).float(), tokens[:, 1:].flatten()) / PASSES
            loss.backward()
            total += loss.item()
            for weight, master in zip(weights, masters, strict=True):
                master.grad += weight.grad
                weight.grad = None
            for handle in handles:  # the first pass is enough
                handle.remove()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters, strict=True):
                weight.copy_(master)
        if step in moments.values():
            losses[f"step{step}"] = round(total, 3)
        if step in moments.values() or step % max(1, steps // 10) == 0:
            print(f"{short:8}  step {step:4}  loss {total:.3f}", flush=True)
    return tensors, losses


def main() -> None:
    """Train in both dtypes and write one file."""
    parser = argparse.ArgumentParser(description="Capture real inputs of a backward operator from a training run.")
    parser.add_argument("operator", nargs="?", default="rms_norm_grad", choices=sorted(OPERATORS))
    parser.add_argument("--out", type=Path, help="the file to write (default: examples/data/OPERATOR.safetensors)")
    parser.add_argument("--steps", type=int, default=600, help="steps to train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be at least 3: the first, a middle and the last one are kept")
    out = arguments.out or Path(__file__).parent / "data" / f"{arguments.operator}.safetensors"

    torch.set_num_threads(1)  # the tensors are small, and sums come out the same on any machine's number of cores
    topics = pydoc_data.topics.topics
    corpus = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(corpus), dtype=torch.uint8)

    tensors: dict[str, Tensor] = {}
    losses: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        captured, losses[str(dtype).removeprefix("torch.")] = train(
            OPERATORS[arguments.operator], text, dtype, arguments.steps, arguments.seed
        )
        tensors |= captured
    metadata = {
        "operator": arguments.operator,
        "keys": "<layer>.step<step>.<dtype of the training>.<parameter>",
        "source": f"byte-level language model trained on pydoc_data.topics of CPython {platform.python_version()} "
        f"({len(corpus)} bytes)",
        "licence": "text: PSF License Version 2, (c) Python Software Foundation; tensors: Apache-2.0",
        "training": f"{arguments.steps} steps of {PASSES} passes of {SEQUENCES} x {LENGTH} bytes, "
        f"seed {arguments.seed}; tensors of a step's first pass",
        "loss": json.dumps(losses),
        "torch": torch.__version__.split("+")[0],
        "script": "examples/capture_gradients.py",
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out, metadata)
    print(f"{out}: {len(tensors)} tensors, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
