"""Attacks on finished runs: what a model, and what one client's uplink, tells about examples.

  membership.py   was an example trained on? by its loss, or by a likelihood ratio with shadow models
  canaries.py     a lower bound of epsilon from one training with examples that are in by coin flips
  inversion.py    the inputs behind one client's uplink
  images.py       how similar two images are

A successful attack disproves a guarantee. An unsuccessful one proves nothing.
"""

from fedjax_core.audit.canaries import CanaryAudit, audit_scores, audit_with_canaries, insert_canaries
from fedjax_core.audit.inversion import Inversion, UplinkAttack, invert_uplink, observe_uplink
from fedjax_core.audit.membership import MembershipScores, infer_membership, score_by_loss, score_by_shadows

__all__ = [
    "CanaryAudit",
    "Inversion",
    "MembershipScores",
    "UplinkAttack",
    "audit_scores",
    "audit_with_canaries",
    "infer_membership",
    "insert_canaries",
    "invert_uplink",
    "observe_uplink",
    "score_by_loss",
    "score_by_shadows",
]
