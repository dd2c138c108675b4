"""Clients' devices: how fast they are, when they can be reached, and for whom the server waits.

`profiles.py` draws what each device can do, `availability.py` says who can be reached in a round,
`durations.py` computes the seconds of a client's round, `client_values.py` draws settings of local
training by client. `ClientDevices` is what a simulation takes. With an asynchronous schedule
(`schedules.py`), `arrivals.py` computes the order of updates.
"""

from typing import NamedTuple

import numpy as np

from fedjax_core.devices.availability import AVAILABILITIES, Availability, make_availability
from fedjax_core.devices.durations import client_seconds
from fedjax_core.devices.profiles import PROFILES, DeviceProfiles, draw_profiles
from fedjax_core.devices.schedules import SCHEDULES, Schedule, parse_schedule

__all__ = [
    "AVAILABILITIES",
    "PROFILES",
    "SCHEDULES",
    "Availability",
    "ClientDevices",
    "DeviceProfiles",
    "Schedule",
    "client_seconds",
    "draw_profiles",
    "make_availability",
    "parse_schedule",
]


class ClientDevices(NamedTuple):
    """The clients' devices, and for whom the server waits.

    Attributes:
      profiles: of all clients; None: their rounds take no time, and none fails.
      availability: who can be reached in a round; None: all clients, always.
      deadline: s after which a client's uplink comes too late; None: there is none.
      is_partial: whether a client that would come too late takes only the local steps that fit into
        the deadline; it is late if none does.
      seconds: [N] s that each client's round takes: it takes as many local steps as fit, in place of
        the method's epochs; None: clients have no such budget.
      wait_for: clients that the server waits for, a number or a fraction of the sampled clients that
        have examples; those that finish later are dropped. None: all that come back.
      server_seconds: that the server takes in each round, beside the clients.
    """

    profiles: DeviceProfiles | None = None
    availability: Availability | None = None
    deadline: float | None = None
    wait_for: int | float | None = None
    server_seconds: float = 0.0
    is_partial: bool = False
    seconds: np.ndarray | None = None
