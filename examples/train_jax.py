"""Train a small language model in JAX, with XLA's own norms and softmax and with Descend's, side by side.

    python examples/train_jax.py
    python examples/train_jax.py --dtype bfloat16 --steps 200

The model reads bytes: RMS norm, causal attention whose softmax is written out, gated MLP, in plain JAX. The text is
Python's language reference, as CPython ships it. Both start from the same weights and see the same batches, and take
turns, so that what else the machine does falls on both. Needs the extra `jax` of the package.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping
from pydoc_data import topics
from statistics import median
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import descend.jax
except ModuleNotFoundError as missing:
    raise SystemExit(f'{missing}. What this example needs: pip install "descend[jax]"') from None

LENGTH = 128  # bytes of a sequence
COLUMNS, HEADS, LAYERS = 128, 4, 3
Array = jax.Array
Weights = dict[str, Any]


# --- what is compared ----------------------------------------------------------------------------------------------


class Operators(NamedTuple):
    """What a model is made with: a norm of the last axis, and the softmax of causal attention."""

    norm: Callable[[Array, Array], Array]
    softmax: Callable[[Array, float], Array]


def plain_norm(x: Array, weight: Array) -> Array:
    """RMS norm as it is usually written: in float32, rounded at its end."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def plain_softmax(scores: Array, scale: float) -> Array:
    """Softmax of what may be seen: nothing above the diagonal."""
    masked = jnp.where(jnp.triu(jnp.ones(scores.shape[-2:], bool), 1), -jnp.inf, scale * scores.astype(jnp.float32))
    return jax.nn.softmax(masked, -1).astype(scores.dtype)


XLA = Operators(plain_norm, plain_softmax)
DESCEND = Operators(
    norm=lambda x, weight: descend.jax.rms_norm(x, weight)[0],
    softmax=lambda scores, scale: descend.jax.scaled_masked_softmax(scores, None, scale, fix_triu_mask=True),
)


# --- the model -----------------------------------------------------------------------------------------------------


def initial(seed: int) -> Weights:
    """Random weights; those of the layers are stacked."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return jnp.asarray(0.02 * random.standard_normal(shape), jnp.float32)

    layers = {
        "attention norm": jnp.ones((LAYERS, COLUMNS)),
        "qkv": normal(LAYERS, COLUMNS, 3 * COLUMNS),
        "out": normal(LAYERS, COLUMNS, COLUMNS),
        "mlp norm": jnp.ones((LAYERS, COLUMNS)),
        "gate": normal(LAYERS, COLUMNS, 3 * COLUMNS),
        "up": normal(LAYERS, COLUMNS, 3 * COLUMNS),
        "down": normal(LAYERS, 3 * COLUMNS, COLUMNS),
    }
    return {
        "bytes": normal(256, COLUMNS),
        "places": normal(LENGTH, COLUMNS),
        "layers": layers,
        "norm": jnp.ones(COLUMNS),
        "head": normal(COLUMNS, 256),
    }


def block(operators: Operators, x: Array, layer: Mapping[str, Array]) -> tuple[Array, None]:
    """Attention and MLP, each after a norm and with a residual."""
    h = operators.norm(x, layer["attention norm"])
    q, k, v = jnp.moveaxis((h @ layer["qkv"]).reshape(*h.shape[:2], 3, HEADS, -1), (2, 3), (0, 2))
    seen = operators.softmax(q @ k.mT, (COLUMNS // HEADS) ** -0.5)
    x = x + jnp.moveaxis(seen @ v, 1, 2).reshape(x.shape) @ layer["out"]
    h = operators.norm(x, layer["mlp norm"])
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"], None


def loss(weights: Weights, tokens: Array, operators: Operators, dtype: Any) -> Array:
    """Nats a byte, of predicting each byte from those before it."""
    weights = jax.tree.map(lambda w: w.astype(dtype), weights)
    x = weights["bytes"][tokens[:, :-1]] + weights["places"]
    x, _ = jax.lax.scan(functools.partial(block, operators), x, weights["layers"])
    logits = operators.norm(x, weights["norm"]) @ weights["head"]
    chances = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], -1))


# --- training ------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("operators", "dtype"), donate_argnums=0)
def step(state: Any, tokens: Array, operators: Operators, dtype: Any) -> tuple[Any, Array]:
    """One step of Adam; the weights are float32 whatever the dtype of the arithmetic."""
    weights, first, second, count = state
    value, gradient = jax.value_and_grad(loss)(weights, tokens, operators, dtype)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)

    def update(w: Array, m: Array, v: Array) -> Array:
        return w - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

    return (jax.tree.map(update, weights, first, second), first, second, count), value


def train(
    ways: Mapping[str, Operators], steps: int, batch: int, dtype: Any, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The losses and the seconds of each way's steps."""
    text = np.frombuffer("\n\n".join(topics.topics.values()).encode(), np.uint8).astype(np.int32)
    random = np.random.default_rng(seed)
    states = {}
    for name in ways:
        weights = initial(seed)
        zeros = jax.tree.map(jnp.zeros_like, weights)
        states[name] = (weights, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()))
    losses: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps):
        starts = random.integers(0, len(text) - LENGTH - 1, batch)
        tokens = jnp.stack([jnp.asarray(text[start : start + LENGTH + 1]) for start in starts])
        for name, operators in ways.items():
            begin = time.perf_counter()
            states[name], value = step(states[name], tokens, operators, dtype)
            losses[name].append(float(value))
            seconds[name].append(time.perf_counter() - begin)
    return losses, seconds


def main() -> None:
    """Train both ways and print the losses and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ways = {"XLA": XLA, "Descend": DESCEND}
    losses, seconds = train(ways, options.steps, options.batch, getattr(jnp, options.dtype), options.seed)
    for at in range(0, options.steps, max(1, options.steps // 10)):
        print(f"step {at + 1:4}: " + ", ".join(f"loss {losses[name][at]:.4f} with {name}" for name in ways))
    apart = max(abs(a - b) / a for a, b in zip(*losses.values(), strict=True))
    print(f"the losses differ by at most {apart:.1e} of their value")
    times = {name: 1e3 * median(some[1:] or some) for name, some in seconds.items()}  # the first step is compiled
    print(", ".join(f"{times[name]:.1f} ms a step with {name}" for name in ways))


if __name__ == "__main__":
    main()
