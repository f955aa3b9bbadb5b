"""One step on each of several processes; run by test_distributed.py through torchrun."""

from __future__ import annotations

import json
import sys

import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel

from hf_robustcse.distributed import leave_group
from hf_robustcse.model import RobustCSEModel


def gradients(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loss terms and gradients of one step."""
    out = model(**inputs)
    out["loss"].backward()
    named = {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {f"grad {name}": grad for name, grad in named.items()} | {f"term {k}": v.detach() for k, v in out.items()}


def load(folder: str, dtype: torch.dtype, named: dict[str, str]) -> RobustCSEModel:
    """The model of the test, in training mode; `named` are the options that name something outside the checkpoint."""
    return RobustCSEModel.from_pretrained(folder, method_options=named, dropout=0.0).to(dtype).train()


if __name__ == "__main__":
    folder, data, result, dtype, named, *chunk = sys.argv[1:]
    state = PartialState(cpu=True)
    batch = load_file(data)
    share = len(batch["input_ids"]) // state.num_processes
    mine = {k: v[state.process_index * share :][:share] for k, v in batch.items()}
    width = int(mine["attention_mask"].sum(-1).max())  # each process pads to its own longest sentence
    mine = {k: v[..., :width].contiguous() if k != "text_hash" else v for k, v in mine.items()}
    model = load(folder, getattr(torch, dtype), json.loads(named))
    if chunk:
        model.forward_chunk_size = int(chunk[0])
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = gradients(DistributedDataParallel(model) if state.num_processes > 1 else model, mine)
    terms = {k: v for k, v in found.items() if k.startswith("term ")}
    for value in terms.values():  # the loss of a process is the mean over its own rows
        if state.num_processes > 1:
            torch.distributed.all_reduce(value)
            value /= state.num_processes
    if state.is_main_process:
        save_file({k: v.contiguous() for k, v in found.items()}, result)
    leave_group()
