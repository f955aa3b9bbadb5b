"""An exported folder through sentence-transformers' own ONNX backend, against embeddings that torch gave.

First where hf_robustcse is installed (writes texts and embeddings), then by the interpreter of an environment with
sentence-transformers' ONNX extra, which needs neither hf_robustcse nor its version of transformers:

    python benchmarks/onnx_backend_check.py --model MODEL --save reference.npz
    onnx/bin/python benchmarks/onnx_backend_check.py --export OUT --reference reference.npz --output result.json

The second exits with code 1 if the float graph differs by more than 1e-5 in a coordinate of normalised embeddings.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

TEXTS = [
    "", "a", "!?", "A dog runs in the park.", "naïve café – “quotes” …", "日本語の文です。", "Привет, мир", "x" * 300,
    "one two three four five six seven eight nine ten " * 120,
    *(" ".join(f"word{n % 7} and" for n in range(length)) for length in range(1, 90)),
]  # fmt: skip


def embed(model: SentenceTransformer) -> np.ndarray:
    """(n, d) normalised embeddings of the texts."""
    return model.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the checkpoint, for --save")
    parser.add_argument("--save", help="write torch's embeddings here")
    parser.add_argument("--export", nargs="+", default=[], help="folders of hf-robustcse export")
    parser.add_argument("--reference", nargs="+", default=[], help="what --save wrote for the model of each folder")
    parser.add_argument("--output", help="the result")
    args = parser.parse_args()
    if args.save:
        np.savez(args.save, embeddings=embed(SentenceTransformer(args.model, device="cpu")))
        return
    result: dict = {"texts": len(TEXTS), "models": {}}
    for folder, reference in zip(args.export, args.reference, strict=True):
        expected = np.load(reference)["embeddings"]
        graphs = result["models"][Path(folder).name] = {}
        for file in sorted(Path(folder, "onnx").glob("*.onnx")):
            name = f"onnx/{file.name}"
            model = SentenceTransformer(folder, backend="onnx", model_kwargs={"file_name": name}, device="cpu")
            found = embed(model)
            graphs[name] = {
                "backend": type(model[0].auto_model).__name__,
                "modules": [type(module).__name__ for module in model],
                "max_difference": float(np.abs(found - expected).max()),
                "min_cosine": float((found * expected).sum(axis=1).min()),
            }
    packages = ("sentence-transformers", "transformers", "optimum", "optimum-onnx", "onnxruntime", "torch", "numpy")
    result["versions"] = {name: importlib.metadata.version(name) for name in packages}
    try:
        importlib.metadata.version("hf_robustcse")
        result["hf_robustcse_installed"] = True
    except importlib.metadata.PackageNotFoundError:
        result["hf_robustcse_installed"] = False
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if args.output:
        Path(args.output).write_text(text, encoding="utf-8")
    if any(graph["max_difference"] > 1e-5 for graphs in result["models"].values() for name, graph in graphs.items()
           if name == "onnx/model.onnx"):  # fmt: skip
        sys.exit("a float graph differs from torch")


if __name__ == "__main__":
    main()
