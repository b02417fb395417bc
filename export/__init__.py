"""Export: the ONNX interpreter of the decoder, the exported folder, and its verification.

The package itself can be called, as `pippin.export(name, out)`.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, name: str | Path, out: str | Path, **options: Any) -> Path:
        """Export the model `name`, as `pippin pull` takes it, to the folder `out`.

        Options and errors are those of `pippin.export.folder.export_folder`. Returns the folder.
        """
        from ..mlx_model.checkpoints import store
        from ..mlx_model.checkpoints.checkpoint import open_checkpoint
        from .folder import export_folder

        checkpoint = open_checkpoint(store.resolve(str(name), fetch=True))
        return export_folder(checkpoint, Path(out), **options)


sys.modules[__name__].__class__ = _CallableModule
