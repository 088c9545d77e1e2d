"""Numbers in few bits: their formats, quantisation, and products of quantised matrices.

`formats` has the dtypes and rounds to them. `quantize` and `mx_quant` quantise tensors. `quant_norms`, `quant_swiglu`
and `quant_activations` quantise what they compute. `scaled_products` multiplies for `quant_matmul`,
`quant_grouped_matmul` and others. `groups` reads where groups of rows begin and end.
"""
