"""Fine-tuning on labelled tasks with the stock classes of transformers, and how robust the result is."""
