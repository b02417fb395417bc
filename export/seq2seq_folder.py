"""`export_seq2seq`: an encoder-decoder becomes a folder in optimum's layout."""

from pathlib import Path

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.checkpoints.whole_folder import check_target, written_whole
from ..mlx_model.encoder_load import load_seq2seq
from ..runtime.errors import InputError
from ..runtime.seq2seq import banned_tokens
from .encoder_folder import refuse_decoder_options, write_files
from .folder import check_choice, is_ours
from .graph import Progress
from .quantize import quantize_decoder
from .seq2seq_graph import write_seq2seq
from .settings import WEIGHTS, Settings
from .sidecars import eos_ids, generation_config, write_text
from .stack_readme import seq2seq_readme

DEFAULT_WEIGHTS = "q4"


def export_seq2seq(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: str | None = None,
    dialect: str | None = None,
    context: int | None = None,
    exact: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export an encoder-decoder to the folder `out`, which is returned.

    Arguments and errors as of `export_folder`. There is one dialect, of onnxruntime's operators,
    and the context is the model's own. T5 in float16 is refused: its activations leave the range.
    """
    weights = weights or DEFAULT_WEIGHTS
    check_choice("weights", weights, WEIGHTS)
    refuse_decoder_options("encoder-decoder", dialect, context)
    target = Path(out).resolve()
    check_target(target, overwrite, is_ours, "export")
    model = load_seq2seq(checkpoint)
    if weights == "fp16" and model.config.family == "t5":
        raise InputError("the activations of a t5 leave float16's range; export fp32, int8 or q4")
    settings = Settings(weights, context=model.config.context or 0, exact=exact)
    if settings.quantized:
        quantize_decoder(model, weights)
    start = {"decoder_start_token_id": model.config.start_token}
    banned = banned_tokens(checkpoint.generation_config, checkpoint.config)
    words = {"bad_words_ids": [[token] for token in banned]} if banned else {}
    generation = generation_config(checkpoint, eos_ids(checkpoint)) | start | words
    with written_whole(target) as folder:
        (folder / "onnx").mkdir()
        data = write_seq2seq(model, folder / "onnx", settings, progress)
        write_files(
            folder,
            checkpoint,
            settings,
            data,
            {"generation_config.json": generation},
            config=start | words,
        )
        write_text(folder / "README.md", seq2seq_readme(model.config, settings))
    return Path(out)
