"""All methods on the federation of `fedjax_core.testing`, with all of their terms active."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, ClientData, ClientOutput, Net
from fedjax_core.engine import simulator
from fedjax_core.language import clip_prompts
from fedjax_core.language.models import clip
from fedjax_core.task import Model, Task, make_partial_task
from fedjax_core.testing.case import Case, groups
from fedjax_core.testing.toy_federation import (
    CLASSES,
    CLIENTS,
    INPUTS,
    PROMPTS,
    PUBLIC,
    SIZES,
    data,
    model,
    prompted,
    task,
    task_adapted,
    task_alike,
    task_in_part,
    task_with_prompts,
    task_with_public,
)
from methods.afl import afl
from methods.apfl import apfl
from methods.centralized import centralized
from methods.cfl import cfl
from methods.dbe import dbe
from methods.dfedavg import dfedavg
from methods.ditto import ditto
from methods.fedacg import fedacg
from methods.fedala import fedala
from methods.fedamp import fedamp
from methods.fedavg import fedavg
from methods.fedavg_ft import fedavg_ft
from methods.fedavg_linear import fedavg_linear
from methods.fedbabu import fedbabu
from methods.fedbn import fedbn
from methods.fedcac import fedcac
from methods.fedcm import fedcm
from methods.fedcp import fedcp
from methods.feddc import feddc
from methods.feddf import feddf
from methods.feddyn import feddyn
from methods.fedex_lora import fedex_lora
from methods.fedexp import fedexp
from methods.fedfomo import fedfomo
from methods.fedgen import fedgen
from methods.fedgh import fedgh
from methods.fedhe import fedhe
from methods.fedhpl import fedhpl
from methods.fedit import fedit
from methods.fedlc import fedlc
from methods.fedlora import fedlora
from methods.fedmd import fedmd
from methods.fednh import fednh
from methods.fednova import fednova
from methods.fedntd import fedntd
from methods.fedoa import fedoa
from methods.fedopt import fedopt
from methods.fedpac import fedpac
from methods.fedper import fedper
from methods.fedpft import fedpft
from methods.fedproto import fedproto
from methods.fedproto_g import fedproto_g
from methods.fedprox import fedprox
from methods.fedrcl import fedrcl
from methods.fedrep import fedrep
from methods.fedrod import fedrod
from methods.fedrolex import fedrolex
from methods.fedsa_lora import fedsa_lora
from methods.fedsam import fedsam
from methods.fedsdr import fedsdr
from methods.fedskc import fedskc
from methods.fedspeed import fedspeed
from methods.fedtgp import fedtgp
from methods.fedtpg import fedtpg
from methods.ffa_lora import ffa_lora
from methods.flexlora import flexlora
from methods.flora import flora
from methods.fml import fml
from methods.heterofl import heterofl
from methods.hetlora import hetlora
from methods.hierfavg import hierfavg
from methods.ifca import ifca
from methods.lg_fedavg import lg_fedavg
from methods.local import local
from methods.mime_lite import mime_lite
from methods.moon import moon
from methods.per_fedavg import per_fedavg
from methods.perada import perada
from methods.pfedgate import pfedgate
from methods.pfedme import pfedme
from methods.pfedpg import pfedpg
from methods.pfedpt import pfedpt
from methods.pfedsd import pfedsd
from methods.promptfl import promptfl
from methods.qfedavg import qfedavg
from methods.scaffold import scaffold

__all__ = ["BATCH", "CASES", "CLASSES", "CLIENTS", "INPUTS", "METHODS", "MIXED", "PROMPTS", "PUBLIC", "SIZES", "TASKS"]
__all__ += ["client_data", "data", "update_client"]
__all__ += ["groups", "model", "prompted", "reference", "simulate", "task", "task_adapted", "task_alike", "task_in_part"]
__all__ += ["task_with_prompts", "task_with_public"]
BATCH = 4

# Every method, with arguments that activate all of its terms. A new method adds a line.
METHODS: dict[str, Any] = {
    "fedavg": functools.partial(fedavg, epochs=2, batch=BATCH),
    "fedavg_uniform": functools.partial(fedavg, epochs=2, batch=BATCH, weights="uniform"),
    "scaffold": functools.partial(scaffold, epochs=2, batch=BATCH),
    "local": functools.partial(local, epochs=2, batch=BATCH),
    "centralized": functools.partial(centralized, epochs=2, batch=BATCH),
    "fedhe": functools.partial(fedhe, epochs=2, batch=BATCH),
    "fedhe_mixed": functools.partial(fedhe, epochs=2, batch=BATCH),
    "fedhpl": functools.partial(fedhpl, temperature=2.0, epochs=2, batch=BATCH),
    "fedhpl_mixed": functools.partial(
        fedhpl, average=("prompts", "head"), denominator="local", compress=False, temperature=2.0, epochs=2, batch=BATCH
    ),
    "fedpft": functools.partial(fedpft, prompts=3, transform_epochs=2, batch=BATCH),
    "fedpft_con": functools.partial(
        fedpft,
        prompts=3,
        transform_epochs=2,
        batch=BATCH,
        contrast={"on": True, "prompts": 2, "queue": 6, "size": 4, "augment": "", "temperature": 0.5},  # 0.07 amplifies rounding
    ),
    "fedskc": functools.partial(fedskc, epochs=2, batch=BATCH),
    "fedskc_printed": functools.partial(fedskc, epochs=2, batch=BATCH, variant="printed"),
    "fedskc_released": functools.partial(fedskc, epochs=2, batch=BATCH, variant="released", lcl={"ramp": 2}),
    "fedper": functools.partial(fedper, epochs=2, batch=BATCH),
    "fedrep": functools.partial(fedrep, head_epochs=2, body_epochs=1, batch=BATCH, finetune_epochs=1),
    "fedbn": functools.partial(fedbn, epochs=2, batch=BATCH),
    "lg_fedavg": functools.partial(lg_fedavg, epochs=2, batch=BATCH),
    "apfl": functools.partial(apfl, alpha=0.4, alpha_lr=0.3, epochs=2, batch=BATCH),
    "dbe": functools.partial(dbe, kappa=2.0, momentum=0.6, epochs=2, batch=BATCH),
    "fedcp": functools.partial(fedcp, lam=0.8, epochs=2, batch=BATCH),
    "fedrod": functools.partial(fedrod, epochs=2, batch=BATCH),
    "fedpac": functools.partial(fedpac, lam=0.7, head_rate=2.0, epochs=2, batch=BATCH),
    "fedamp": functools.partial(fedamp, alpha=0.1, sigma=0.5, rho=0.7, epochs=2, batch=BATCH),
    "fedfomo": functools.partial(fedfomo, models=3, validation=0.4, epsilon=0.4, epsilon_decay=0.1, epochs=2, batch=BATCH),
    "pfedsd": functools.partial(pfedsd, lam=0.5, temperature=2.0, epochs=2, batch=BATCH),
    "pfedgate": functools.partial(pfedgate, sparsity=0.5, epochs=2, batch=BATCH),
    "fedala": functools.partial(fedala, mix_lr=2.0, fraction=0.7, threshold=0.02, first_limit=15, epochs=2, batch=BATCH),
    "fedcac": functools.partial(fedcac, tau=0.4, beta=4, epochs=2, batch=BATCH),
    "pfedpt": functools.partial(pfedpt, pad=1, prompt_epochs=1, prompt_lr=0.3, epochs=2, batch=BATCH),
    "ifca": functools.partial(ifca, clusters=3, epochs=2, batch=BATCH),
    "cfl": functools.partial(cfl, mean_norm=5.0, client_norm=0.1, first_split=0, epochs=2, batch=BATCH),
    "dfedavg": functools.partial(dfedavg, topology="torus", epochs=2, batch=BATCH),
    "heterofl": functools.partial(heterofl, epochs=2, batch=BATCH),
    "fedrolex": functools.partial(fedrolex, epochs=2, batch=BATCH),
    "hierfavg": functools.partial(hierfavg, edges=3, cloud_period=2, epochs=2, batch=BATCH),
    "fedavg_linear": functools.partial(fedavg_linear, epochs=2, batch=BATCH),
    "fedbabu": functools.partial(fedbabu, epochs=2, batch=BATCH, finetune_epochs=1, finetune_rate=0.5),
    "ditto": functools.partial(ditto, lam=0.7, epochs=2, personal_epochs=1, batch=BATCH),
    "fml": functools.partial(fml, alpha=0.3, beta=0.6, epochs=2, batch=BATCH),
    "fml_mixed": functools.partial(fml, alpha=0.3, beta=0.6, epochs=2, batch=BATCH),
    "fedavg_ft": functools.partial(fedavg_ft, epochs=2, batch=BATCH, finetune_epochs=1, finetune_rate=0.5),
    "fedprox": functools.partial(fedprox, epochs=2, batch=BATCH, mu=1.0),
    "feddf": functools.partial(feddf, epochs=2, batch=BATCH, server_epochs=2, server_batch=4, server_lr=0.01, temperature=2.0),
    "feddf_mixed": functools.partial(
        feddf, epochs=2, batch=BATCH, server_epochs=2, server_batch=4, server_lr=0.01, temperature=2.0
    ),
    "feddyn": functools.partial(feddyn, epochs=2, batch=BATCH, alpha=0.8),
    "feddc": functools.partial(feddc, epochs=2, batch=BATCH, alpha=0.8),
    "fedacg": functools.partial(fedacg, epochs=2, batch=BATCH, lam=0.6, beta=0.7),
    "fednova": functools.partial(fednova, epochs=2, batch=BATCH),
    "fedexp": functools.partial(fedexp, epochs=2, batch=BATCH),
    "fedlc": functools.partial(fedlc, epochs=2, batch=BATCH, tau=0.7),
    "fedrs": functools.partial(fedlc, epochs=2, batch=BATCH, variant="fedrs", alpha=0.3),
    "fedntd": functools.partial(fedntd, epochs=2, batch=BATCH, beta=0.6, tau=2.0),
    "fedcm": functools.partial(fedcm, epochs=2, batch=BATCH, alpha=0.4, server_lr=0.8, decay=0.1),
    "fedsam": functools.partial(fedsam, epochs=2, batch=BATCH, rho=0.3),
    "fedasam": functools.partial(fedsam, epochs=2, batch=BATCH, rho=0.5, eta=0.2),
    "mofedsam": functools.partial(fedsam, epochs=2, batch=BATCH, rho=0.3, beta=0.4),
    "qfedavg": functools.partial(qfedavg, epochs=2, batch=BATCH, q=0.8),
    "afl": functools.partial(afl, ascent_lr=0.3, epochs=2, batch=BATCH),
    "fedspeed": functools.partial(fedspeed, epochs=2, batch=BATCH, alpha=0.8, rho=0.3, share=0.7, normalized=False),
    "fedopt": functools.partial(fedopt, epochs=2, batch=BATCH),
    "mime_lite": functools.partial(mime_lite, epochs=2, batch=BATCH, b1=0.6, server_lr=0.8),
    "mime_lite_adam": functools.partial(mime_lite, epochs=2, batch=BATCH, base="adam", b1=0.6, tau=0.3),
    "moon": functools.partial(moon, epochs=2, batch=BATCH, mu=1.0, projection=4),
    "fedproto": functools.partial(fedproto, epochs=2, batch=BATCH),
    "fedproto_g": functools.partial(fedproto_g, epochs=2, batch=BATCH),
    "fednh": functools.partial(fednh, epochs=2, batch=BATCH, rho=0.5, scale=4.0),
    "fedrcl": functools.partial(fedrcl, epochs=2, batch=BATCH, tau=0.5, lam=0.2, contrast=0.8, beta=1.5),
    "fedtgp": functools.partial(fedtgp, lam=1.0, margin=0.5, server_epochs=3, server_batch=4, epochs=2, batch=BATCH),
    "fedgh": functools.partial(fedgh, projection=4, server_lr=0.1, server_epochs=2, server_batch=4, epochs=2, batch=BATCH),
    "fedgen": functools.partial(fedgen, noise=3, hidden=4, generator_batch=6, generator_steps=3, epochs=2, batch=BATCH),
    "fedgen_official": functools.partial(
        fedgen, variant="official", noise=3, hidden=4, generator_batch=6, generator_steps=3, epochs=2, batch=BATCH
    ),
    "fedmd": functools.partial(
        fedmd, align=4, digest_epochs=2, digest_batch=3, epochs=2, batch=BATCH, public_epochs=1, private_epochs=1
    ),
    "pfedpg": functools.partial(pfedpg, heads=2, inner=4, server_lr=0.5, epochs=2, batch=BATCH),
    "fedit": functools.partial(fedit, epochs=2, batch=BATCH),
    "fedlora": functools.partial(fedlora, epochs=2, finetune_epochs=1, batch=BATCH),
    "hetlora": functools.partial(hetlora, prune=True, gamma=0.7, lam=0.01, epochs=1, batch=BATCH),
    "flexlora": functools.partial(flexlora, epochs=1, batch=BATCH),
    "ffa_lora": functools.partial(ffa_lora, epochs=2, batch=BATCH),
    "fedsa_lora": functools.partial(fedsa_lora, epochs=2, batch=BATCH),
    "fedex_lora": functools.partial(fedex_lora, epochs=2, batch=BATCH, weights="samples"),
    "flora": functools.partial(flora, epochs=2, batch=BATCH),
    "fedoa": functools.partial(fedoa, lam=0.7, epochs=2, batch=BATCH),
    "fedoa_lora": functools.partial(fedoa, lam=0.7, epochs=2, batch=BATCH, variant="released", reading={"micro": 3}),
    "fedsdr": functools.partial(fedsdr, lam=0.7, epochs=2, batch=BATCH),
    "promptfl": functools.partial(promptfl, epochs=2, batch=BATCH),
    "fedtpg": functools.partial(fedtpg, epochs=2, batch=BATCH),
    "perada": functools.partial(perada, lam=0.35, epochs=2, batch=BATCH, distil={"on": True, "epochs": 2, "batch": 4, "lr": 0.01}),
    "per_fedavg": functools.partial(per_fedavg, alpha=0.3, hessian="difference", delta=0.05, adapt_steps=2, epochs=2, batch=BATCH),
    "pfedme": functools.partial(pfedme, lam=2.0, inner_steps=2, outer_lr=0.3, epochs=2, batch=BATCH),
}
MIXED = {
    "local",
    "fedhe_mixed",
    "fedhpl_mixed",
    "fedtgp",
    "fedgh",
    "fedgen",
    "fedmd",
    "feddf_mixed",
    "fml_mixed",
    "heterofl",
    "fedrolex",
}  # run with two architectures


def task_without_statistics(hidden: int = 6, statistics: bool = True) -> Task:
    """Returns the plain task, for methods that refuse batch statistics."""
    del statistics
    return task(hidden, False)


CLIP_WIDTHS = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.4}
CLIP = {
    "model_type": "clip",
    "projection_dim": 6,
    "text_config": CLIP_WIDTHS | {"vocab_size": 9, "max_position_embeddings": 7},
    "vision_config": CLIP_WIDTHS | {"image_size": 2, "patch_size": 1},
}
CLASS_TOKENS = np.array([[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 6, 2]], np.int32)


def prompted_clip(tokens: np.ndarray = CLASS_TOKENS, generated: bool = False) -> Model:
    """Returns a small CLIP with prompts, which sees inputs as images, padded with zeros."""
    plain = clip_prompts.make_prompted_classifier(clip.build(CLIP), tokens, tokens > 0, PROMPTS, generated)
    view = lambda x: jnp.pad(x, ((0, 0), (0, 12 - INPUTS))).reshape(-1, 2, 2, 3)
    of_inputs = lambda function: lambda net, x, *more, **options: function(net, view(x), *more, **options)
    return plain._replace(apply=of_inputs(plain.apply), features=of_inputs(plain.features))


def task_with_class_texts(hidden: int = 6, statistics: bool = True, generated: bool = False) -> Task:
    """Returns the task of prompts alone, over a frozen random CLIP."""
    del hidden, statistics
    frozen = jax.jit(clip.build(CLIP).init)(jax.random.key(3))
    settings = {"classes": CLASSES, "population": CLIENTS, "shape": (INPUTS,)}
    return make_partial_task(prompted_clip(generated=generated), Net({"clip": frozen}, {}), ("prompts",), **settings)


TASKS = {  # for methods that need another task
    "fedoa_lora": task_adapted,
    "hetlora": task_adapted,
    "flexlora": task_adapted,
    **dict.fromkeys(["ffa_lora", "fedsa_lora", "fedex_lora", "flora"], functools.partial(task_adapted, dropout=0.0)),
    "perada": task_with_public,
    "fedtgp": task_alike,
    "fedgen": task_alike,
    "heterofl": task_without_statistics,
    "fedrolex": task_without_statistics,
    "fedhpl": task_in_part,
    "fedhpl_mixed": task_in_part,
    **dict.fromkeys(["fedmd", "feddf", "feddf_mixed"], task_with_public),
    "pfedpg": task_with_prompts,
    "promptfl": task_with_class_texts,
    "fedtpg": functools.partial(task_with_class_texts, generated=True),
}
CASES = {
    name: Case(method, task=TASKS.get(name, task), mixed=name in MIXED)  # each compiles once
    for name, method in METHODS.items()
}


def client_data(i: int) -> ClientData:
    """Returns the data of client i."""
    index = jnp.asarray(data().train_index[i], jnp.int32)
    return ClientData(data().train, index, jnp.int32(len(index)))


def update_client(algorithm: Algorithm, sent: Any, client: Any, i: int = 0) -> ClientOutput:
    """Runs one client's update, which compiles much less than a round of a simulation."""
    return jax.device_get(jax.jit(algorithm.client_update)(sent, client, client_data(i), jax.random.key(5)))


def simulate(name: str, **settings) -> simulator.Simulator:
    """Returns a simulation of one of METHODS; settings as in `Case.simulate`."""
    return CASES[name].simulate(**settings)


def reference(name: str) -> tuple[simulator.Simulator, Any, Any]:
    """Returns a simulation, and host copies of its state before and after two rounds.

    Clients train one after another; compiled once for all tests.
    """
    return CASES[name].reference_run


@functools.cache
def records(name: str) -> list[dict[str, Any]]:
    """Returns the records of `reference`'s two rounds."""
    sim, before, _ = reference(name)
    return sim.run_rounds(sim.compiled.put(before), 2)[1]
