"""FedAdam of a small transformer on the characters of Python's manual; paper: pfl-research's benchmark on StackOverflow.

Command:  fedjax-core run fedopt_text --workdir=runs/fedopt_text
Expect:   token accuracy and perplexity of characters, offline; the paper variant needs its files
          and has not been run.
Variants: small (the default); smoke (seconds); paper: 342,477 users of at most 64 sentences, 400
          per round, a transformer of width 96, words of a vocabulary of 10,000, as in
          pfl-research's benchmarks/lm/configs/baseline.yaml. Departures: the vocabulary is that of
          the sentences read (there the published one), a user's sentences are the first 64 (there
          64 at random in each round), metrics are of 1,000 test users (there of users with 1 % of
          the validation set's words), the head has its own kernel (there the embedding's), the
          server's rate is 0.1 from the first round (there it warms up over 50 rounds), and FedAdam
          has no bias correction, as in Reddi et al.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    paper, smoke = variant == "paper", variant == "smoke"
    config.method = dict(
        name="fedopt", server="adam", server_lr=0.1 if paper else 0.01, tau=0.01, epochs=1, batch=16, weights="uniform"
    )
    config.data.update(source="text(length=20, most=10)" if smoke else "text", clients=5 if smoke else 20, partition="natural")
    config.models = (
        "causal(width=96, layers=3, heads=8, hidden=1536, dropout=0.1)" if paper else "causal(width=32, layers=1, hidden=64)",
    )
    config.optimizer.lr = 0.3
    if paper:
        config.data.update(source="stackoverflow", clients=342477)
        config.cohort.size = 400
        config.evaluation.update(scopes=("global",), every=20)
        config.rounds = 2000
    return config
