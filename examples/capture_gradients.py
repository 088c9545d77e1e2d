"""Capture the inputs of a backward operator, or of a forward one, while a small network trains.

    python examples/capture_gradients.py                     # writes examples/data/rms_norm_grad.safetensors
    python examples/capture_gradients.py layer_norm_backward --steps 100 --out /tmp/captured.safetensors

Byte-level language models in miniature learn the text of Python's own language reference: a Llama (RMS norm, SwiGLU,
rotary positions), one whose norms have the sums of the residuals in them, a Gemma, a GPT (layer norm, masked softmax,
GELU), a GPT with deep norm, one with compressed attention over packed sequences (NSA). A convolutional network with
group norm and swish, and one with group norm, softmax and log softmax, learn scikit-learn's handwritten digits. Each
trains once in float32 and once with bfloat16 weights and activations. At the first, a middle and the last step the
chosen layers' inputs, statistics and incoming gradients are kept, and what the optimizer's step takes.

Another operator is one more entry in OPERATORS: a layer in layers.py that derives from Captured, a network that uses
it, the data that it learns from, and the layers and steps worth keeping. Needs torch and safetensors; scikit-learn for
the digits.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import pydoc_data.topics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from layers import Captured, CrossEntropy, LogLikelihood
from networks import (
    LENGTH,
    AddingLanguageModel,
    ConvolutionalNetwork,
    DeepGpt,
    DenseNetwork,
    Gemma,
    Gpt,
    LanguageModel,
    SparseLanguageModel,
)
from safetensors.torch import save_file
from torch import Tensor, nn

SEQUENCES = 2  # of a forward and backward pass, LENGTH bytes each: small, so that whole tensors fit into the repository
PACKED = 256  # tokens of a pass over packed sequences
IMAGES = 8  # of a pass
PASSES = 8  # passes whose gradients one step adds up
LEARNING_RATE = 3e-3


Batch = tuple[tuple[Tensor, ...], Tensor]
"""The model's arguments, and the right answer."""


@dataclass(frozen=True)
class Data:
    """What a model learns from; `batch` draws one pass by torch's global generator."""

    source: str
    licence: str
    a_pass: str
    batch: Callable[[], Batch]


def documents() -> list[bytes]:
    """Python's language reference, as CPython ships it."""
    topics = pydoc_data.topics.topics
    return [topics[name].encode() for name in sorted(topics)]


def of_text(source: str, a_pass: str, batch: Callable[[], Batch]) -> Data:
    """Data that is drawn from the documents."""
    size = sum(map(len, documents())) + 2 * (len(documents()) - 1)
    return Data(
        f"{source} trained on pydoc_data.topics of CPython {platform.python_version()} ({size} bytes)",
        "text: PSF License Version 2, (c) Python Software Foundation; tensors: Apache-2.0",
        a_pass,
        batch,
    )


def text() -> Data:
    """Pieces of one long text."""
    corpus = torch.frombuffer(bytearray(b"\n\n".join(documents())), dtype=torch.uint8)

    def batch() -> Batch:
        starts = torch.randint(len(corpus) - LENGTH, (SEQUENCES,))
        tokens = torch.stack([corpus[start : start + LENGTH + 1] for start in starts.tolist()]).long()
        return (tokens[:, :-1],), tokens[:, 1:].flatten()

    return of_text("byte-level language model", f"{SEQUENCES} x {LENGTH} bytes", batch)


def packed_text() -> Data:
    """Sequences of 20 to 119 bytes, each from one document, packed one after the other."""
    texts = [torch.frombuffer(bytearray(d), dtype=torch.uint8) for d in documents() if len(d) > PACKED]

    def batch() -> Batch:
        pieces, ends = [], [0]
        while ends[-1] < PACKED:
            length = min(int(torch.randint(20, 120, ())), PACKED - ends[-1])
            document = texts[int(torch.randint(len(texts), ()))]
            start = int(torch.randint(len(document) - length, ()))
            pieces.append(document[start : start + length + 1].long())
            ends.append(ends[-1] + length)
        inputs, targets = (torch.cat([piece[part] for piece in pieces]) for part in (slice(-1), slice(1, None)))
        return (inputs, torch.tensor(ends[1:])), targets

    return of_text("byte-level language model with sparse attention", f"{PACKED} bytes in packed sequences", batch)


