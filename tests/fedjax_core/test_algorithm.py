"""The defaults of a method: what one need not write."""

import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, ClientOutput, Cohort, Net, Reduce


def test_a_method_need_only_say_five_things():
    method = Algorithm(lambda key: "server", lambda *_: ClientOutput((), (), {}), lambda *_: ("server", {}), (), {})
    assert method.client_init(None, "server", 3) == ()
    assert method.broadcast("server", 3) == "server"
    assert method.prepare is None
    assert method.personalise is None
    assert not method.pooled


def test_a_reduce_stacks_what_it_is_given():
    reduce = Reduce()
    part = {"delta": jnp.ones(2)}
    assert reduce.map(part, Cohort(0, 5)) is part
    assert reduce.combine == "stack"
    assert reduce.finalize(part) is part


def test_a_net_without_statistics_has_none_and_local_is_what_stays():
    assert Net({"w": 1}).stats == ()
    assert ClientOutput((), (), {}).local is None
