"""Train a sentence encoder on plain text.

    accelerate launch examples/run_unsup.py --method vadv
    accelerate launch examples/run_unsup.py --method vadv --model_name_or_path bert-base-uncased \\
        --train_file sentences.txt --max_seq_length 32 --output_dir my-model
    accelerate launch examples/run_unsup.py recipe.yaml --learning_rate 1e-5

Without a model and a corpus it trains the tiny embedded encoder on the embedded corpus. All options of transformers'
``TrainingArguments`` are accepted; ``--help`` lists them with those of the methods.
"""

from __future__ import annotations

from hf_robustcse.distributed import leave_group
from hf_robustcse.errors import TrainingStopped, UserError, command
from hf_robustcse.runs import parse_arguments, run


@command
def main() -> None:
    try:
        run(parse_arguments())
    except (UserError, TrainingStopped):  # raised by every process; after another error the rest may still wait
        leave_group()
        raise
    leave_group()


if __name__ == "__main__":
    main()
