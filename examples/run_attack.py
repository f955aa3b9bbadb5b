#!/usr/bin/env python
"""Attack a classifier, or an encoder under a classifier trained on the spot, and measure what it withstands.

    python examples/run_attack.py --model_name_or_path X --task MR --data_file mr.tsv --attack pwws --output_dir out
    python examples/run_attack.py --model_name_or_path X --task SNLI --data_dir data --attack all --output_dir out
    torchrun --nproc_per_node 4 examples/run_attack.py ...   (the processes share the examples)
    python examples/run_attack.py --figure out another --output_dir both

Killed at any moment, the same command goes on where it was. results.json has the figures, TASK-ATTACK.jsonl a line for
each example, TASK-ATTACK.html the texts side by side.
"""

from __future__ import annotations

import contextlib
import os
import sys

from hf_robustcse.attack_runs.arguments import parse_arguments
from hf_robustcse.errors import UserError, command


@command
def main() -> None:
    options = parse_arguments(description=__doc__)
    # Imports after the parser: a usage error need not load torch.
    from hf_robustcse.distributed import join_group, leave_group, rank

    join_group()
    try:
        with contextlib.ExitStack() as stack:
            if rank():
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            if isinstance(options, tuple):
                from hf_robustcse.attack_runs.figure import draw_command

                draw_command(*options)
            else:
                from hf_robustcse.attack_runs.run import run_attacks

                run_attacks(options)
    except UserError:  # raised by every process; after another error the rest may still wait
        leave_group()
        raise
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    leave_group()


if __name__ == "__main__":
    main()
