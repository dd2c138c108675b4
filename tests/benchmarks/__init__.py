"""Benchmarks of speed: `python -m tests.benchmarks` (see `__main__.py`)."""
