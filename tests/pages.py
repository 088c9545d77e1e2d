"""The pages of Huawei's documents, transcribed by hand: what the engine's tables are compared with.

An operator's entry has its C name, its products besides ``host``, the parameters of its first phase in their order, and
the signature of its functional form in Python. A name alone is an input, ``name>`` an output (``aclTensor *``),
``name>const`` one that is declared as ``const aclTensor *``, ``name:kind`` an attribute, ``name&`` what
C reads and writes and Python has as an input, and at the end as an output; ? marks what may be null.
"""

from __future__ import annotations

from typing import NamedTuple

from cases import A2_TO_950

WITH_INFERENCE = (*A2_TO_950, "atlas-inference")


class Page(NamedTuple):
    """One operator's page."""

    c_name: str
    products: tuple[str, ...]
    parameters: str
    python: str
    keywords: frozenset[str] = frozenset()
    """Of the Python form, in any order."""


def is_gradient(name: str) -> bool:
    """Whether the operator of this Python name is a gradient, or comes after it: what is no forward."""
    return "_grad" in name or "_backward" in name or name.startswith("apply_")


_GROUPS = "numGroups:int dataFormatOptional:str?"
_WINDOWS = "compressBlockSize:int compressStride:int actSeqLenType:int"
_LAYER_NORM = (
    "input normalizedShape:int_array weightOptional? biasOptional? eps:float out> meanOutOptional>? rstdOutOptional>?"
)
_CROSS_ENTROPY = "reductionOptional:str? ignoreIndex:int labelSmoothing:float lseSquareScaleForZloss:float"
_NSA = frozenset({"compress_block_size", "compress_stride", "act_seq_len_type=0", "layout='TND'"})
PAGES = {
    "add_rms_norm": Page(
        "aclnnAddRmsNorm",
        WITH_INFERENCE,
        "x1 x2 gamma epsilon:float yOut> rstdOut>? xOut>?",
        "x1, x2, gamma, epsilon=1e-06",
    ),
    "cross_entropy_loss": Page(
        "aclnnCrossEntropyLoss",
        A2_TO_950,
        f"input target weightOptional? {_CROSS_ENTROPY} returnZloss:bool "
        "lossOut>const logProbOut>const? zlossOut>const? lseForZlossOut>const?",
        "input, target, weight=None, reduction='mean', ignore_index=-100, label_smoothing=0.0, "
        "lse_square_scale_for_zloss=0.0, return_zloss=False",
    ),
    "cross_entropy_loss_grad": Page(
        "aclnnCrossEntropyLossGrad",
        A2_TO_950,
        f"gradLoss logProb target weightOptional? gradZlossOptional? lseForZlossOptional? {_CROSS_ENTROPY} out>const",
        "grad_loss, log_prob, target, weight=None, grad_zloss=None, lse_for_zloss=None, reduction='mean', "
        "ignore_index=-100, label_smoothing=0.0, lse_square_scale_for_zloss=0.0",
    ),
    "add_layer_norm": Page(
        "aclnnAddLayerNorm",
        WITH_INFERENCE,
        "x1 x2 gamma beta biasOptional? epsilon:float additionalOutput:bool yOut>const meanOut>const rstdOut>const "
        "xOut>const?",
        "x1, x2, gamma, beta, bias=None, epsilon=1e-05, additional_output=False",
    ),
    "add_layer_norm_grad": Page(
        "aclnnAddLayerNormGrad",
        WITH_INFERENCE,
        "dy x1 x2? rstd mean gamma dsumOptional? dxOut>const dgammaOut>const dbetaOut>const",
        "dy, x1, x2, rstd, mean, gamma, dsum=None",
    ),
    "deep_norm": Page(
        "aclnnDeepNorm",
        WITH_INFERENCE,
        "x gx beta gamma alpha:float epsilon:float meanOut>const rstdOut>const yOut>const",
        "x, gx, beta, gamma, alpha=0.3, epsilon=1e-06",
    ),
    "apply_adam_w_v2": Page(
        "aclnnApplyAdamWV2",
        A2_TO_950,
        "varRef& mRef& vRef& maxGradNormOptionalRef&? grad step lr:float32 beta1:float32 beta2:float32 "
        "weightDecay:float32 eps:float32 amsgrad:bool maximize:bool",
        "var, m, v, max_grad_norm, grad, step, lr=0.001, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-08, "
        "amsgrad=False, maximize=False",
    ),
    "deep_norm_grad": Page(
        "aclnnDeepNormGrad",
        ("atlas-a3", "atlas-a2-training", "atlas-inference", "ascend-950"),
        "dy x gx gamma mean rstd alpha:float dxOut>const dgxOut>const dbetaOut>const dgammaOut>const",
        "dy, x, gx, gamma, mean, rstd, alpha=0.3",
    ),
    "gelu_v2": Page("aclnnGeluV2", (*WITH_INFERENCE, "atlas-training"), "x approximate:int y>", "x, approximate=0"),
    "gelu_backward_v2": Page(
        "aclnnGeluBackwardV2",
        (*WITH_INFERENCE, "atlas-training"),
        "gradOutput self approximate:str gradInput>",
        "grad_output, x, approximate='none'",
    ),
    "gemma_rms_norm": Page(
        "aclnnGemmaRmsNorm",
        A2_TO_950,
        "x gamma epsilon:float yOut>const rstdOut>const",
        "x, gamma, epsilon=1e-06",
    ),
    "rms_norm_grad": Page(
        "aclnnRmsNormGrad",
        WITH_INFERENCE,
        "dy x rstd gamma dxOut>const dgammaOut>const",
        "dy, x, rstd, gamma",
    ),
    "rms_norm": Page(
        "aclnnRmsNorm",
        WITH_INFERENCE,
        "x gamma epsilon:float yOut>const rstdOut>const",
        "x, gamma, epsilon=1e-06",
    ),
    "layer_norm_backward": Page(
        "aclnnLayerNormBackward",
        (*WITH_INFERENCE, "atlas-training"),
        "gradOut input normalizedShape:int_array mean rstd weightOptional? biasOptional? outputMask:bool_array "
        "gradInputOut>? gradWeightOut>? gradBiasOut>?",
        "grad_out, input, normalized_shape, mean, rstd, weight=None, bias=None, output_mask=(True, True, True)",
    ),
    "layer_norm": Page(
        "aclnnLayerNorm",
        (*WITH_INFERENCE, "atlas-training"),
        _LAYER_NORM,
        "input, normalized_shape, weight=None, bias=None, eps=1e-05",
    ),
    "group_norm_swish_grad": Page(
        "aclnnGroupNormSwishGrad",
        A2_TO_950,
        f"dy mean rstd x gamma beta {_GROUPS} swishScale:float dgammaIsRequire:bool dbetaIsRequire:bool "
        "dxOut>const dgammaOut>const dbetaOut>const",
        "dy, mean, rstd, x, gamma, beta, num_groups, data_format='NCHW', swish_scale=1.0, dgamma_is_require=True, "
        "dbeta_is_require=True",
    ),
    "group_norm_swish": Page(
        "aclnnGroupNormSwish",
        A2_TO_950,
        f"x gamma beta {_GROUPS} eps:float activateSwish:bool swishScale:float yOut>const meanOut>const rstdOut>const",
        "x, gamma, beta, num_groups, data_format='NCHW', eps=1e-05, activate_swish=True, swish_scale=1.0",
    ),
    "group_norm": Page(
        "aclnnGroupNorm",
        (*WITH_INFERENCE, "atlas-training"),
        "self gamma? beta? N:int C:int HxW:int group:int eps:float out> meanOut> rstdOut>",
        "input, gamma, beta, n, c, hxw, group, eps=1e-05",
    ),
    "group_norm_backward": Page(
        "aclnnGroupNormBackward",
        (*A2_TO_950, "atlas-training"),
        "gradOut input mean rstd gamma? N:int C:int HxW:int group:int outputMask:bool_array "
        "gradInput>? gradGammaOut>? gradBetaOut>?",
        "grad_out, input, mean, rstd, gamma, n, c, hxw, group, output_mask=(True, True, True)",
    ),
    "group_norm_silu": Page(
        "aclnnGroupNormSilu",
        WITH_INFERENCE,
        "self gamma? beta? group:int eps:float out> meanOut> rstdOut>",
        "input, gamma, beta, group, eps=1e-05",
    ),
    "rotary_position_embedding": Page(
        "aclnnRotaryPositionEmbedding",
        A2_TO_950,
        "x cos sin mode:int out>",
        "x, cos, sin, mode=0",
    ),
    "rotary_position_embedding_grad": Page(
        "aclnnRotaryPositionEmbeddingGrad",
        A2_TO_950,
        "dy cos sin xOptional? mode:int dxOut>const dcosOut>const dsinOut>const",
        "dy, cos, sin, x=None, mode=0",
    ),
    "scaled_masked_softmax_backward": Page(
        "aclnnScaledMaskedSoftmaxBackward",
        A2_TO_950,
        "gradOutput y mask? scale:float fixTriuMask:bool out>",
        "grad_output, y, mask, scale=1.0, fix_triu_mask=False",
    ),
    "scaled_masked_softmax": Page(
        "aclnnScaledMaskedSoftmax",
        A2_TO_950,
        "x mask? scale:float fixTriuMask:bool y>",
        "x, mask, scale=1.0, fix_triu_mask=False",
    ),
    "softmax": Page(
        "aclnnSoftmax",
        (*WITH_INFERENCE, "atlas-training", "atlas-200i-500-a2"),
        "self dim:int out>",
        "x, dim=-1",
    ),
    "softmax_backward": Page(
        "aclnnSoftmaxBackward",
        (*WITH_INFERENCE, "atlas-training"),
        "gradOutput output dim:int out>",
        "grad_output, output, dim=-1",
    ),
    "log_softmax": Page("aclnnLogSoftmax", (*WITH_INFERENCE, "atlas-training"), "self dim:int out>", "x, dim=-1"),
    "log_softmax_backward": Page(
        "aclnnLogSoftmaxBackward",
        (*WITH_INFERENCE, "atlas-training"),
        "gradOutput output dim:int out>",
        "grad_output, output, dim=-1",
    ),
    "swi_glu": Page("aclnnSwiGlu", WITH_INFERENCE, "x dim:int out>const", "x, dim=-1"),
    "swi_glu_grad": Page("aclnnSwiGluGrad", WITH_INFERENCE, "yGrad x dim:int out>const", "y_grad, x, dim=-1"),
    "nsa_compress_grad": Page(
        "aclnnNsaCompressGrad",
        ("atlas-a2-training",),
        f"outputGrad input weight actSeqLenOptional:int_array? {_WINDOWS} layoutOptional:str? "
        "inputGrad>const weightGrad>const",
        "output_grad, input, weight, act_seq_len=None",
        _NSA,
    ),
    "nsa_compress": Page(
        "aclnnNsaCompress",
        ("atlas-a2-training",),
        f"input weight actSeqLenOptional:int_array? layoutOptional:str? {_WINDOWS} output>",
        "input, weight, act_seq_len=None",
        _NSA,
    ),
}
# Operators that a layer does not have yet, as docs/operators/ says of each.
MISSING: dict[str, set[str]] = {"jax": set(), "triton": set(), "benchmarks": set(), "accuracy": set()}
HAVE_DOUBLE = {"softmax", "softmax_backward", "log_softmax", "log_softmax_backward"}
"""Operators whose pages have DOUBLE, be it for a result."""
# C functions in the headers of these, which Python does not have.
VARIANTS = {
    "aclnnApplyAdamW": (
        "varRef& mRef& vRef& beta1Power beta2Power lr weightDecay beta1 beta2 eps grad maxGradNormOptional? "
        "amsgrad:bool maximize:bool"
    ),
    "aclnnGelu": "self out>",
    "aclnnGeluBackward": "gradOutput self gradInput>const",
    "aclnnGroupNormSiluV2": "self gamma? beta? group:int eps:float activateSilu:bool out> meanOut> rstdOut>",
    "aclnnInplaceAddRmsNorm": "x1Ref> x2Ref> gamma epsilon:float rstdOut>const",
    "aclnnLayerNormWithImplMode": f"{_LAYER_NORM} implMode:int32",
    "aclnnFastLayerNorm": _LAYER_NORM,
}

