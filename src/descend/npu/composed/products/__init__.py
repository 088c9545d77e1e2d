"""Products of matrices: plain, in groups, and with a collective before or after. Quantised: `quantised`."""
