"""One process of a group that embeds texts together; the first writes what every process got, as JSON."""

from __future__ import annotations

import json
import sys

import torch

from hf_robustcse.distributed import encode_together, join_group, leave_group, on_first, rank, world_size
from hf_robustcse.errors import UserError

BATCH = 4


def sentences_of(n: int) -> list[str]:
    """Texts of very different lengths, some of them equal in length, one repeated."""
    return [f"{i % 5}" * (1 + (i * 37) % 91) for i in range(n)]


def encode(seen: list[list[str]]):
    """An encoder whose rows depend on the text alone, and which notes its batches."""

    def run(sentences: list[str]) -> torch.Tensor:
        seen.append(sentences)
        return torch.tensor([[len(s), ord(s[0]), 0.5] for s in sentences]).view(len(sentences), 3)

    return run


def refuse() -> None:
    raise UserError("the first process refuses")


def main(output: str) -> None:
    join_group()
    found = {}
    for n in (0, 1, 3, 4, 5, 8, 9, 31):
        seen: list[list[str]] = []
        rows = encode_together(encode(seen), sentences_of(n), width=3, batch_size=BATCH)
        everyone = [None] * world_size()
        torch.distributed.all_gather_object(everyone, {"rows": rows.tolist(), "batches": seen})
        found[n] = everyone
    assert on_first(lambda: {"rank": rank()}) == {"rank": 0}
    try:
        on_first(refuse)
        message = None
    except UserError as error:
        message = str(error)
    everyone = [None] * world_size()
    torch.distributed.all_gather_object(everyone, message)
    if rank() == 0:
        with open(output, "w", encoding="utf-8") as file:
            json.dump({"found": found, "refused": everyone}, file)
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1])
