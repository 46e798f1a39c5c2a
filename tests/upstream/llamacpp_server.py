"""A llama.cpp server as a process: serves one model on a free loopback port until stdin closes.

Run as a script by `tests.upstream.llamacpp`, because the server lives in native threads that only
the end of a process stops for certain. It knows nothing of the tests: it prints its URL, no more.
"""

import argparse
import os
import sys

import xllamacpp


def parameters(
    model: str, alias: str, slots: int, context: int, api_key: str | None, exact: bool
) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    params.n_parallel = slots
    params.n_ctx = context * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_slots = params.endpoint_metrics = params.endpoint_props = True
    params.ui = params.warmup = False
    params.verbosity = 0
    if api_key is not None:
        params.api_keys = [api_key]
    if exact:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.flash_attn_type = off
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--alias", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of each slot")
    parser.add_argument("--api-key")
    parser.add_argument("--exact", action="store_true", help="round nothing to half precision")
    options = parser.parse_args()
    server = xllamacpp.Server(parameters(**vars(options)))
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    # The server's threads may still be writing an answer that nobody will read.
    os._exit(0)


if __name__ == "__main__":
    main()
