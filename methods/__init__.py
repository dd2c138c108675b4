"""Federated methods, one file each; a reviewer reads it beside the paper."""
