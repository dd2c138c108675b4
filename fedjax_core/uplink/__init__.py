"""What happens to an uplink between client and server: attacks, compression, privacy, robust rules, for deltas and class means.

Attacks, compression, privacy and robust rules are `Link`s. `wrap(algorithm, links, like)` gives an Algorithm that passes every
uplink through the links in their order; the method itself has no line of it. Without links nothing is wrapped, and the compiled
program is what it was.

    client_update --uplink--> link.send, link.send, ... --> [the stack: link.craft] --> reduction --> server_update
                              (per client, in its loop)      (all clients at once)

What an uplink carries is said by the `Reduce` of each of its parts, made by `aggregators`:

  "delta"         `aggregators.mean(weights)`: differences, of which the server takes the weighted mean. FedAvg's whole network with
                  its batch statistics, FedPer's shared part; both parts of SCAFFOLD's, model and control variate, are of this kind.
  "class means"   `aggregators.class_mean()`: (values [K, ...], counts [K]), of which it takes the mean of each class. FedProto's
                  prototypes, FedMD's logits of public examples. Links change the values; the counts travel as they are.
  neither         the server takes clients singly (`aggregators.stack`), or computes something of its own. Such a method is refused
                  by name: nobody but the method knows what of it may be changed.

A link is a `Link` made by a function with options, such as `robust_aggregation.krum(attackers=0.2)`:

  send     changes what one client sends, inside the client loop: an attack, a compression with its decoding, a clipping with
           noise. It knows the client's id, number of examples, a key of its own, what the link's memory shows to clients, and what
           the link keeps with the client (error feedback). What it says in `notes` stands in the round's record.
  down     changes what a client is sent: the model in fewer bits. It has neither key nor memory.
  craft    changes the uplinks of all clients at once, for attackers that know what the others send. The cohort is then stacked.
  reduction   takes the place of the weighted mean: "add" streams with memory O(1), "stack" has all [C, D] at once. One link may.
  memory   what the server keeps of the link from round to round; `reduction.combine` renews it.

The order is that of the simulated message, and `order` gives it to a set of links:

  1 "local privacy"   an honest client clips its delta and adds noise
  2 "attack"          an attacker sends something else in its place; it does not follow the protocol above
  3 "compression"     what is sent is packed, and unpacked as the server does; its packed arrays are the bytes that are counted
  4 "attack" by craft  attackers that know what the server has received of the others
  5 "rule", "privacy"   the server: a robust rule; or a clipping, a sum and noise

Noise stands before compression, which is then a function of what is private already; a clipping by the server stands behind it,
inside the reduction's `lift`, so that nothing that a client sends escapes it. A rule and central privacy exclude each other: each
says how uplinks become one, and a rule's result has no known sensitivity.
"""

from fedjax_core.uplink.apply_transforms import bare, wrap, wrapped
from fedjax_core.uplink.transform import ORDER, Carried, Link, Passed, Reduction, Sender, order

__all__ = ["ORDER", "Carried", "Link", "Passed", "Reduction", "Sender", "bare", "order", "wrap", "wrapped"]
