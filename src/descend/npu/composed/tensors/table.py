"""The rows of the operators in this folder."""

from __future__ import annotations

from descend.npu.composed.row import Section, row

INDICES: Section = (
    row(
        "npu_scatter_nd_update",
        "tensors.scatters",
        "index_put",
        "indices outside the tensor",
        more=("npu_scatter_nd_update_",),
    ),
    row(
        "scatter_update",
        "tensors.scatters",
        "copies, row by row",
        "indices outside the tensor; axis 0",
        more=("scatter_update_",),
    ),
    row(
        "npu_gather_sparse_index",
        "tensors.scatters",
        "index_select; sums of the gradient in float32, rounded once",
        "indices outside the tensor",
        "npu_gather_sparse_index_backward",
    ),
    row(
        "_npu_index_add",
        "tensors.scatters",
        "index_add",
        "what index_add refuses",
        more=("_npu_index_add_",),
        documents=("op-plugin's op_plugin_functions.yaml",),
    ),
    row(
        "npu_scatter_pa_kv_cache",
        "tensors.scatters",
        "index_put; tokens with a negative slot are left out",
        "compressed caches",
        more=("npu_scatter_pa_kv_cache_functional",),
    ),
    row(
        "npu_scatter_pa_cache",
        "tensors.scatters",
        "as npu_scatter_pa_kv_cache, of keys alone",
        "compressed caches",
        kernels=("npu_scatter_pa_cache.value",),
        documents=("op-plugin's test_npu_scatter_pa_cache.py",),
    ),
    row(
        "npu_gather_pa_kv_cache",
        "tensors.paged",
        "an index of the pages; rows of pages that do not exist are 0",
        "lengths below 0",
        more=("npu_gather_pa_kv_cache_functional",),
        documents=("op-plugin's test_npu_gather_pa_kv_cache.py",),
    ),
    row(
        "npu_random_choice_with_mask",
        "tensors.sampling",
        "torch.randperm; other numbers than a processor's",
        "dtypes other than bool",
    ),
    row(
        "npu_top_k_top_p",
        "tensors.sampling",
        "a stable sort; softmax and sums in float32",
        "a k below 1 or above the number of columns",
    ),
)

SHAPES: Section = (
    row(
        "npu_confusion_transpose",
        "tensors.plain",
        "permute, reshape and a copy",
        "shapes that do not fit",
        "npu_confusion_transpose_backward",
    ),
    row(
        "npu_dtype_cast",
        "tensors.plain",
        "Tensor.to; to float8, hifloat8 and float4 to the nearest number",
        "packed integers",
        "npu_dtype_cast_backward, _npu_dtype_cast_backward",
        more=("npu_dtype_cast_", "_npu_dtype_cast"),
    ),
    row("npu_slice", "tensors.plain", "a copy", "parts that are not within the tensor", more=("npu_slice.out",)),
    row(
        "npu_transpose",
        "tensors.plain",
        "permute and a copy",
        "a perm that is not an order of the dimensions",
        more=("npu_transpose.out",),
    ),
    row("npu_broadcast", "tensors.plain", "expand and a copy", "sizes that do not fit", more=("npu_broadcast.out",)),
    row("npu_pad", "tensors.plain", "torch.nn.functional.pad with zeros", "negative paddings"),
    row(
        "npu_one_hot",
        "tensors.plain",
        "a comparison with 0, 1, ..., depth - 1",
        "a depth below 1; classes in another dimension than the last",
    ),
    row("npu_sort_v2", "tensors.plain", "Tensor.sort", "nothing", more=("npu_sort_v2.out",)),
    row(
        "npu_max",
        "tensors.plain",
        "torch.max, with places in int32",
        "nothing",
        "npu_max_backward",
        kernels=("npu_max.dim", "npu_max_backward"),
    ),
    row(
        "npu_min",
        "tensors.plain",
        "torch.min, with places in int32",
        "nothing",
        "npu_min_backward",
        kernels=("npu_min.dim", "npu_min_backward"),
    ),
    row("npu_indexing", "tensors.regions", "index_select and a copy", "strides of 0", more=("npu_indexing.out",)),
    row(
        "npu_stride_copy",
        "tensors.regions",
        "as_strided and a copy",
        "parts that are not within the memory",
        more=("npu_stride_copy.out",),
        documents=("op-plugin's StrideCopyKernelNpu.cpp",),
    ),
    row(
        "npu_masked_fill_range",
        "tensors.regions",
        "a copy, filled range by range",
        "tensors of more than 3 dimensions",
        documents=("op-plugin's test_masked_fill_range.py",),
    ),
    row(
        "npu_sign_bits_pack",
        "tensors.regions",
        "bits of a byte",
        "a size that does not divide the result",
        more=("npu_sign_bits_unpack",),
        documents=("torch_npu.npu_sign_bits_pack", "torch_npu.npu_sign_bits_unpack"),
    ),
    row(
        "npu_view_copy",
        "tensors.plain",
        "Tensor.copy_; one_ is Tensor.fill_",
        "nothing",
        more=("one_",),
        documents=("op-plugin's op_plugin_functions.yaml", "torch_npu.one_"),
    ),
    row(
        "npu_hans_encode",
        "tensors.compression",
        "exponents apart from the rest, but not coded; decoding gives the same bits",
        "fixed and var that have less than a byte for each number together",
        kernels=("npu_hans_encode.out", "npu_hans_decode.out"),
        documents=("op-plugin's test_hans_compress.py",),
    ),
)

SECTIONS = {"Indices and choices": INDICES, "Shapes, copies, extremes": SHAPES}