VARIANT_HEADERS = {
    *("apply_adam_w", "gelu", "gelu_backward", "inplace_add_rms_norm", "logsoftmax", "logsoftmax_backward")
}
"""Headers of another name than the operator's: of some of them, and as CANN names two."""

_C_TYPES = {
    "int": "int64_t",
    "int32": "int32_t",
    "float": "double",
    "float32": "float",
    "bool": "bool",
    "str": "char *",
    "int_array": "const aclIntArray *",
    "bool_array": "const aclBoolArray *",
}


class Parameter(NamedTuple):
    """One parameter of a page; none of C's where it has no type there."""

    name: str
    kind: str
    role: str
    optional: bool
    c_type: str


def parameters(text: str) -> list[Parameter]:
    """The parameters of a line."""
    made, again = [], []
    for word in text.split():
        name, _, kind = word.rstrip("?").partition(":")
        name, output, const = name.partition(">")
        name, both, _ = name.partition("&")
        role = "attribute" if kind else "output" if output else "input"
        written = (output and not const) or both
        c_type = _C_TYPES[kind] if kind else "aclTensor *" if written else "const aclTensor *"
        made.append(Parameter(name, kind.removesuffix("32") or "tensor", role, word.endswith("?"), c_type))
        if both:
            again.append(made[-1]._replace(role="output", c_type=""))
    return made + again


def c_signatures() -> list[str]:
    """The declarations of all operators' C functions."""
    lines = []
    for name, text in ({page.c_name: page.parameters for page in PAGES.values()} | VARIANTS).items():
        given = ", ".join(p.c_type for p in parameters(text) if p.c_type)
        lines.append(f"aclnnStatus {name}GetWorkspaceSize({given}, uint64_t *, aclOpExecutor **)")
        lines.append(f"aclnnStatus {name}(void *, uint64_t, aclOpExecutor *, aclrtStream)")
    return lines
