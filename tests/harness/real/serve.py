"""llama.cpp's own HTTP server with one model, in this process, as the PyPI package xllamacpp brings it compiled.

It is the server of `llama-server`: same code, same paths, same metrics; only its options are set here and not on a command
line. Prints where it listens, and serves until SIGTERM.
"""

import argparse
import signal
from pathlib import Path

import xllamacpp


def parameters(given: argparse.Namespace) -> xllamacpp.CommonParams:
    """What `llama-server` would have made of its command line."""
    params = xllamacpp.CommonParams()
    params.model.path = str(given.model)
    params.model_alias = {given.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = given.port
    params.offline = True
    params.ui = False
    params.endpoint_metrics = True
    params.n_parallel = given.parallel
    # Every slot has a context of its own.
    params.kv_unified = False
    params.n_ctx = given.parallel * given.window
    params.cache_ram_mib = given.cache_mib
    # The memory that a GPU would lack is not to be estimated.
    params.fit_params = False
    for cpus in (params.cpuparams, params.cpuparams_batch):
        cpus.n_threads = given.threads
        # Threads that wait in a loop take the core from whoever shares it.
        cpus.poll = 0
    return params


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--model", type=Path, required=True, help="GGUF file")
    options.add_argument("--alias", default="random", help="what the server calls it")
    options.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options.add_argument("--parallel", type=int, default=8, help="slots: sequences that run together")
    options.add_argument("--window", type=int, default=4096, help="tokens that one sequence may have")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--cache-mib", type=int, default=0, help="host memory for prompts whose slot went to another")
    # Before a thread of the server is there to take the signals.
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    server = xllamacpp.Server(parameters(options.parse_args()))
    print(f"listening {server.listening_address}", flush=True)
    signal.sigwait(stops)
    del server


if __name__ == "__main__":
    main()
