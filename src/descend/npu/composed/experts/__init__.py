"""Mixture of experts: which experts a token gets, and tokens in the order of their experts and back."""
