"""Makes the privacy ledger of a run, from its config and its simulation."""

from collections.abc import Mapping
from typing import Any

from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.experiment.example_privacy import account_examples
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.experiment.uplink_options import account_privacy
from fedjax_core.privacy import INTEGER_SUMS, ExampleLedger, PrivacyLedger


def make_ledger(
    resolved: ResolvedConfig, spec: SimulationSpec, recorded: Mapping[str, Any] | None = None
) -> PrivacyLedger | ExampleLedger | None:
    """Returns what rounds cost in privacy, of clients or of single examples; None without it.

    Args:
      spec: the config's simulation; that of examples has its noise already.
      recorded: what run.json records of the privacy, as `build` takes it.
    """
    if spec.example_privacy is not None:
        return account_examples(resolved, spec, {"noise_multiplier": spec.example_privacy.noise})
    parameters = 1
    if resolved.privacy is not None and resolved.privacy.name in INTEGER_SUMS:  # padded
        parameters = spec.shapes.groups[0].out.uplink.deltas[0].size
    return account_privacy(
        resolved.privacy, resolved.cohort, spec.population, resolved.sampling, recorded=recorded, parameters=parameters
    )
