"""The functions of aclnn that C++ extensions of torch_npu call, and that are composed of PyTorch's operators here.

`FUNCTIONS` is the table. The C headers and functions are written from it (``python -m tools.generate``), and
`descend.npu.composer` computes by it. Signatures are those of CANN's headers, of which each ends with workspaceSize and
executor.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PACKAGE = "descend.npu.composed"
C_TYPES = {
    "tensor": "const aclTensor*",
    "tensors": "const aclTensorList*",
    "integers": "const aclIntArray*",
    "int": "int64_t",
    "int32": "int32_t",
    "float": "double",
    "float32": "float",
    "bool": "bool",
    "text": "char*",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter, such as ``tensor groupListOptional``."""

    kind: str
    """A key of `C_TYPES`."""
    name: str
    """CANN's name. One that ends with Optional may be null."""
    keyword: str
    """Its name in Python."""
    is_out: bool
    is_written: bool
    """Whether it is an output, or changed in place."""

    @property
    def is_optional(self) -> bool:
        """Whether it may be null."""
        return self.name.endswith("Optional")


@dataclass(frozen=True)
class Function:
    """A function of aclnn, by both phases."""

    name: str
    header: str
    """HEADER in aclnnop/aclnn_HEADER.h."""
    signature: str
    """Parameters with commas between: ``out`` before those that are written, ``inout`` before those that are changed in
    place, and after = the name in Python if that does not follow from CANN's."""
    computed_by: str
    """FOLDER.MODULE.FUNCTION of `PACKAGE`: it takes what is read by keyword, and returns what is written, in order."""
    checked_by: str = ""
    """As `computed_by`: it takes all arguments and refuses what cannot be computed. Tensors have no memory there."""

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in CANN's order."""
        return tuple(map(_parameter, self.signature.split(",")))

    def compute(self) -> Callable[..., Any]:
        """The function that computes it."""
        return _find(self.computed_by)

    def check(self) -> Callable[..., Any]:
        """The function that checks a call before it is computed."""
        return _find(self.checked_by) if self.checked_by else lambda **_: None


def _parameter(text: str) -> Parameter:
    words, _, keyword = text.strip().partition("=")
    *role, kind, name = words.split()
    snake = re.sub("([a-z0-9])([A-Z])", r"\1_\2", name.removesuffix("Optional")).lower()
    return Parameter(kind, name, keyword or snake, role == ["out"], bool(role))


