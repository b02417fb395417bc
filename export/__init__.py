"""Export: the ONNX interpreter of the decoder, the exported folder, and its verification.

The package itself can be called, as `pippin.export(name, out)`.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(
        self, name: str | Path, out: str | Path, adapter: str | Path | None = None, **options: Any
    ) -> Path:
        """Export the model `name`, as `pippin pull` takes it, to the folder `out`.

        `adapter` is the folder of one to fuse in (see `mlx_model.adapters`). Options and errors
        are those of `pippin.export.dispatch.export_checkpoint`. Returns the folder.
        """
        from ..mlx_model.checkpoints import store
        from ..mlx_model.checkpoints.checkpoint import open_checkpoint
        from .dispatch import export_checkpoint

        checkpoint = open_checkpoint(store.resolve(str(name), fetch=True))
        if adapter is not None:
            from ..mlx_model.adapters import with_adapter

            checkpoint = with_adapter(checkpoint, Path(adapter))
        return export_checkpoint(checkpoint, Path(out), **options)


sys.modules[__name__].__class__ = _CallableModule
