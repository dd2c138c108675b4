"""Contract tests for methods: what holds for every method, to run on your own.

    import functools
    import pytest
    from fedjax_core import testing
    from feddyn import feddyn

    CASE = testing.Case(functools.partial(feddyn, alpha=0.1, epochs=2, batch=4))

    @pytest.mark.parametrize("check", testing.CONTRACT, ids=lambda check: check.__name__)
    def test_contract(check):
        check(CASE)

A case compiles its rounds once for all checks. With two or more devices the contract also covers
sharding: `jax.config.update("jax_num_cpu_devices", 2)` at the top of a conftest.py makes two of a
CPU.
"""

from fedjax_core.testing.case import Case
from fedjax_core.testing.method_contract import CONTRACT

__all__ = ["CONTRACT", "Case"]
