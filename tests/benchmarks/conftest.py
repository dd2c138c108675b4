"""Peers import packages that only their own environments have."""

collect_ignore_glob = ["peers/*"]
