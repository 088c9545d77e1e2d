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
        return results


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
                    if re.match(r"Functional\.layer|Torch\.|NPU\.", tensor.name):  # the rest is only named in dump.json
                        archive.write(tensor, tensor.relative_to(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
