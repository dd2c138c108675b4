"""The reference implementation of language models, if it is installed: transformers with torch."""

import warnings
from typing import Any

import pytest


def library() -> Any:
    """Returns the module `transformers`; skips the test if it or torch is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn of each other
        pytest.importorskip("torch", reason="no torch: pip install -e '.[reference]'")
        return pytest.importorskip("transformers", reason="no transformers: pip install -e '.[reference]'")


def saved(model: Any, folder: Any, **options: Any) -> Any:
    """Randomizes all weights of the model and saves it; returns it in evaluation mode."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + ("norm" in name.lower()))
        model.eval().save_pretrained(folder, **options)
    return model
