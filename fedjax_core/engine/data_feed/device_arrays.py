"""What all rounds read and none changes: on the host, and as much of it as lies on the devices all the time."""

import copy
from typing import Any

import jax

from fedjax_core.algorithm import PyTree
from fedjax_core.data.row_readers import Reader
from fedjax_core.engine import client_loop
from fedjax_core.engine.data_feed.streaming import Resident, Streamed
from fedjax_core.engine.federation import Federation, Held


class Arrays:
    """The arrays of one simulation, under one plan.

    Attributes:
      host: all of them, with zeros in place of frozen arrays that are deferred.
      supply: how programs get the rows of clients.
    """

    def __init__(
        self,
        fed: Federation,
        host: Held,
        tasks: tuple[PyTree, ...],
        readers: dict[str, Reader],
        lies: Any,
        draw: Any,
    ):
        """Puts nothing on a device.

        Args:
          fed: with its plan.
          host: all arrays.
          tasks: per group, what `Task.bind` takes, with what is deferred.
          readers: of the data, where rows are streamed; else none.
          lies: shardings of `Held`.
          draw: `rounds.draw`, compiled.
        """
        self.host, self._tasks, self._lies, self._mesh = host, tasks, lies, fed.mesh
        everything = fed.episodes is not None or "all" in fed.evaluation.scopes  # the whole test set, for each client
        self.supply = Streamed(fed, host, readers, draw, everything) if readers else Resident(host)
        self._held: Held | None = None
        self._lender: Arrays | None = None

    def in_lane(self) -> "Arrays":
        """Returns the same arrays for one of several seeds, lent by these: they are on the devices once."""
        other = copy.copy(self)
        other._held, other._lender = None, self
        return other

    @property
    def held(self) -> Held:
        """What lies on the plan's devices all the time: data, unless they are streamed, and what is frozen or public."""
        if self._held is not None:
            return self._held
        if self._lender is None:
            self._held = held = client_loop.place(self.rest._replace(tasks=self._tasks), self._mesh, self._lies)
        else:
            self._held = held = self._lender.held
        return held

    @property
    def rest(self) -> Held:
        """The same on the host, with stand-ins for arrays that are deferred."""
        return self.supply.rest

    @property
    def placed(self) -> bool:
        """Whether they lie on the devices."""
        return self._held is not None

    def of_round(self, key: PyTree, number: PyTree, scored: bool) -> Held:
        """What the program of the round after `number` reads."""
        if not self.supply.streamed:
            return self.held
        return self.supply.of_round(self.held, key, int(jax.device_get(number)), scored)

    def close(self) -> None:
        """Ends what is under way for coming rounds."""
        self.supply.close()

    def release(self) -> None:
        """Takes them off the devices, until they are needed again."""
        self._held = None
