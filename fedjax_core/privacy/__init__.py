"""Differential privacy: epsilon of a run by `dp-accounting`, and noise for a wanted epsilon.

`fedjax_core/uplink/dp_mechanisms.py` makes the noise, and `dp_matrix_mechanism.py` makes it from
the matrices in `matrix_factorization.py`. Epsilon is about the sequence of server states. The
losses, scores and counts that a run logs are computed on the clients' data without noise, and are
not part of it.
"""

from fedjax_core.privacy.accounting import ACCOUNTANTS, MAX_MULTIPLIER, Release, calibrate_noise, compute_epsilon
from fedjax_core.privacy.budget import PrivacyConfig, PrivacyLedger, build_privacy_config, missing_settings
from fedjax_core.privacy.distributed_noise import INTEGER_SUMS, IntegerSum
from fedjax_core.privacy.example_level import ExampleLedger, make_example_ledger
from fedjax_core.privacy.matrix_factorization import Participation, cyclic_participation

__all__ = [
    "ACCOUNTANTS",
    "INTEGER_SUMS",
    "MAX_MULTIPLIER",
    "ExampleLedger",
    "IntegerSum",
    "Participation",
    "PrivacyConfig",
    "PrivacyLedger",
    "Release",
    "build_privacy_config",
    "calibrate_noise",
    "compute_epsilon",
    "cyclic_participation",
    "make_example_ledger",
    "missing_settings",
]
