"""What to change where something does not fit."""

from collections.abc import Mapping
from typing import Any

from fedjax_core.reporting.console import readable_size


def advice(config: Mapping[str, Any], about: Mapping[str, Any], chunk: int | None) -> list[str]:
    """Sentences, what saves most first.

    Args:
      config: the whole.
      about: what `compile_worker.about` says.
      chunk: the largest that fits, 0 if none does; None: it was not looked for.
    """
    said, lies, plan = [], about["bytes"], config["plan"]
    if chunk:
        said.append(f"plan.chunk={chunk} fits.")
    large = lambda part: lies[part] > 0.1 * about["limit"]
    if large("rows of data") and about["data on"] == "device":
        said.append(f"plan.data=host keeps {readable_size(lies['rows of data'])} of rows off the device.")
    if large("client states") and plan["hold"] == "device":
        said.append(f"plan.hold=host keeps {readable_size(lies['client states'])} of client states off the device.")
    if about["lanes"] > 1:
        said.append(
            f"plan.lanes={about['lanes'] // 2} needs half of it for states and training; a run takes as many as fit by itself."
        )
    hosts = about["processes"]
    shared = hosts == 1 or about["devices"] // hosts % 2 == 0  # devices of one process hold a network together
    if shared and (large("frozen and public arrays") or large("server state")):
        both = readable_size(lies["frozen and public arrays"] + lies["server state"])
        said.append(f"plan.model=2 or more spreads the networks, {both} on each device, over so many.")
    if chunk == 0 or chunk is None:
        for at, model in enumerate(config["models"]):
            name = str(model)
            if name.startswith("pretrained") and "remat=True" not in name:
                said.append(f"models[{at}]: remat=True computes layers anew in the backward pass.")
            if name.startswith("pretrained") and "bfloat16" not in name:
                said.append(f"models[{at}]: dtype='bfloat16' halves its parameters.")
        if config["method"].get("batch", 0) and config["method"]["batch"] > 1:
            said.append(f"method.batch={config['method']['batch']}: a smaller one needs less (and is another experiment).")
    return said