def digits() -> Data:
    """Handwritten digits of 8 x 8 pixels, as scikit-learn ships them."""
    import sklearn
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / 8 - 1
    targets = torch.from_numpy(found.target)

    def batch() -> Batch:
        chosen = torch.randint(len(images), (IMAGES,))
        return (images[chosen],), targets[chosen]

    return Data(
        f"convolutional network trained on load_digits of scikit-learn {sklearn.__version__} ({len(images)} images)",
        "images: Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak), CC BY 4.0; tensors: Apache-2.0",
        f"{IMAGES} images",
        batch,
    )


@dataclass(frozen=True)
class Operator:
    """What to train for an operator, and which tensors to keep."""

    model: Callable[[], nn.Module]
    data: Callable[[], Data]
    layers: dict[str, tuple[str, ...]]
    """Layer, or "loss", or a parameter whose step is kept, to the moments at which it is: first, middle, last."""
    score: Callable[[], nn.Module] = CrossEntropy
    """The loss."""


OPERATORS = {
    "rms_norm_grad": Operator(
        LanguageModel,
        text,
        {
            "blocks.0.attention_norm": ("first", "last"),
            "blocks.1.attention.q_norm": ("middle",),
            "blocks.2.mlp_norm": ("middle",),
            "final_norm": ("first", "middle", "last"),
        },
    ),
    "layer_norm_backward": Operator(
        Gpt,
        text,
        {
            "blocks.0.attention_norm": ("first", "last"),
            "blocks.1.attention_norm": ("middle",),
            "blocks.2.mlp_norm": ("middle",),
            "final_norm": ("first", "middle", "last"),
        },
    ),
    "deep_norm_grad": Operator(
        DeepGpt,
        text,
        {"blocks.0.attention_norm": ("first", "last"), "blocks.2.mlp_norm": ("middle", "last")},
    ),
    "scaled_masked_softmax_backward": Operator(
        Gpt,
        text,
        {
            "blocks.0.attention.softmax": ("first", "last"),
            "blocks.1.attention.softmax": ("middle",),
            "blocks.2.attention.softmax": ("last",),
        },
    ),
    "group_norm_swish_grad": Operator(
        ConvolutionalNetwork,
        digits,
        {"norms.0": ("last",), "norms.1": ("middle", "last"), "norms.2": ("first", "last")},
    ),
    "group_norm_backward": Operator(
        DenseNetwork,
        digits,
        {"norms.0": ("last",), "norms.1": ("middle",), "norms.2": ("first", "last")},
        LogLikelihood,
    ),
    "softmax_backward": Operator(DenseNetwork, digits, {"softmax": ("first", "middle", "last")}, LogLikelihood),
    "log_softmax_backward": Operator(DenseNetwork, digits, {"log_softmax": ("first", "middle", "last")}, LogLikelihood),
    "add_rms_norm": Operator(
        AddingLanguageModel,
        text,
        {"blocks.0.mlp_norm": ("first", "last"), "blocks.2.attention_norm": ("middle",), "final_norm": ("last",)},
    ),
    "gemma_rms_norm": Operator(
        Gemma,
        text,
        {
            "blocks.0.attention_norm": ("first", "last"),
            "blocks.1.mlp_post_norm": ("middle", "last"),
            "final_norm": ("last",),
        },
    ),
    "swi_glu_grad": Operator(
        functools.partial(LanguageModel, 48),
        text,
        {"blocks.0.mlp.swi_glu": ("first",), "blocks.2.mlp.swi_glu": ("middle", "last")},
    ),
    "rotary_position_embedding_grad": Operator(
        LanguageModel,
        text,
        {
            "blocks.0.attention.q_rotary": ("first", "last"),
            "blocks.1.attention.k_rotary": ("middle",),
            "blocks.2.attention.q_rotary": ("last",),
        },
    ),
    "gelu_backward_v2": Operator(
        functools.partial(Gpt, 36), text, {"blocks.0.mlp.1": ("first",), "blocks.2.mlp.1": ("middle", "last")}
    ),
    "cross_entropy_loss_grad": Operator(LanguageModel, text, {"loss": ("first", "last")}),
    "apply_adam_w_v2": Operator(
        LanguageModel,
        text,
        {
            "blocks.0.attention.out.weight": ("first",),
            "blocks.2.mlp_norm.gamma": ("middle", "last"),
            "blocks.2.attention.out.weight": ("middle", "last"),
        },
    ),
    "nsa_compress_grad": Operator(
        SparseLanguageModel,
        packed_text,
        {
            "blocks.0.attention.compress_keys": ("first", "last"),
            "blocks.1.attention.compress_values": ("middle", "last"),
        },
    ),
}


