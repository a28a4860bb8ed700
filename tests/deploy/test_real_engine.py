"""The model of the real engine: small, random, the same every time, and such that a conversation finds its own prefix."""

import json
import subprocess

import jinja2
import pytest
from conftest import ROOT

REAL = ROOT / "tests" / "harness" / "real"
PYTHON = ROOT / ".tools" / "real" / "venv" / "bin" / "python"
TINY = ["--layers", "1", "--width", "64", "--heads", "2", "--kv-heads", "1", "--feed-forward", "96", "--context", "512"]

LOOK = """
import json, sys
from gguf import GGUFReader
from gguf.quants import dequantize
reader = GGUFReader(sys.argv[1])
value = lambda name: reader.fields[name].contents()
tensors = {tensor.name: tensor for tensor in reader.tensors}
output = tensors["output.weight"]
rows = dequantize(output.data, output.tensor_type)
tokens = value("tokenizer.ggml.tokens")
print(json.dumps({
    "layers": value("llama.block_count"), "window": value("llama.context_length"), "tokens": tokens,
    "merges": value("tokenizer.ggml.merges"), "end": value("tokenizer.ggml.eos_token_id"),
    "template": value("tokenizer.chat_template"), "said": [tokens[at] for at in rows.any(axis=1).nonzero()[0]],
    "tensors": {name: [int(n) for n in tensor.shape] for name, tensor in tensors.items()},
}))
"""


def make(path, *options):
    done = subprocess.run([PYTHON, REAL / "make_model.py", path, *TINY, *options], capture_output=True, text=True)
    assert done.returncode == 0, f"scripts/setup --tests?\n{done.stdout}{done.stderr}"
    return path.read_bytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    make(path)
    return json.loads(subprocess.run([PYTHON, "-c", LOOK, path], capture_output=True, text=True, check=True).stdout)


def test_the_same_seed_makes_the_same_bytes(tmp_path):
    one, same = make(tmp_path / "one.gguf"), make(tmp_path / "same.gguf")
    assert one == same and not (tmp_path / "one.part").exists()
    assert make(tmp_path / "other.gguf", "--seed", "2") != one


def test_sizes_are_those_that_were_asked_for(model):
    assert (model["layers"], model["window"]) == (1, 512)
    assert model["tensors"]["blk.0.ffn_up.weight"] == [64, 96]
    # One head of keys for two of queries.
    assert model["tensors"]["blk.0.attn_k.weight"] == [64, 32] and model["tensors"]["blk.0.attn_q.weight"] == [64, 64]


def cut(word, merges):
    """Byte pair encoding: of all neighbours, those with the earliest merge are joined first."""
    parts, rank = list(word), {tuple(merge.split(" ")): place for place, merge in enumerate(merges)}
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda at: rank.get((parts[at], parts[at + 1]), len(rank)))
        if (parts[best], parts[best + 1]) not in rank:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def test_only_whole_words_and_the_end_can_be_said_and_are_cut_into_themselves(model):
    assert model["tokens"][model["end"]] in model["said"] and len(model["said"]) > 80
    for token in model["said"]:
        if token != model["tokens"][model["end"]]:
            assert token.startswith("Ġ") and cut(token, model["merges"]) == [token]
    # What is no word goes byte by byte.
    assert cut("Ġzzz", model["merges"]) == ["Ġ", "z", "z", "z"]
    assert len(set(model["tokens"])) == len(model["tokens"])


def test_a_longer_conversation_begins_with_the_shorter_one(model):
    render = jinja2.Template(model["template"]).render
    talk = [{"role": "user", "content": "how far"}]
    first = render(messages=talk, add_generation_prompt=True)
    talk += [{"role": "assistant", "content": " far"}, {"role": "user", "content": "and back"}]
    assert render(messages=talk, add_generation_prompt=True).startswith(first + " far<|im_end|>")
