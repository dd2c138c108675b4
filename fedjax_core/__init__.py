"""Federated learning simulated in JAX: the engine. Methods stand in `methods`, their settings in `configs`."""
