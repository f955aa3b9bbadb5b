"""Masked-language modelling on the backbone that is being trained, with the head of its own architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers  # its models load on first use
from torch import Tensor, nn

from hf_robustcse.distributed import all_reduce_sum, world_size
from hf_robustcse.encoder import load_masked_lm
from hf_robustcse.errors import UserError
from hf_robustcse.packing import masked_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MaskedLM(nn.Module):
    """The head of the architecture's masked-language model, on top of a backbone that belongs to somebody else.

    Its parameters are the head's alone, and only those are in its state: the decoder is tied to the word embeddings
    where the architecture ties them.

    Args:
        backbone: what `AutoModel` gives; it stays outside of this module's parameters and state.

    Raises:
        UserError: if the architecture has no masked-language model.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        try:
            model = transformers.AutoModelForMaskedLM.from_config(backbone.config, dtype=torch.float32)
        except ValueError as error:
            raise UserError(f"{type(backbone).__name__} has no head of masked-language modelling") from error
        setattr(model, model.base_model_prefix, backbone)
        model.tie_weights()
        self.parts = nn.ModuleDict({name: part for name, part in model.named_children() if part is not backbone})
        self._model = [model]  # in a list: the backbone is no part of this module
        self.register_state_dict_post_hook(_drop_tied)

    @property
    def embeddings(self) -> nn.Module:
        """The word embeddings of the backbone."""
        return self._model[0].get_input_embeddings()

    def load_pretrained(self, model_name_or_path: str, **kwargs: Any) -> None:
        """Take the head's weights from a checkpoint.

        Args:
            model_name_or_path: a folder or Hub id that ``AutoModelForMaskedLM`` loads.
            **kwargs: for ``from_pretrained``.

        Raises:
            UserError: if it cannot be loaded or has no such head.
        """
        model = load_masked_lm(model_name_or_path, **kwargs)
        with torch.no_grad():
            for name, part in self.parts.items():
                found = dict(getattr(model, name).named_parameters())
                for key, parameter in part.named_parameters():
                    if parameter is not self.embeddings.weight:
                        parameter.copy_(found[key])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Logits over the vocabulary (N, L, V) of (N, L) ids, or (M, V) of the M `chosen` ones, (N, L), alone."""
        if chosen is None:
            return self._model[0](input_ids=input_ids, attention_mask=attention_mask).logits
        return masked_logits(self._model[0], input_ids, attention_mask, chosen)


def _drop_tied(module: MaskedLM, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Leave out what is tied: safetensors stores no tensor twice, and the embeddings are the backbone's to save."""
    seen = {id(parameter) for parameter in module.embeddings.parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            del state[prefix + name]
        seen.add(id(parameter))


def mask_tokens(
    input_ids: Tensor, maskable: Tensor, noise: Tensor, *, rate: float, mask_token_id: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Choose tokens to predict; of these 80 % become the mask token, 10 % a random token, and 10 % stay.

    Args:
        input_ids: (N, L).
        maskable: (N, L), true for the tokens that may be chosen.
        noise: (N, L, 3) standard normal: the chosen ones, what becomes of them, the random tokens.
        rate: probability that a token is chosen, in [0, 1].
        mask_token_id: of the tokenizer.
        vocabulary: V; random tokens are uniform in [0, V).

    Returns:
        (N, L) ids to read, and (N, L), true for the tokens to predict.
    """
    uniform = torch.special.ndtr(noise)
    chosen = maskable & (uniform[..., 0] < rate)
    fate = uniform[..., 1]
    masked = torch.where(chosen & (fate < 0.8), torch.full_like(input_ids, mask_token_id), input_ids)
    strangers = (uniform[..., 2] * vocabulary).long().clamp_max(vocabulary - 1)
    return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), strangers, masked), chosen


def mlm_total(logits: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """Cross-entropy of the chosen tokens, in nats, their sum.

    Args:
        logits: (M, V), of the M chosen tokens.
        targets: (N, L) ids.
        chosen: (N, L), true for the tokens to predict.

    Returns:
        A scalar.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(wide, targets[chosen], reduction="sum")


def mean_over_chosen(total: Tensor, chosen: Tensor) -> Tensor:
    """The sum of this process' tokens over the number of tokens of all processes; 0 if there is none.

    Args:
        total: a scalar, of `mlm_total`.
        chosen: (N, L), true for the tokens to predict.

    Returns:
        A scalar whose mean over the processes is the mean over the chosen tokens of the global batch.
    """
    count = all_reduce_sum(chosen.sum().to(total.dtype)).clamp_min(1)
    return total * world_size() / count
