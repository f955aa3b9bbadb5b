"""Train a sentence encoder on plain text.

    accelerate launch examples/run_unsup.py --method vadv
    accelerate launch examples/run_unsup.py --method vadv --model_name_or_path bert-base-uncased \\
        --train_file sentences.txt --max_seq_length 32 --output_dir my-model
    accelerate launch examples/run_unsup.py recipe.yaml --learning_rate 1e-5

Without a model and a corpus it trains the tiny embedded encoder on the embedded corpus. All options of transformers'
``TrainingArguments`` are accepted; ``--help`` lists them with those of the methods.

``--push_to_hub --hub_model_id OWNER/NAME`` publishes the model; whether the token may write there is asked before
training. If the push in the end fails the run is finished and the model on the disk; the last line is the command to
push it again, and the exit code is 1.
"""

from __future__ import annotations

from hf_robustcse.errors import PushFailed, TrainingStopped, UserError, command
from hf_robustcse.quick_help import print_help


@command
def main() -> None:
    # What makes the options, and then what trains, takes seconds to import: help and mistakes come first.
    print_help("run_unsup")
    from hf_robustcse.arguments import parse_arguments
    from hf_robustcse.distributed import leave_group

    try:
        arguments = parse_arguments()
        from hf_robustcse.runs import run

        run(arguments)
    except (UserError, TrainingStopped, PushFailed):  # by every process, or nothing waits for the one that pushed
        leave_group()
        raise
    leave_group()


if __name__ == "__main__":
    main()
