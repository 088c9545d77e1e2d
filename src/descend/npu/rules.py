"""Which kernel computes which of PyTorch's operators on device npu, and which operators are special.

Both forms of the kernels follow it: ``descend._npu`` in C++ (native/npu), and `descend.npu.boxed` in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch._C import _dispatch_get_all_op_names
from torch._C import _dispatch_has_computed_kernel_for_dispatch_key as _has_computed
from torch._C import _dispatch_has_kernel_for_dispatch_key as _has

STAYS = frozenset(
    {
        # They change storages and torch_npu's descriptions of them.
        *("set_", "record_stream", "_lazy_clone", "_has_compatible_shallow_copy_type"),
        # They are about pinned memory.
        *("is_pinned", "_pin_memory"),
        # They call Descend's own aclnn functions, or, the last, npu_fusion_attention_v3.
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("gelu", "gelu_", "gelu_backward", "_softmax", "_log_softmax"),
        "scaled_dot_product_attention",
    }
)
"""Operators that stay torch_npu's."""
UNSIZED = frozenset({"aten::_softmax.out"})
"""Forms of these that are the CPU's all the same: torch_npu's do not give the result its size."""
SPARSE_STAYS = frozenset(
    {
        *("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
        *("_sparse_compressed_tensor_with_dims", "_indices", "_values", "indices", "values", "_nnz"),
        *("sparse_dim", "dense_dim", "_dimI", "_dimV", "is_coalesced", "_coalesced_", "sparse_resize_"),
        *("sparse_resize_and_clear_", "resize_as_sparse_"),
        *("crow_indices", "col_indices", "ccol_indices", "row_indices"),
    }
)
"""Operators that make a sparse tensor or read its parts: all other sparse operators are built on them."""
MIXING = frozenset(
    {
        *("aten::copy_", "aten::_copy_from", "aten::_foreach_copy_", "aten::_has_compatible_shallow_copy_type"),
        *("aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward", "aten::_pad_packed_sequence"),
        *("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::_ctc_loss", "aten::_ctc_loss_backward"),
        *("aten::histogramdd", "aten::_assert_async"),
        *("npu::npu_fusion_attention_v3", "npu::npu_fusion_attention_grad_v3"),
        *("aten::_foreach_addcdiv", "aten::_foreach_addcdiv_", "aten::_foreach_addcmul", "aten::_foreach_addcmul_"),
    }
)
"""Operators that take CPU tensors beside those of a device, as they do with CUDA."""
INDEXING = frozenset(
    {
        *("aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
        *("aten::_unsafe_index_put", "aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate"),
    }
)
"""Operators whose indices, the tensors of a list, may be the CPU's, and nothing else of theirs."""
FIRST_KEPT = {"aten::_pack_padded_sequence": 1, "npu::npu_fusion_attention_v3": 4}
"""The first result that stays on the CPU: lengths of sequences; the seed and the offset of dropout."""
ASKS_FOR_GRAD = frozenset({"aten::_sparse_mm_reduce_impl", "aten::_fused_sdp_choice"})
"""Operators whose CPU kernel computes more if gradients are recorded."""
IN_FLOAT32 = frozenset(
    {
        *("aten::mm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::bmm", "aten::baddbmm"),
        *("aten::baddbmm_", "aten::addbmm", "aten::addbmm_", "aten::mv", "aten::addmv", "aten::addmv_", "aten::dot"),
        *("aten::convolution", "aten::convolution_backward", "aten::convolution_overrideable"),
        *("aten::convolution_backward_overrideable", "aten::native_batch_norm", "aten::native_batch_norm_backward"),
        *("aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward"),
        *("aten::binary_cross_entropy", "aten::binary_cross_entropy_backward"),
        *("aten::binary_cross_entropy_with_logits", "aten::grid_sampler_2d", "aten::grid_sampler_2d_backward"),
        *("aten::upsample_linear1d", "aten::upsample_linear1d_backward"),
    }
)
"""Operators whose CPU kernel adds float16 in float16: they are computed in float32 and rounded once, as an Ascend does.

On a processor without float16 arithmetic that is faster, too: a product of 256 x 512 by 512 x 256 takes 1 ms, not 200.
"""
MIXING_FLOATS = frozenset(
    {
        *("aten::mm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
        *("aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"),
    }
)
"""Products of matrices, whose operands may be of unlike dtypes among float16, bfloat16 and float32.

They are computed in float32. The result has the dtype of the first argument, as torch_npu's has.
"""
FLOAT64_ALONE = frozenset({"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"})
"""Operators that call Descend's own aclnn functions, which do not take float64: that is the CPU's."""
COMPOSED = frozenset({"_to_copy", "contiguous", "empty_like", "new_empty_strided"})
"""Operators whose composed kernel must see the device: it takes pinned memory, or returns its input, or new memory."""
UNDISPATCHED = frozenset({"mode", "conj_physical_"})
"""Operators that PyTorch composes for every device, but by functions that only its own devices have."""
OWN = frozenset({"native_dropout", "_copy_from", "_copy_from_and_resize"})
"""Operators that neither the CPU nor torch_npu computes as needed: each form has a kernel of its own."""
SPARSE = {"SparsePrivateUse1": "SparseCPU", "SparseCsrPrivateUse1": "SparseCsrCPU"}
"""The dispatch keys of the device's sparse tensors, and the CPU's."""


class Special(NamedTuple):
    """What is special about an operator. native/npu/kernel.h has the same."""

    mixes_devices: bool = False
    """CPU tensors may be among the arguments."""
    indexes: bool = False
    """The tensors of its list, the indices, may be the CPU's."""
    first_kept: int | None = None
    """This result and those after it stay on the CPU."""
    asks_for_grad: bool = False
    """The CPU kernel computes more if gradients are recorded."""
    float16_in_float32: bool = False
    """The CPU kernel adds in float16."""
    mixes_floats: bool = False
    """Several of float16, bfloat16 and float32 may be in one call."""
    float64_alone: bool = False
    """Calls whose first tensor is not float64 stay torch_npu's."""


class Form(Protocol):
    """What registers kernels: for operators by name and overload, such as ``aten::add.Tensor``."""

    def serve(self, name: str, key: str, special: Special) -> None:
        """Has the CPU's kernel compute an operator on the memory of the device's tensors."""

    def borrow(self, name: str, key: str, owner: str) -> None:
        """Has the kernel of another dispatch key called with the device's tensors, as it composes the operator."""


def register(form: Form) -> None:
    """Puts kernels in the place of torch_npu's, except for the operators that stay torch_npu's."""
    for whole in _dispatch_get_all_op_names():
        if whole.startswith("aten::"):
            _register_dense(form, whole)
            _register_sparse(form, whole)


def serve(form: Form, whole: str, key: str = "PrivateUse1") -> None:
    """Has ``form`` serve an operator, with what is special about it."""
    name = whole.partition(".")[0]
    special = Special(
        mixes_devices=name in MIXING,
        indexes=name in INDEXING,
        first_kept=FIRST_KEPT.get(name),
        asks_for_grad=name in ASKS_FOR_GRAD,
        float16_in_float32=name in IN_FLOAT32,
        mixes_floats=name in MIXING_FLOATS,
        float64_alone=name in FLOAT64_ALONE,
    )
    form.serve(whole, key, special)


def is_indices(argument: str) -> bool:
    """Whether an argument of this name holds indices or classes, which Ascend takes as int32, too."""
    return argument in ("index", "target")


def base(whole: str) -> str:
    """The name of an operator without namespace and overload."""
    return whole.partition("::")[2].partition(".")[0]


def operator(whole: str) -> Any:
    """An operator of ``torch.ops`` by its whole name, such as ``aten::add.Tensor``."""
    name, _, overload = whole.partition(".")
    namespace, _, rest = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), rest), overload or "default")


