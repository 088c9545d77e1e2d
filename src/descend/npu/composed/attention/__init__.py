"""Attention and what belongs to it: its variants, the keys that a query sees, rotary positions, the indexer of keys.

`fusion_attention` is npu_fusion_attention; `fusion_call` has what its versions share, `masks` which keys a query sees,
`blockwise` the arithmetic in blocks of queries. `selected` is the arithmetic where each query has keys of its own, for
`nsa`, `sparse_attention` and `lightning_indexer`. Layouts are in `layouts` and `token_rows`.
"""
