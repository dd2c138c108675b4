"""Transforms of uplinks between clients and server: attacks, compression, privacy and robust rules.

Each is an `UplinkTransform`. `wrap_method(method, transforms, shapes)` returns an Algorithm whose uplinks
pass all of them; the method itself does not know. Without transforms nothing is wrapped, and the
compiled program is the method's own.

    client_update --uplink--> send, send, ... --> [attack_stack] --> reduce --> server_update
                              (per client,         (all clients at once)
                               in the client loop)

An uplink passes these files, in order:

   1  experiment/uplink_options.py   the config's fields -> transforms
   2  uplink/transform.py            `UplinkTransform`, and `order_transforms`
   3  uplink/apply_transforms.py     `wrap_method`: validates them and builds the Algorithm
   4  uplink/wrapped_method.py       its states and messages
   5  uplink/client_side.py          the client's side: method, `send` of each transform, `map`
   6  uplink/layout.py               the uplink's parts, as trees and as vectors
   7  uplink/dp_mechanisms.py, attacks.py, compression.py   what `send` does
   8  engine/rounds.py               contributions are summed or stacked over the client axis
   9  uplink/server_side.py          the server's side: attacks on the stack, the reduction, method
  10  uplink/sharded_aggregation.py  the reduction, sharded over devices
  11  uplink/robust_aggregation.py, dp_mechanisms.py, dp_matrix_mechanism.py   what `finalize` does

The `payload` of each part's `Reduce` says what an uplink has; `aggregators` set it:

  "delta"        `aggregators.mean(weights)`: a difference, of which the server takes the weighted
                 mean. FedAvg's network with its batch statistics, FedPer's shared part, and both
                 parts of SCAFFOLD's uplink, model and control variate.
  "class means"  `aggregators.class_mean()`: (values [K, ...], counts [K]), of which it takes the
                 mean of each class. FedProto's prototypes, FedMD's logits of public examples.
                 Transforms change the values; the counts stay.
  "number"       beside a delta, such as FedNova's tau_i. Transforms that change what is sent are
                 rejected: a changed number is not that of the changed delta.
  ""             the server reads clients one by one (`aggregators.stack`), or computes something
                 else. Such a method is rejected: only it knows which parts may be changed.

A function with options makes an `UplinkTransform`, such as `robust_aggregation.krum()`:

  send           changes what one client sends, inside the client loop: an attack, a compression
                 with its decoding, clipping with noise. Its `ClientContext` has the client's id,
                 number of examples, random key, and the transform's memory. It may keep a client
                 state (error feedback) and log metrics.
  broadcast      changes what a client is sent, such as to fewer bits; without key or memory.
  attack_stack   changes the uplinks of all clients at once, for attackers that know what others
                 send. The cohort is then stacked.
  reduce         replaces the weighted mean by map, combine, finalize. It streams with memory O(1)
                 if it combines by "add"; "stack" keeps all vectors [C, D]. At most one transform
                 has it.
  memory         what the server keeps between rounds; `reduce.finalize` updates it.

`order_transforms` sorts a set of transforms by `KIND_ORDER`, the order of the simulated message:

  1  "local privacy"     an honest client clips its delta and adds noise
  2  "attack"            an attacker replaces its uplink; it does not follow the protocol above
  3  "compression"       the uplink is packed, and unpacked as the server does
  4  "schedule"          the server weights stale updates (`staleness.py`)
  5  "attack" on the stack  attackers that know what the server has received from others
  6  "rule", "privacy"   the server: a robust rule; or clipping, a sum, and noise

Local noise precedes compression, which then works on data that are already private. Clipping by the
server comes last, inside `reduce.map`, so that it covers all that a client sends. A rule and
central privacy exclude each other: each replaces the mean, and the result of a rule has no known
sensitivity.
"""

from fedjax_core.uplink.apply_transforms import unwrap, wrap_builder, wrap_method
from fedjax_core.uplink.transform import (
    KIND_ORDER,
    ClientContext,
    TransformOutput,
    UplinkTransform,
    UplinkValue,
    VectorReduce,
    order_transforms,
)

__all__ = [
    "KIND_ORDER",
    "ClientContext",
    "TransformOutput",
    "UplinkTransform",
    "UplinkValue",
    "VectorReduce",
    "order_transforms",
    "unwrap",
    "wrap_builder",
    "wrap_method",
]
