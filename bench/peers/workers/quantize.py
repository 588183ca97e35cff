"""llama.cpp's own quantizer: `quantize.py SOURCE TARGET FORMAT`, FORMAT such as Q4_K_M."""

import sys

import llama_cpp as lib


def main(source: str, target: str, storage: str) -> None:
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{storage}")
    params.allow_requantize = True
    status = lib.llama_model_quantize(source.encode(), target.encode(), params)
    if status:
        sys.exit(f"llama_model_quantize returned {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
