"""Fine-tune an encoder on a labelled task and measure how robust the result is.

    accelerate launch examples/run_finetune.py --task snli --model_name_or_path my-model --data_dir data
    accelerate launch examples/run_finetune.py --task squad --model_name_or_path bert-base-uncased --seeds 0 1 2

Each set is scored as it is and under seeded perturbations that keep its labels; results.json holds both, and how many
predictions stayed the same. All options of transformers' ``TrainingArguments`` are accepted; ``--help`` lists them.
"""

from __future__ import annotations

from hf_robustcse.errors import UserError, command
from hf_robustcse.quick_help import print_help


@command
def main() -> None:
    # What makes the options, and then what trains, takes seconds to import: help and mistakes come first.
    print_help("run_finetune")
    from hf_robustcse.distributed import leave_group
    from hf_robustcse.finetune.arguments import parse_arguments

    try:
        arguments = parse_arguments()
        from hf_robustcse.finetune.run import run

        run(arguments)
    except UserError:  # raised by every process; after another error the rest may still wait
        leave_group()
        raise
    leave_group()


if __name__ == "__main__":
    main()
