"""Tiny random checkpoints, made by `transformers`: the reference that nobody here wrote."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Tiny:
    """A checkpoint on disk and the torch model that wrote it."""

    path: Path
    reference: Any  # a transformers *ForCausalLM in eval mode, float32

    def logits(self, ids: list[int]) -> np.ndarray:
        """Reference logits of one sequence, float32 [L, V]."""
        import torch

        with torch.inference_mode():
            return self.reference(torch.tensor([ids])).logits[0].float().numpy()


LLAMA = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def make_tiny(folder: Path, kind: str = "Llama", seed: int = 0, **changes: Any) -> Tiny:
    """Write a random `kind`ForCausalLM checkpoint to `folder`, weights larger than HF's default.

    At HF's own initial scale (0.02) attention is nearly uniform, and a wrong mask or a wrong
    rotation would hardly show in the logits.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = getattr(transformers, f"{kind}Config")(**{**LLAMA, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.4 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5
            centre = 1.0 if "norm" in name and parameter.ndim == 1 else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return Tiny(folder, model)
