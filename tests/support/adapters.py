"""Tiny random adapters, written and applied by PEFT and by mlx-lm themselves."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

from .tiny import Tiny


@dataclass(frozen=True)
class TinyAdapter:
    """An adapter on disk, and the logits of the base with it by whoever wrote it."""

    path: Path
    reference: Any  # PEFT's model, or mlx-lm's

    def logits(self, ids: list[int]) -> np.ndarray:
        """Reference logits of one sequence, float32 [L, V]."""
        if isinstance(self.reference, Tiny):
            return self.reference.logits(ids)
        return np.array(self.reference(mx.array([ids]))[0].astype(mx.float32))


def make_peft(folder: Path, base: Path, *, seed: int = 1, **config: Any) -> TinyAdapter:
    """A random PEFT LoRA adapter of the checkpoint `base`; `config` is LoraConfig's.

    All that is trained is moved away from where training begins. The reference is loaded from
    what was saved.
    """
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied tables, and of PEFT's own Conv1D correction
        model = peft.get_peft_model(load(), peft.LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not parameter.requires_grad:
                    continue
                noise = torch.randn_like(parameter)
                if "magnitude" in name:  # of a weight's size, and positive
                    parameter.mul_(1 + 0.3 * noise.abs())
                else:
                    parameter.add_(0.2 * noise)
        model.save_pretrained(folder)
        reference = peft.PeftModel.from_pretrained(load(), folder).eval()
    return TinyAdapter(folder, Tiny(folder, reference))


def make_mlx_lm(
    folder: Path,
    base: Path,
    *,
    keys: list[str],
    dora: bool = False,
    num_layers: int = 2,
    rank: int = 4,
    scale: float = 1.5,
    seed: int = 1,
) -> TinyAdapter:
    """A random adapter of the checkpoint `base` by mlx-lm, saved as its trainer saves one."""
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
    from mlx_lm.utils import load_model

    mx.random.seed(seed)
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys}
    model, _ = load_model(base)
    model.freeze()
    linear_to_lora_layers(model, num_layers, parameters, use_dora=dora)
    trained = dict(tree_flatten(model.trainable_parameters()))
    for name, array in trained.items():
        noise = mx.random.normal(array.shape)
        trained[name] = array * (1 + 0.3 * abs(noise)) if name.endswith(".m") else 0.3 * noise
    folder.mkdir(parents=True)
    config = {
        "model": str(base),
        "fine_tune_type": "dora" if dora else "lora",
        "num_layers": num_layers,
        "lora_parameters": parameters,
        "learning_rate": 1e-5,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "adapters.safetensors"), trained)
    model, _ = load_model(base)
    model = load_adapters(model, folder)
    model.eval()
    return TinyAdapter(folder, model)


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change keys of an adapter's config; returns `folder`."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def edit_tensors(folder: Path, change: Any) -> Path:
    """Put `change(tensors)` in the place of an adapter's tensors; returns `folder`."""
    (path,) = folder.glob("*.safetensors")
    save_file(change(load_file(path)), path)
    return folder
