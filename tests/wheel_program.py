"""A digest of each operator's results, from an installed wheel: needs nothing but what the wheel needs.

./dev aarch64 runs it here and under emulation, and compares what it prints.
"""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np

import descend


def numbers(shape: tuple[int, ...], seed: int, dtype: type) -> np.ndarray:
    """Multiples of 1/512 between -2 and 2, which every dtype here and every machine makes the same."""
    return (np.random.default_rng(seed).integers(-1024, 1024, shape) / 512).astype(dtype)


def results(dtype: type) -> dict[str, tuple[np.ndarray, ...]]:
    """The results of the operators."""
    x, dy, gamma, beta = (numbers(s, i, dtype) for i, s in enumerate([(6, 40), (6, 40), (40,), (40,)]))
    image, dimage = numbers((2, 8, 5, 7), 4, dtype), numbers((2, 8, 5, 7), 5, dtype)
    tokens, weight = numbers((64, 4, 16), 6, dtype), numbers((16, 4), 7, dtype)
    scores, mask = numbers((2, 3, 8, 24), 8, dtype), numbers((2, 1, 8, 24), 9, np.float32) > 1
    blocks = {"compress_block_size": 16, "compress_stride": 8, "act_seq_len": [40, 64]}

    normed, rms_rstd = descend.rms_norm(x, gamma)
    layered, mean, rstd = descend.layer_norm(x, 40, gamma, beta)
    swished, image_mean, image_rstd = descend.group_norm_swish(image, gamma[:8], beta[:8], 4)
    y = descend.scaled_masked_softmax(scores, mask, 0.5)
    compressed = descend.nsa_compress(tokens, weight, **blocks)
    return {
        "rms_norm": (normed, rms_rstd),
        "add_rms_norm": descend.add_rms_norm(x, dy, gamma),
        "gemma_rms_norm": descend.gemma_rms_norm(x, gamma),
        "rms_norm_grad": descend.rms_norm_grad(dy, x, rms_rstd, gamma),
        "layer_norm": (layered, mean, rstd),
        "layer_norm_backward": descend.layer_norm_backward(dy, x, 40, mean, rstd, gamma, beta),
        "group_norm_swish": (swished, image_mean, image_rstd),
        "group_norm_swish_grad": descend.group_norm_swish_grad(
            dimage, image_mean, image_rstd, image, gamma[:8], beta[:8], 4
        ),
        "scaled_masked_softmax": (y,),
        "scaled_masked_softmax_backward": (descend.scaled_masked_softmax_backward(scores, y, mask, 0.5),),
        "nsa_compress": (compressed,),
        "nsa_compress_grad": descend.nsa_compress_grad(compressed, tokens, weight, **blocks),
    }


def main() -> None:
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        for name, arrays in results(dtype).items():
            digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
            print(f"{name} {np.dtype(dtype).name} {digest}")


if __name__ == "__main__":
    main()
