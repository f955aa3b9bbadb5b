"""An exported ONNX folder as a SentenceTransformer, by onnxruntime alone.

sentence-transformers' own ONNX backend reads the same folder, but through optimum, which does not allow the version of
transformers that trains here.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as module_types
from transformers import AutoTokenizer

from hf_robustcse import layout
from hf_robustcse.deploy.encode_command import DEFAULT_FILE
from hf_robustcse.errors import UserError
from hf_robustcse.files import read_json

OUTPUT = "last_hidden_state"
"""Name of the graph's output, the token embeddings, as optimum expects it."""


def require_onnx(*packages: str) -> None:
    """Check that optional packages are there.

    Args:
        *packages: of onnx, onnxscript and onnxruntime.

    Raises:
        UserError: naming the first that is missing and the command that installs it.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            raise UserError(f'{package} is not installed: pip install "hf_robustcse[onnx]"') from None


class OnnxTransformer(module_types.InputModule):
    """The first module of a SentenceTransformer: tokenizer and ONNX graph.

    The session is opened at the first batch, in the process that uses it, with as many threads as torch has there.

    Args:
        path: the .onnx file.
        tokenizer: a tokenizer of transformers.
        max_seq_length: longer texts are truncated to this many tokens.
    """

    def __init__(self, path: str | Path, tokenizer: Any, max_seq_length: int) -> None:
        super().__init__()
        require_onnx("onnxruntime")
        self.path = str(path)
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which cannot travel to another process."""
        return {**self.__dict__, "_session": None}

    @property
    def session(self) -> Any:
        """The onnxruntime session.

        Raises:
            UserError: if onnxruntime does not read the file.
        """
        if self._session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            try:
                self._session = onnxruntime.InferenceSession(
                    self.path, options, providers=onnxruntime.get_available_providers()
                )
            except Exception as error:  # onnxruntime's exceptions share no public base
                reason = " ".join(str(error).split())[:300]
                raise UserError(f"{self.path}: onnxruntime cannot read it ({reason})") from None
        return self._session

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Tokenise n texts, each with `prompt` in front; returns int64 tensors (n, L)."""
        return dict(
            self.tokenizer(
                self._prepend_prompt(inputs, prompt) if prompt else inputs,
                padding=True, truncation=True, max_length=self.max_seq_length, return_tensors="pt",
            )
        )  # fmt: skip

    def forward(self, features: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Add `token_embeddings` (n, L, d)."""
        feed = {}
        for given in self.session.get_inputs():
            # Token types are zeros for single texts; a tokenizer of another release may leave them out.
            feature = features.get(given.name)
            feed[given.name] = (torch.zeros_like(features["input_ids"]) if feature is None else feature).cpu().numpy()
        (tokens,) = self.session.run([OUTPUT], feed)
        features["token_embeddings"] = torch.from_numpy(tokens)
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: the folder that `hf-robustcse export` wrote is the saved form.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("copy the exported folder instead")


def load_onnx(model_name_or_path: str, file_name: str = DEFAULT_FILE) -> SentenceTransformer:
    """Load an exported folder or Hub repository; its `encode` is that of any SentenceTransformer, on the CPU.

    Args:
        model_name_or_path: what `hf-robustcse export` wrote.
        file_name: which of its graphs, such as `onnx/model_quint8_avx2.onnx`.

    Returns:
        The model.

    Raises:
        UserError: if there is no such file, or a module that the export does not write.
    """
    name = str(model_name_or_path)
    graph = layout.find(name, file_name)
    # Weights over 2 GB lie beside the graph, which the Hub fetches only if asked.
    layout.find(name, f"{file_name}_data")
    listed, settings, sentence = (
        layout.find(name, file)
        for file in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
    )
    if graph is None or listed is None or sentence is None:
        missing = file_name if graph is None else "modules.json or sentence_bert_config.json"
        raise UserError(f"{name} has no {missing}: give a folder that `hf-robustcse export` wrote")
    limits = read_json(sentence)
    modules: list[torch.nn.Module] = [
        OnnxTransformer(graph, AutoTokenizer.from_pretrained(name), limits["max_seq_length"])
    ]
    for entry in read_json(listed)[1:]:
        kind = getattr(module_types, entry["type"].rsplit(".", 1)[-1], None)
        if kind is None:
            raise UserError(f"{listed}: unknown module {entry['type']}; export the model again")
        modules.append(kind.load(name, subfolder=entry["path"]))
    about = {} if settings is None else read_json(settings)
    return SentenceTransformer(
        modules=modules, device="cpu", prompts=about.get("prompts") or None,
        default_prompt_name=about.get("default_prompt_name"), similarity_fn_name=about.get("similarity_fn_name"),
    ).eval()  # fmt: skip