def _find(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    return found


_WEIGHTS = (
    "tensors x, tensors weight, tensors biasOptional, tensors scaleOptional, tensors offsetOptional, "
    "tensors antiquantScaleOptional, tensors antiquantOffsetOptional"
)
_ACTIVATIONS = (
    "tensors perTokenScaleOptional, tensor groupListOptional, tensors activationInputOptional, "
    "tensors activationQuantScaleOptional, tensors activationQuantOffsetOptional, int splitItem, int groupType, "
    "int groupListType, int actType"
)
_GROUPED_OUT = "out tensors out, out tensors activationFeatureOutOptional, out tensors dynQuantScaleOutOptional"

_MASKS = "tensor dropMaskOptional=dropout_mask, tensor paddingMaskOptional, tensor attenMaskOptional"
_SHIFTED = f"tensor realShiftOptional=pse, {_MASKS}, integers prefixOptional"
_FORWARD = f"tensor query, tensor key, tensor value, {_SHIFTED}"
_FROM_DY = (
    f"tensor dy, tensor pseShiftOptional=pse, {_MASKS}, tensor softmaxMaxOptional, tensor softmaxSumOptional, "
    "tensor softmaxInOptional, tensor attentionInOptional, integers prefixOptional"
)
_BACKWARD = f"tensor query, tensor keyIn=key, tensor value, {_FROM_DY}"
_ENDS = "integers actualSeqQLenOptional=actual_seq_qlen, integers actualSeqKvLenOptional=actual_seq_kvlen"
_STARTS = "integers qStartIdxOptional, integers kvStartIdxOptional"
_ATTRIBUTES = (
    "float scaleValue, float keepProb, int preTokens, int nextTokens, int headNum, text inputLayout, int innerPrecise, "
    "int sparseMode"
)
_ATTENTION = "out tensor softmaxMaxOut, out tensor softmaxSumOut, out tensor softmaxOutOut, out tensor attentionOutOut"
_GRADIENTS = "out tensor dqOut, out tensor dkOut, out tensor dvOut, out tensor dpseOut"


def _attention(name: str, header: str, first: str, ends: str, starts: str, last: str, computed_by: str) -> Function:
    parts = (first, ends, starts, _ATTRIBUTES, "int pseType" if starts else "", last)
    return Function(name, header, ", ".join(filter(None, parts)), f"attention.fusion_attention.{computed_by}")


def _grouped(version: str, signature: str, computed_by: str = "npu_grouped_matmul") -> Function:
    name, header = f"aclnnGroupedMatmul{version}", f"grouped_matmul_{version.lower()}".removesuffix("_")
    module = "products.grouped_matmul"
    return Function(name, header, signature, f"{module}.{computed_by}", f"{module}.check_call")


_TABLE = (
    _grouped("", f"{_WEIGHTS}, integers groupListOptional, int splitItem, out tensors y=out", "of_numbers"),
    _grouped(
        "V2",
        f"{_WEIGHTS}, integers groupListOptional, int splitItem, int groupType, out tensors y=out",
        "of_numbers",
    ),
    _grouped("V3", f"{_WEIGHTS}, tensor groupListOptional, int splitItem, int groupType, out tensors y=out"),
    _grouped("V4", f"{_WEIGHTS}, {_ACTIVATIONS}, {_GROUPED_OUT}"),
    _grouped("V5", f"{_WEIGHTS}, {_ACTIVATIONS}, integers tuningConfigOptional, {_GROUPED_OUT}"),
    Function(
        "aclnnMoeTokenPermute",
        "moe_token_permute",
        "tensor tokens, tensor indices, int numOutTokens, bool paddedMode, out tensor permuteTokensOut, "
        "out tensor sortedIndicesOut",
        "experts.permute.npu_moe_token_permute",
    ),
    Function(
        "aclnnMoeTokenPermuteGrad",
        "moe_token_permute_grad",
        "tensor permutedOutputGrad, tensor sortedIndices, int numTopk, bool paddedMode, out tensor out",
        "experts.permute.permute_grad_of_topk",
    ),
    Function(
        "aclnnMoeTokenUnpermute",
        "moe_token_unpermute",
        "tensor permutedTokens, tensor sortedIndices, tensor probsOptional, bool paddedMode, "
        "integers restoreShapeOptional, out tensor out",
        "experts.permute.npu_moe_token_unpermute",
    ),
    Function(
        "aclnnMoeTokenUnpermuteGrad",
        "moe_token_unpermute_grad",
        "tensor permuteTokens=permuted_tokens, tensor unpermutedTokensGrad=grad_unpermuted_tokens, "
        "tensor sortedIndices, tensor probsOptional, bool paddedMode, integers restoreShapeOptional, "
        "out tensor permutedTokensGradOut, out tensor probsGradOut",
        "experts.permute.npu_moe_token_unpermute_grad",
    ),
    Function(
        "aclnnRingAttentionUpdate",
        "ring_attention_update",
        "tensor prevAttnOut, tensor prevSoftmaxMax, tensor prevSoftmaxSum, tensor curAttnOut, tensor curSoftmaxMax, "
        "tensor curSoftmaxSum, tensor actualSeqQlenOptional, text inputLayout, out tensor attnOut, "
        "out tensor softmaxMax, out tensor softmaxSum",
        "attention.pieces.npu_ring_attention_update",
    ),
    _attention("aclnnFlashAttentionScore", "flash_attention_score", _FORWARD, "", "", _ATTENTION, "score"),
    _attention(
        "aclnnFlashAttentionScoreV2", "flash_attention_score", _FORWARD, "", _STARTS, _ATTENTION, "score",
    ),
    _attention(
        "aclnnFlashAttentionVarLenScore", "flash_attention_score", _FORWARD, _ENDS, "", _ATTENTION, "score",
    ),
    _attention(
        "aclnnFlashAttentionVarLenScoreV2", "flash_attention_score", _FORWARD, _ENDS, _STARTS, _ATTENTION, "score",
    ),
    _attention(
        "aclnnFlashAttentionVarLenScoreV3", "flash_attention_score",
        f"tensor query, tensor queryRope, tensor key, tensor keyRope, tensor value, {_SHIFTED}", _ENDS, _STARTS,
        _ATTENTION, "score",
    ),
    _attention(
        "aclnnFlashAttentionVarLenScoreV4", "flash_attention_score", _FORWARD, _ENDS, "",
        f"text softmaxOutLayout=softmax_layout, {_ATTENTION}", "score",
    ),
    _attention(
        "aclnnFlashAttentionScoreGrad", "flash_attention_score_grad", _BACKWARD, "", "", _GRADIENTS, "score_grad",
    ),
    _attention(
        "aclnnFlashAttentionScoreGradV2", "flash_attention_score_grad", _BACKWARD, "", _STARTS, _GRADIENTS,
        "score_grad",
    ),
    _attention(
        "aclnnFlashAttentionUnpaddingScoreGrad", "flash_attention_score_grad", _BACKWARD, _ENDS, "", _GRADIENTS,
        "score_grad",
    ),
    _attention(
        "aclnnFlashAttentionUnpaddingScoreGradV2", "flash_attention_score_grad", _BACKWARD, _ENDS, _STARTS, _GRADIENTS,
        "score_grad",
    ),
    _attention(
        "aclnnFlashAttentionUnpaddingScoreGradV3", "flash_attention_score_grad",
        "tensor query, tensor queryRope, tensor keyIn=key, tensor keyInRope=key_rope, tensor value, " + _FROM_DY, _ENDS,
        _STARTS, "out tensor dqOut, out tensor dqRopeOut, out tensor dkOut, out tensor dkRopeOut, "
        "out tensor dvOut, out tensor dpseOut", "rope_grad",
    ),
    _attention(
        "aclnnFlashAttentionUnpaddingScoreGradV4", "flash_attention_score_grad", _BACKWARD, _ENDS, "",
        f"{_GRADIENTS}, text softmaxInLayout=softmax_layout", "score_grad",
    ),
    Function(
        "aclnnApplyFusedEmaAdam",
        "apply_fused_ema_adam",
        "tensor grad, inout tensor var, inout tensor m, inout tensor v, inout tensor s, tensor step, float lr, "
        "float emaDecay, float beta1, float beta2, float eps, int mode, bool biasCorrection, float weightDecay",
        "training.optimizer.apply_fused_ema_adam",
    ),
    Function(
        "aclnnSilentCheck",
        "silent_check",
        "tensor val, inout tensor inputGradRef=input_grad, inout tensor sfdaRef=sfda, inout tensor stepRef=step, "
        "int32 cMinSteps, float32 cThreshL1=c_thresh_l1, float32 cCoeffL1=c_coeff_l1, float32 cThreshL2=c_thresh_l2, "
        "float32 cCoeffL2=c_coeff_l2, int32 npuAsdDetect, out tensor result",
        "training.silent_check._npu_silent_check_v2",
    ),
)  # fmt: skip

FUNCTIONS = {function.name: function for function in _TABLE}
"""By name."""
