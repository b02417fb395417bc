"""Run by llama.cpp's Python: a GGUF in another format. SOURCE TARGET FORMAT (as Q8_0)."""

import ctypes
import sys

import llama_cpp


def main() -> None:
    source, target, kind = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    status = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    sys.exit(f"llama_model_quantize answered {status}" if status else 0)


if __name__ == "__main__":
    main()
