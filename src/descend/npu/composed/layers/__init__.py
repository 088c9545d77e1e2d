"""Layers of networks: activations, dropout, convolutions, norms, recurrent layers, hyper-connections."""
