"""Numbers in few bits: their formats, quantisation, and products of quantised matrices.

`formats` has the dtypes and rounds to them, `quantize` and `mx_quant` quantise, `scaled_products` multiplies for the
operators of `quant_matmul` and `quant_grouped_matmul`.
"""