def _register_dense(form: Form, whole: str) -> None:
    name = base(whole)
    if name in STAYS and whole not in UNSIZED:
        return
    theirs = _has(whole, "PrivateUse1")
    taken_apart = _has(whole, "CompositeImplicitAutograd")
    if taken_apart and not theirs:
        return
    # torch_npu has a derivative of its own here, or PyTorch decomposes the operator and has none: use the CPU's.
    if (taken_apart or _has(whole, "AutogradPrivateUse1")) and _has_computed(whole, "AutogradCPU"):
        form.borrow(whole, "AutogradPrivateUse1", "AutogradCPU")
    if name in OWN or not _has_computed(whole, "CPU"):
        return
    of_cpu = _has(whole, "CPU")
    if not theirs and not of_cpu and name not in UNDISPATCHED:
        return  # PyTorch composes it of others, on any device
    if not of_cpu and (name in COMPOSED or _draws_without_generator(whole)):
        form.borrow(whole, "PrivateUse1", "CPU")
    else:
        serve(form, whole)


def _register_sparse(form: Form, whole: str) -> None:
    if base(whole) in SPARSE_STAYS:
        return
    for npu, cpu in SPARSE.items():
        if _has(whole, cpu) or (_has(whole, npu) and _has_computed(whole, cpu)):
            serve(form, whole, npu)


def _draws_without_generator(whole: str) -> bool:
    """Whether an operator draws random numbers and cannot be told from where."""
    found = operator(whole)
    if torch.Tag.nondeterministic_seeded not in found.tags:
        return False
    return all(argument.name != "generator" for argument in found._schema.arguments)
