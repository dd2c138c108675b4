"""What noise is worth: epsilon of a run's rounds by the accountants of `dp-accounting`, and the noise for a wanted epsilon.

The noise itself is made by `fedjax_core/uplink/dp_mechanisms.py` and `dp_matrix_mechanism.py`, the latter from the matrices in
`matrix_factorization.py`. Records of a run are the simulator's own: losses, scores and counts in them are of the clients' data as
they are, and no part of what epsilon is told of. That is the sequence of server states.
"""

from fedjax_core.privacy.accounting import ACCOUNTANTS, Release, calibrated, epsilon
from fedjax_core.privacy.budget import Privacy, Spent, build_privacy_config, missing_settings
from fedjax_core.privacy.matrix_factorization import STRATEGIES, Strategy
from fedjax_core.privacy.participation import Participation, in_turn

__all__ = [
    "ACCOUNTANTS",
    "STRATEGIES",
    "Participation",
    "Privacy",
    "Release",
    "Spent",
    "Strategy",
    "build_privacy_config",
    "calibrated",
    "epsilon",
    "in_turn",
    "missing_settings",
]
