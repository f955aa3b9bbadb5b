"""Sweep a declared grid of settings, several seeds each, into one table and one picture.

    python examples/run_ablation.py --list
    accelerate launch examples/run_ablation.py vadv-lambda --model_name_or_path bert-base-uncased \\
        --train_file sentences.txt --eval_data_dir data --test_tasks sts --seeds 0 1 2 --output_dir vadv-lambda
    accelerate launch examples/run_ablation.py dcl-norm        # DCL's Figure 3, on the embedded encoder

The grids are declared in ``examples/ablations.yaml``; ``--grids FILE`` reads others. Given again, the same command goes
on where it was interrupted, within a run too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hf_robustcse.errors import UserError, command
from hf_robustcse.quick_help import print_help


@command
def main() -> None:
    print_help("run_ablation")
    from hf_robustcse.ablation import parse_sweep, run_sweep  # takes seconds to import: help comes first
    from hf_robustcse.distributed import leave_group

    try:
        sweep = parse_sweep(None, Path(__file__).with_name("ablations.yaml"))
        record = run_sweep(sweep) if sweep else {}
    except UserError:  # raised by every process
        leave_group()
        raise
    leave_group()
    if any(row["failed"] for row in record.get("cells", {}).values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
