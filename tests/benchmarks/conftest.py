"""Peers import what only their own environments have."""

collect_ignore_glob = ["peers/*"]
