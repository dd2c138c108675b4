"""Speed, measured: `python -m tests.benchmarks` (see `__main__.py`). Not collected by pytest."""
