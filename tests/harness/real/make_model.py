"""Makes a small random model in the GGUF format, for llama.cpp's server: it says nothing of sense, and takes as long to say
it as a model of its size does.

The same seed and sizes give the same bytes. Nothing is downloaded and nothing is trained.

Three things about it are deliberate:
- A word with its leading space is one token of about four bytes, as in the vocabularies of real models, so a prompt of N
  such words has N tokens. Everything else falls back to single bytes.
- Only whole words and the end of the sequence can be generated. What a client sends back as the assistant's message is
  then cut into the very tokens that were generated, and the engine finds the whole earlier turn in its cache.
- The end of the sequence is as likely as any word: a client that does not set `ignore_eos` gets short answers.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize

END, START = "<|im_end|>", "<|im_start|>"

# Each message between the markers, so that a longer conversation begins with exactly the bytes of a shorter one.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The prober's long prompts and the workloads of the benchmarks are made of these, and so is what the model says.
WORDS = """
act add age air all and any are arm art ask bad bag bed big box boy bus but buy car cat cut day dog dry ear eat end eye far
few fit fly for fun get hat her him hot how ice job key law leg let man map new now old one our out own pay red run sea sun
top way lorry scale load bridge axle ton road gate yard crane ramp dock belt cargo port rail count upwards from say yes the
system user assistant
""".split()


@dataclass(frozen=True)
class Sizes:
    """What decides how long a token takes. All dimensions are multiples of 32, the block of the quantisation."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 1536
    context: int = 8192


def byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's convention)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + nth) for nth, byte in enumerate(others)}


def vocabulary(words: list[str]) -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges, and the places of the tokens that are whole words with their leading space.

    A word is put together from its left end: `Ġ a`, `Ġa c`, `Ġac t`. No merge begins inside a word, so there is only one
    way to cut it.
    """
    characters = byte_characters()
    tokens = [characters[byte] for byte in range(256)]
    known, merges, whole = {token: place for place, token in enumerate(tokens)}, [], []
    for word in words:
        left = characters[ord(" ")]
        for byte in word.encode():
            joined = left + characters[byte]
            if joined not in known:
                known[joined] = len(tokens)
                tokens.append(joined)
                merges.append(f"{left} {characters[byte]}")
            left = joined
        whole.append(known[left])
    return tokens, merges, sorted(set(whole))


def shapes(sizes: Sizes, tokens: int) -> dict[str, tuple[int, ...]]:
    """Every matrix of the llama architecture, rows first."""
    kv = sizes.width // sizes.heads * sizes.kv_heads
    matrices = {"token_embd.weight": (tokens, sizes.width)}
    for layer in range(sizes.layers):
        matrices |= {
            f"blk.{layer}.attn_q.weight": (sizes.width, sizes.width),
            f"blk.{layer}.attn_k.weight": (kv, sizes.width),
            f"blk.{layer}.attn_v.weight": (kv, sizes.width),
            f"blk.{layer}.attn_output.weight": (sizes.width, sizes.width),
            f"blk.{layer}.ffn_gate.weight": (sizes.feed_forward, sizes.width),
            f"blk.{layer}.ffn_up.weight": (sizes.feed_forward, sizes.width),
            f"blk.{layer}.ffn_down.weight": (sizes.width, sizes.feed_forward),
        }
    return matrices | {"output.weight": (tokens, sizes.width)}


def write(path: Path, sizes: Sizes, seed: int, name: str) -> int:
    """Writes the model; returns how many parameters it has."""
    tokens, merges, whole = vocabulary(WORDS)
    end, start = len(tokens), len(tokens) + 1
    kinds = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * 2
    tokens += [END, START]

    out = GGUFWriter(path, "llama")
    out.add_name(name)
    out.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    out.add_quantization_version(2)
    out.add_context_length(sizes.context)
    out.add_embedding_length(sizes.width)
    out.add_block_count(sizes.layers)
    out.add_feed_forward_length(sizes.feed_forward)
    out.add_head_count(sizes.heads)
    out.add_head_count_kv(sizes.kv_heads)
    out.add_rope_dimension_count(sizes.width // sizes.heads)
    out.add_rope_freq_base(10_000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(merges)
    out.add_bos_token_id(start)
    out.add_eos_token_id(end)
    out.add_add_bos_token(False)
    out.add_chat_template(TEMPLATE)

    random, parameters = np.random.default_rng(seed), 0
    for tensor, (rows, columns) in shapes(sizes, len(tokens)).items():
        values = random.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns, dtype=np.float32)
        if tensor == "output.weight":
            # All others have the same logit, zero, and of so many random ones the best are always above it.
            silent = np.ones(rows, dtype=bool)
            silent[[*whole, end]] = False
            values[silent] = 0.0
        parameters += values.size
        out.add_tensor(tensor, quantize(values, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)
    norms = [f"blk.{layer}.{which}_norm.weight" for layer in range(sizes.layers) for which in ("attn", "ffn")]
    for tensor in [*norms, "output_norm.weight"]:
        out.add_tensor(tensor, np.ones(sizes.width, dtype=np.float32))
        parameters += sizes.width

    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return parameters


def main() -> None:
    default = Sizes()
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("path", type=Path, help="file to write")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--name", default="random")
    for field, value in vars(default).items():
        options.add_argument(f"--{field.replace('_', '-')}", type=int, default=value)
    given = options.parse_args()
    sizes = Sizes(**{field: getattr(given, field) for field in vars(default)})
    # Whoever finds the file finds all of it.
    part = given.path.with_suffix(".part")
    parameters = write(part, sizes, given.seed, given.name)
    part.replace(given.path)
    print(f"{given.path}: {parameters / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
