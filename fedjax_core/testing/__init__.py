"""The contract that every method keeps, for tests of your own methods.

    import functools
    import pytest
    from fedjax_core import testing
    from feddyn import feddyn

    CASE = testing.Case(functools.partial(feddyn, alpha=0.1, epochs=2, batch=4))

    @pytest.mark.parametrize("holds", testing.CONTRACT, ids=lambda holds: holds.__name__)
    def test_contract(holds):
        holds(CASE)

A case compiles its rounds once for all that is checked. With two devices and more the contract also covers their number:
`jax.config.update("jax_num_cpu_devices", 2)` at the top of a conftest.py makes two of a CPU.
"""

from fedjax_core.testing.case import Case
from fedjax_core.testing.method_contract import CONTRACT

__all__ = ["CONTRACT", "Case"]
