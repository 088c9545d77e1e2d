"""How fast is Descend, compared with the memory limit and with other libraries? Each operator has a file of its own."""

OPERATORS = (
    "rms_norm_grad",
    "layer_norm_backward",
    "deep_norm_grad",
    "group_norm_swish_grad",
    "scaled_masked_softmax_backward",
    "rotary_position_embedding_grad",
    "swi_glu_grad",
    "gelu_backward_v2",
    "nsa_compress_grad",
    "rms_norm",
    "add_rms_norm",
    "gemma_rms_norm",
    "layer_norm",
    "group_norm_swish",
    "scaled_masked_softmax",
    "rotary_position_embedding",
    "swi_glu",
    "gelu_v2",
    "nsa_compress",
)
"""Every operator that has a file here, in the order of the reports."""
