"""Makes tests/data/msprobe.zip: a training step that the real msprobe dumped, of torch_npu on Descend.

It needs msprobe, which the tests do not: ``pip install mindstudio-probe``. By hand::

    descend npu tools/msprobe_dump.py tests/data/msprobe.zip
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_npu
from msprobe.pytorch import PrecisionDebugger

DEVICE = "npu:0"
_KEPT = re.compile(r"Functional\.|Torch\.|NPU\.|Tensor\.(log_)?softmax")
"""What the archive has tensors of. All other calls are only named, in dump.json."""


class Network(torch.nn.Module):
    """One call of every function that msprobe dumps and Descend computes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.gamma, self.beta = (torch.nn.Parameter(torch.rand(n)) for n in (16, 4))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The results of these calls."""
        y = self.norm(x)
        results = [y, F.layer_norm(y, (16,)), torch.layer_norm(y, (16,), self.gamma, None, 1e-3)]
        results.append(torch.native_layer_norm(y + 1, (16,), self.gamma, self.gamma, 1e-3)[0])
        results.append(torch_npu.npu_rms_norm(y, self.gamma, epsilon=1e-3)[0])
        scores, image = (
            torch.randn(*shape, device=DEVICE, dtype=x.dtype, requires_grad=True)
            for shape in ((1, 1, 4, 32), (1, 4, 2, 8))
        )
        mask = torch.rand(1, 1, 4, 32, device=DEVICE) > 0.5
        results.append(torch_npu.npu_scaled_masked_softmax(scores, mask, 0.5, False))
        results.append(torch_npu.npu_group_norm_swish(image, 2, self.beta, self.beta, eps=1e-4, swish_scale=0.7)[0])
        results.append(torch_npu.npu_group_norm_silu(image, self.beta, self.beta, 2, 1e-4)[0])
        return [*results, *self._norms(y, image), *self._softmaxes(scores), *self._activations(y)]

    def _norms(self, y: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        """The results that have a gradient in torch_npu, of these npu_add_layer_norm's sum. Others are only called."""
        torch_npu.npu_add_rms_norm(y, y * 2, self.gamma, 1e-3)
        torch_npu.npu_gemma_rms_norm(y, self.gamma, 1e-3)
        torch_npu.npu_deep_norm(y, y * 2, self.gamma, self.gamma, 0.5, 1e-3)
        added = torch_npu.npu_add_layer_norm(y, y * 2, self.gamma, self.gamma, 1e-3, True)
        alone = torch_npu.npu_add_layer_norm(y, y * 2, self.gamma, self.gamma)
        groups = F.group_norm(image, 2, self.beta, self.beta, 1e-3)
        return [added[0], added[3], alone[0], groups, torch.native_group_norm(image, None, None, 1, 4, 16, 2, 1e-3)[0]]

    def _softmaxes(self, scores: torch.Tensor) -> list[torch.Tensor]:
        """Softmaxes, and losses of classes."""
        results = [F.softmax(scores, 2), torch.softmax(scores, -1), scores.softmax(3), F.log_softmax(scores, -1)]
        results += [torch.log_softmax(scores, 2), scores.log_softmax(-1)]
        logits, classes = scores[0, 0], torch.tensor([3, 31, -100, 0], device=DEVICE)
        results.append(F.cross_entropy(logits, classes, label_smoothing=0.1))
        return [*results, torch_npu.npu_cross_entropy_loss(logits * 2, classes, reduction="none")[0]]

    def _activations(self, y: torch.Tensor) -> list[torch.Tensor]:
        """Activations, the rotation of positions, and a step of the optimizer."""
        cos, sin = (function(torch.rand(1, 4, 16, device=DEVICE)).to(y.dtype) for function in (torch.cos, torch.sin))
        out = [torch.rand(5, device=DEVICE) for _ in range(3)]
        torch_npu.npu_apply_adam_w(0.81, 0.998, 0.01, 0.1, 0.9, 0.999, 1e-8, out[2] - 0.5, None, False, False, out=out)
        turned = torch_npu.npu_rotary_mul(y[None], cos[None], sin[None], "interleave")
        return [
            F.gelu(y),
            torch_npu.npu_gelu(y),
            torch_npu.npu_gelu(y, approximate="tanh"),
            turned,
            torch_npu.npu_swiglu(y),
        ]


def main(target: Path) -> None:
    """Trains a step of float32 and one of bfloat16, and packs what was dumped."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config: dict[str, Any] = {"task": "tensor", "dump_path": name, "rank": [], "step": [], "level": "mix"}
        (folder / "config.json").write_text(json.dumps({**config, "tensor": {"list": [], "data_mode": ["all"]}}))
        debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
        for dtype in (torch.float32, torch.bfloat16):
            network = Network().to(DEVICE, dtype)
            debugger.start(model=network)
            results = network(torch.randn(2, 4, 16, device=DEVICE, dtype=dtype, requires_grad=True))
            sum((y * torch.randn_like(y)).sum() for y in results).backward()
            debugger.stop()
            debugger.step()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.glob("step*/*/dump.json")):
                text = file.read_text().replace(name, "")
                archive.writestr(str(file.relative_to(folder)), text)
                for tensor in sorted(file.parent.glob("dump_tensor_data/*.pt")):
                    if _KEPT.match(tensor.name):
                        archive.write(tensor, tensor.relative_to(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