def keep(layer: nn.Module, case: str, into: dict[str, Tensor]) -> torch.utils.hooks.RemovableHandle:
    """Copy the tensors of the layer's forward pass, and the gradient, into `into`, as `<case>.<parameter>`."""
    assert isinstance(layer, Captured)

    def backward(gradient: Tensor) -> None:
        into[f"{case}.{layer.result_gradient}"] = gradient.detach().clone().contiguous()

    def forward(layer: Captured, _arguments: object, result: Any) -> None:
        for name, tensor in layer.saved.items():
            into[f"{case}.{name}"] = tensor.detach().clone().contiguous()
        if layer.result_gradient:
            result.register_hook(backward)

    return layer.register_forward_hook(forward)


def keep_step(optimizer: torch.optim.AdamW, parameter: Tensor, case: str, into: dict[str, Tensor]) -> None:
    """Copy what the optimizer's next step of a parameter takes into `into`, as `<case>.<parameter>`."""
    (group,), state = optimizer.param_groups, optimizer.state[parameter]
    beta1, beta2 = group["betas"]
    tensors = {
        "var": parameter,
        "m": state.get("exp_avg", torch.zeros_like(parameter)),
        "v": state.get("exp_avg_sq", torch.zeros_like(parameter)),
        "grad": parameter.grad,
        "step": torch.as_tensor(state.get("step", 0.0)),
        **{name: torch.tensor(group[name], dtype=torch.float64) for name in ("lr", "weight_decay", "eps")},
        **{name: torch.tensor(beta, dtype=torch.float64) for name, beta in (("beta1", beta1), ("beta2", beta2))},
    }
    into |= {f"{case}.{name}": tensor.clone() for name, tensor in tensors.items()}


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the model to a dtype, except the layers that stay in float32."""
    model.to(dtype)
    for layer in model.modules():
        if isinstance(layer, Captured) and layer.in_float32:
            layer.float()
    return model


def train(
    operator: Operator, data: Data, dtype: torch.dtype, steps: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train a fresh model; return the captured tensors and the loss at the moments of capture."""
    torch.manual_seed(seed)
    model = cast(operator.model(), dtype)
    short = str(dtype).removeprefix("torch.")
    # The optimizer works on float32 copies: in bfloat16 its small steps would be rounded away.
    weights = list(model.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    named = dict(zip(dict(model.named_parameters()), masters, strict=True))
    score = operator.score()
    layers = {**dict(model.named_modules()), "loss": score}
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    moments = {"first": 1, "middle": (steps + 1) // 2, "last": steps}

    tensors: dict[str, Tensor] = {}
    losses: dict[str, float] = {}
    for step in range(1, steps + 1):
        now = {
            name: f"{name}.step{step}.{short}"
            for name, when in operator.layers.items()
            if step in {moments[moment] for moment in when}
        }
        handles = [keep(layers[name], case, tensors) for name, case in now.items() if name in layers]
        for master in masters:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for _ in range(PASSES):
            inputs, targets = data.batch()
            loss = score(model(*inputs), targets) / PASSES
            loss.backward()
            total += loss.item()
            for weight, master in zip(weights, masters, strict=True):
                master.grad += weight.grad
                weight.grad = None
            for handle in handles:  # the first pass is enough
                handle.remove()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        for name in now.keys() & named.keys():
            keep_step(optimizer, named[name], now[name], tensors)
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
    parser = argparse.ArgumentParser(description="Capture real inputs of an operator from a training run.")
    parser.add_argument("operator", nargs="?", default="rms_norm_grad", choices=sorted(OPERATORS))
    parser.add_argument("--out", type=Path, help="the file to write (default: examples/data/OPERATOR.safetensors)")
    parser.add_argument("--steps", type=int, default=600, help="steps to train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be at least 3: the first, a middle and the last one are kept")
    out = arguments.out or Path(__file__).parent / "data" / f"{arguments.operator}.safetensors"

    torch.set_num_threads(1)  # the tensors are small, and sums come out the same on any machine's number of cores
    operator = OPERATORS[arguments.operator]
    data = operator.data()

    tensors: dict[str, Tensor] = {}
    losses: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        captured, losses[str(dtype).removeprefix("torch.")] = train(
            operator, data, dtype, arguments.steps, arguments.seed
        )
        tensors |= captured
    metadata = {
        "operator": arguments.operator,
        "keys": "<layer>.step<step>.<dtype of the training>.<parameter>",
        "source": data.source,
        "licence": data.licence,
        "training": f"{arguments.steps} steps of {PASSES} passes of {data.a_pass}, "
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
