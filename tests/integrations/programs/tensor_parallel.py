"""A small random Llama that transformers splits over the ranks: torchrun tensor_parallel.py BACKEND DIRECTORY."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROMPT, NEW = 12, 24


def saved(directory: Path) -> Path:
    """A model of random weights, on disk."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
    LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)).save_pretrained(directory)
    return directory


def main(backend: str, directory: str) -> None:
    rank = int(os.environ["RANK"])
    where = saved(Path(directory, f"model-{rank}"))
    if backend != "gloo":
        distributed.init_process_group(backend)  # else transformers makes the group, and says gloo
    model = AutoModelForCausalLM.from_pretrained(where, tp_plan="auto", dtype=torch.float32)
    words = torch.arange(PROMPT).view(1, PROMPT) % 96
    with torch.no_grad():
        scores = model(words).logits
        began = time.perf_counter()
        said = model.generate(words, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        took_s = time.perf_counter() - began
    result = {
        "group": type(distributed.group.WORLD).__name__,
        "scores": scores.flatten().tolist(),
        "said": said.tolist(),
        "rows": model.model.layers[0].mlp.up_proj.weight.to_local().shape[0],
    }
    sys.stdout.write(f"{NEW / took_s:.0f} tokens a second\n")
    Path(directory, f"{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
