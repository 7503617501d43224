"""transformers' Trainer on a tiny language model: torchrun transformers_training.py BACKEND DIRECTORY."""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

WORDS = 32


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up from some word, by ones, twos or threes."""

    def __len__(self) -> int:
        return 3 * WORDS + 1

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (index + torch.arange(16) * (1 + index % 3)) % WORDS
        return {"input_ids": words, "labels": words}


def train(directory: str) -> dict[str, Any]:
    set_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=directory,
        use_cpu=True,
        ddp_backend="gloo",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Counting(), eval_dataset=Counting())
    trainer.train()
    history = trainer.state.log_history
    return {
        "group": type(distributed.group.WORLD).__name__,
        "wrapped": type(trainer.model_wrapped).__name__,
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "evaluations": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
        "predicted": list(trainer.predict(Counting()).predictions.shape),
    }


def main(backend: str, directory: str) -> None:
    if backend != "gloo":  # the Trainer takes the group that there is
        distributed.init_process_group(backend)
    result = train(directory)
    Path(directory, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    gc.collect()  # over Gloo, a DDP model that is freed after its group may wait for ever
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
