"""Small programs of other projects, each a function that returns what its rank computes.

python of_projects.py NAME BACKEND DIRECTORY [ARGUMENT] writes it, and the class of its group, to RANK.json there.
"""

import gc
import json
import os
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

Found = dict[str, Any]


def accelerate(backend: str, directory: str, module: str) -> Found:
    """A test of accelerate's own, in processes that accelerate has joined. It uses the group that there is."""
    from accelerate import PartialState

    if backend != "gloo":
        distributed.init_process_group(backend)
    state = PartialState(cpu=True)
    found = {"group": group(), "processes": state.num_processes, "kind": state.distributed_type.value}
    del sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return found


def deepspeed(backend: str, directory: str) -> Found:
    """ZeRO stages 1 and 2 on CPUs."""
    import deepspeed as engines

    def train(stage: int) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        generator = torch.Generator().manual_seed(distributed.get_rank())
        config = {
            "train_micro_batch_size_per_gpu": 8,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine, *_ = engines.initialize(model=model, optimizer=optimizer, config=config)
        losses = []
        for _ in range(6):
            loss = engine(torch.randn(8, 16, generator=generator)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    engines.init_distributed(dist_backend=backend)
    assert distributed.get_world_size() == 2
    return {"losses": [train(stage) for stage in (1, 2)]}


def lightning(backend: str, directory: str) -> Found:
    """DDP training of Lightning's own example on this host; Lightning starts the ranks."""
    import lightning as pl
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.strategies import DDPStrategy

    class Model(BoringModel):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Any:
            found: Any = super().training_step(batch, index)
            self.log("loss", found["loss"], sync_dist=True)
            self.losses.append(found["loss"].item())
            return found

        def on_train_epoch_end(self) -> None:
            assert self.all_gather(torch.tensor([self.global_rank])).tolist() == [[0], [1]]
            self.losses.append(self.trainer.callback_metrics["loss"].item())

    pl.seed_everything(0, verbose=False)
    model, strategy = Model(), DDPStrategy(process_group_backend=backend)
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=3, default_root_dir=directory, **quiet
    )
    trainer.fit(model)
    weights = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
    return {"losses": model.losses, "weights": weights}


def torchmetrics(backend: str, directory: str) -> Found:
    """Metrics over ranks that have seen different numbers of examples."""
    from torchmetrics import MeanMetric, MetricCollection, classification

    kinds = [getattr(classification, f"Multiclass{name}") for name in ("Accuracy", "ConfusionMatrix", "AUROC")]
    distributed.init_process_group(backend)
    rank, size, generator = distributed.get_rank(), distributed.get_world_size(), torch.Generator().manual_seed(0)
    mine = MetricCollection({kind.__name__: kind(3) for kind in kinds})
    whole = MetricCollection({kind.__name__: kind(3, sync_on_compute=False) for kind in kinds})
    for turn, count in enumerate((7, 20, 3, 11, 1)):
        scores = torch.rand(count, 3, generator=generator).softmax(1)
        classes = torch.randint(3, (count,), generator=generator)
        for one in (mine, whole) if turn % size == rank else (whole,):
            one.update(scores, classes)
    mean = MeanMetric()
    mean.update(torch.full((rank + 1,), float(rank)))  # rank r has r + 1 times r
    found, of_all = ({kind: value.tolist() for kind, value in one.compute().items()} for one in (mine, whole))
    assert found == of_all
    return {"mine": found, "mean": mean.compute().item()}


def ray_train(backend: str, directory: str) -> None:
    """A small model on two workers of Ray Train, each with data of its own, which write what they find."""
    import ray
    import ray.train.torch as trains

    def train(config: dict[str, str]) -> None:
        torch.manual_seed(0)
        bare, generator = nn.Linear(4, 2), torch.Generator().manual_seed(distributed.get_rank())
        model: Any = trains.prepare_model(bare)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4, generator=generator)).square().mean().backward()
            optimizer.step()
        found = {"group": type(distributed.group.WORLD).__name__, "weights": bare.weight.tolist()}
        Path(config["directory"], f"{distributed.get_rank()}.json").write_text(json.dumps(found))

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trains.TorchTrainer(
        train,
        train_loop_config={"directory": directory},
        torch_config=trains.TorchConfig(backend=None if backend == "gloo" else backend),
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(storage_path=directory),
    ).fit()
    ray.shutdown()


def split(backend: str, directory: str) -> Found:
    """A small random Llama that transformers splits over the ranks."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    where = Path(directory, f"model-{os.environ['RANK']}")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
    LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)).save_pretrained(where)
    if backend != "gloo":
        distributed.init_process_group(backend)  # else transformers makes the group, and says gloo
    model = AutoModelForCausalLM.from_pretrained(where, tp_plan="auto", dtype=torch.float32)
    words = torch.arange(12).view(1, 12) % 96
    with torch.no_grad():
        scores = model(words).logits
        said = model.generate(words, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)
    assert model.model.layers[0].mlp.up_proj.weight.to_local().shape[0] == 64  # each rank has one half
    return {"scores": scores.flatten().tolist(), "said": said.tolist()}


def torchft(backend: str, directory: str) -> Found:
    """torchft's group over Gloo, configured anew as ranks come and go."""
    from torch.distributed.distributed_c10d import AllgatherOptions
    from torchft.process_group import ProcessGroupGloo

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    made = ProcessGroupGloo(timeout=timedelta(seconds=60))
    found: Found = {}
    for turn, members in enumerate((range(size), range(size - 1), range(size))):
        if rank in members:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}/turn-{turn}"
            made.configure(where, f"replica-{rank}", members.index(rank), len(members))
            torch.manual_seed(rank + turn)
            tensor, blocks = torch.randint(-99, 99, (999,)).float(), [[torch.empty(3) for _ in members]]
            made.allreduce([tensor], distributed.ReduceOp.SUM).wait()
            made.allgather(blocks, [tensor[:3].clone()], AllgatherOptions()).wait()
            made.broadcast_one(tensor, members[-1]).wait()
            found[f"{turn}"] = [tensor.tolist(), [block.tolist() for block in blocks[0]]]
    found["group"] = type(made.parent._get_backend(torch.device("cpu"))).__name__
    made.shutdown()
    return found


def trainer(backend: str, directory: str) -> Found:
    """transformers' Trainer on a tiny language model."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    # Sequences that count up from some word, by ones, twos or threes.
    words = [(index + torch.arange(16) * (1 + index % 3)) % 32 for index in range(97)]
    data: Any = [{"input_ids": some, "labels": some} for some in words]
    if backend != "gloo":  # the Trainer takes the group that there is
        distributed.init_process_group(backend)
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
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
    made = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data)
    made.train()
    assert type(made.model_wrapped) is nn.parallel.DistributedDataParallel
    return {
        "history": [entry.get("loss", entry.get("eval_loss")) for entry in made.state.log_history],
        "predicted": made.predict(data).predictions.flatten().tolist(),
    }


def group() -> str:
    return type(distributed.group.WORLD).__name__


def main(name: str, backend: str, directory: str, *rest: str) -> None:
    if (found := globals()[name](backend, directory, *rest)) is None:
        return  # its ranks are other processes
    rank = os.environ.get("RANK") or distributed.get_rank()
    Path(directory, f"{rank}.json").write_text(json.dumps({"group": group(), **found}))
    gc.collect()  # over Gloo, a DDP model that is freed after its group may wait for ever
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
