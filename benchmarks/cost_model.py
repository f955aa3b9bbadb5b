"""What a training step costs, counted: encoder passes, floating-point operations, bytes moved, bytes sent.

Counts only; no machine is in here. ``scaling.py`` fits the few constants of a machine to them, ``gpu_speed.py`` divides
them by seconds. A multiplication and an addition are two operations. ``tests/test_cost_model.py`` compares passes and
operations with what the methods really do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

METHODS = ("simcse", "vadv", "gs_infonce", "dclr", "dcl", "robustsentembed", "anchor")

# What a pass writes once and reads once in a layer, after the count of stored activations by Korthikanti et al. (2022):
# for a token 9 numbers of the width and 2 of the inner width, and 2.5 for each weight of attention.
OF_WIDTH, OF_INNER, OF_WEIGHT = 9, 2, 2.5
# AdamW reads weight, gradient, two moments and writes three; clipping reads the gradient twice and writes it.
OPTIMIZER_MOVES = 10
# A similarity is written and read by the division, the concatenation, the softmax and their gradients.
SIMILARITY_MOVES = 12


@dataclass(frozen=True)
class Encoder:
    """The shape of a BERT: BERT-base by default."""

    width: int = 768
    layers: int = 12
    inner: int = 3072
    heads: int = 12
    vocabulary: int = 30522
    positions: int = 512

    @property
    def parameters(self) -> int:
        """Trained parameters: without the pooler of next-sentence prediction, with SimCSE's head."""
        d, inner = self.width, self.inner
        embeddings = (self.vocabulary + self.positions + 2) * d + 2 * d
        layer = 4 * (d * d + d) + 2 * d * inner + inner + d + 4 * d
        return embeddings + self.layers * layer + d * d + d


@dataclass(frozen=True)
class Load:
    """What one process reads in a step.

    Args:
        rows: N, sentences.
        tokens: of all rows.
        pairs: the sum of the squares of the rows' lengths, for attention.
        processes: P.
    """

    rows: int
    tokens: float
    pairs: float
    processes: int = 1

    @classmethod
    def of(cls, lengths: Sequence[int], processes: int = 1) -> Load:
        """Rows of these lengths, without padding."""
        return cls(len(lengths), sum(lengths), sum(n * n for n in lengths), processes)

    @classmethod
    def full(cls, rows: int, length: int, processes: int = 1) -> Load:
        """Rows that are all as long, or are padded to it."""
        return cls(rows, rows * length, rows * length * length, processes)


@dataclass(frozen=True)
class Pass:
    """A pass through an encoder.

    Args:
        kind: ``trained``: forward, and backward to weights and inputs; ``ascended``: forward, and backward to the word
            embeddings alone; ``forward``.
        views: how often the batch goes through it in a step.
        calls: of the encoder that this takes: views may share one.
        what: in words.
        network: ``encoder``, or another one of its kind: ``discriminator``, ``generator``, ``target``, ``complement``.
    """

    kind: str
    views: int
    calls: int
    what: str
    network: str = "encoder"

    @property
    def products(self) -> int:
        """Matrix products with the weights, in those of a forward pass."""
        return self.views * {"trained": 3, "ascended": 2, "forward": 1}[self.kind]

    @property
    def attention(self) -> int:
        """Products of attention, in those of a forward pass: none has a weight, so both sides need a gradient."""
        return self.views * {"trained": 3, "ascended": 3, "forward": 1}[self.kind]


@dataclass(frozen=True)
class Options:
    """What changes the count; None is the method's default.

    Args:
        steps: K of vadv (1) and of robustsentembed's chains (5), t of dclr (4).
        multiple: k, noise negatives as a multiple of the global batch: gs_infonce 3, dclr 1.
        detection: whether robustsentembed detects replaced tokens.
        language_model: whether dcl trains on masked words.
        complement: whether dclr reads the batch with another encoder.
        discriminator_layers: of robustsentembed; None is the encoder's, at most 6.
        predicted: part of the tokens that the head over the vocabulary reads: dcl 0.15, robustsentembed 0.3.
    """

    steps: int | None = None
    multiple: float | None = None
    detection: bool = True
    language_model: bool = True
    complement: bool = False
    discriminator_layers: int | None = None
    predicted: float | None = None


def steps_of(method: str, options: Options) -> int:
    """Steps of the method's ascent."""
    default = {"vadv": 1, "robustsentembed": 5, "dclr": 4}.get(method, 0)
    return default if options.steps is None else options.steps


def multiple_of(method: str, options: Options) -> float:
    """Noise negatives, as a multiple of the global batch."""
    default = {"gs_infonce": 3.0, "dclr": 1.0}.get(method, 0.0)
    return default if options.multiple is None or not default else options.multiple


def passes(method: str, options: Options | None = None) -> list[Pass]:
    """The passes of a step, from ``hf_robustcse/methods``; mnrl and released, the peers, take those of simcse.

    Args:
        method: one of METHODS, ``mnrl`` or ``released``.
        options: see `Options`.

    Returns:
        One entry for each kind of pass.
    """
    options = options or Options()
    steps = steps_of(method, options)
    if method in ("mnrl", "released"):
        return [Pass("trained", 2, 2 if method == "mnrl" else 1, "two views")]
    if method == "vadv":  # the clean side of the divergence is the anchors' own pass
        return [
            Pass("trained", 2, 2, "two views, the first one's dropout masks kept"),
            Pass("ascended", steps, steps, "K steps of the attack"),
            Pass("trained", 1, 1, "the attacked batch"),
        ]
    if method == "robustsentembed":
        chains = 3 if options.detection else 2
        found = [
            Pass("trained", 2, 1, "two views"),
            Pass("ascended", chains * steps, steps, f"K steps of {chains} attacks, each step in one pass"),
            Pass("trained", 1, 1, "the attacked batch"),
        ]
        if options.detection:
            found += [
                Pass("forward", 1, 1, "the generator, with its head over the vocabulary for masked words", "generator"),
                Pass("trained", 1, 1, "the discriminator", "discriminator"),
            ]
        return found
    if method == "dcl":
        found = [Pass("trained", 2, 1, "two views"), Pass("forward", 2, 2, "the momentum target", "target")]
        if options.language_model:
            found.append(Pass("trained", 1, 1, "the masked batch, with the head over the vocabulary for masked words"))
        return found
    if method == "anchor":
        return [
            Pass("trained", 2, 2, "the batch and its perturbed version"),
            Pass("forward", 1, 1, "the encoder as it was", "teacher"),
        ]
    found = [Pass("trained", 2, 1, "two views")]
    if method == "dclr" and options.complement:
        found.append(Pass("forward", 1, 1, "the complementary encoder, until its embeddings are kept", "complement"))
    return found


@dataclass
class Work:
    """Operations and bytes of a step of one process, by what they are for; `sent` is what leaves the process."""

    flops: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    layer_calls: int = 0
    """Layers run, forward or backward: what launches cost."""


def work(method: str, encoder: Encoder, load: Load, options: Options | None = None, *, number: int = 4) -> Work:
    """Count a step.

    Args:
        method: one of METHODS, ``mnrl`` or ``released``.
        encoder: its shape.
        load: what one process reads.
        options: of the method.
        number: bytes of an activation: 4 in float32, 2 in bfloat16. Similarities, weights and gradients have 4.

    Returns:
        The counts of one process.
    """
    options = options or Options()
    d, rows, world = encoder.width, load.rows, load.processes
    everyone = rows * world
    noise = round(multiple_of(method, options) * everyone)
    steps = steps_of(method, options)
    small = options.discriminator_layers or min(6, encoder.layers)
    found = Work()

    products = attention = pooled = activations = 0.0
    for one in passes(method, options):
        layers = small if one.network == "discriminator" else encoder.layers
        products += one.products * layers * 2 * load.tokens * (4 * d * d + 2 * d * encoder.inner)
        attention += one.attention * layers * 4 * load.pairs * d
        # BERT's own pooler runs in every pass but a language model's of its own, and gets no gradient.
        pooled += 2 * rows * d * d * one.views * (one.network != "generator")
        units = one.views * (1 if one.kind == "forward" else 3)
        numbers = load.tokens * (OF_WIDTH * d + OF_INNER * encoder.inner) + OF_WEIGHT * encoder.heads * load.pairs
        activations += units * layers * 2 * number * numbers
        found.layer_calls += one.calls * layers * {"trained": 3, "ascended": 3, "forward": 1}[one.kind]

    # One run of the head over the sentence vectors: V-advCSE's and RobustSentEmbed's has two linear maps.
    head = 2 * rows * d * d * (2 if method in ("vadv", "robustsentembed") else 1)
    predicted = 0.3 if method == "robustsentembed" else 0.15
    predicted = load.tokens * (predicted if options.predicted is None else options.predicted)
    over_vocabulary = 2 * predicted * (d * d + d * encoder.vocabulary)
    similarity = 2 * rows * everyone * d
    heads = similarities = matrices = vocabulary = 0.0
    if method == "dcl":
        hidden, out = 512, 128
        projection, predictor = d * hidden + hidden * out, 2 * out * hidden
        heads = 2 * 2 * rows * (3 * (projection + predictor) + projection)  # X and X'; the target's forward alone
        vocabulary = 3 * over_vocabulary if options.language_model else 0.0
    elif method not in ("mnrl", "anchor"):
        heads = 2 * 3 * head
    if method not in ("dcl", "anchor"):
        similarities = 3 * similarity + 2 * (2 * rows * noise * d)  # noise gets no gradient
        matrices = rows * (everyone + noise)
    if method == "robustsentembed":
        chains = 3 if options.detection else 2
        heads += 3 * head + chains * steps * 2 * head
        similarities += 2 * 3 * similarity + chains * steps * 2 * similarity
        matrices += rows * everyone * (2 + chains * steps)
        if options.detection:
            vocabulary = over_vocabulary
            heads += 3 * 2 * load.tokens * d
    ascent = steps * 2 * (2 * everyone * noise * d) if method == "dclr" else 0.0
    if method == "dclr" and options.complement:
        similarities += 2 * everyone * everyone * d
    found.flops = {
        "encoder products": products, "encoder attention": attention, "heads": heads + pooled,
        "vocabulary": vocabulary, "similarities": similarities, "noise ascent": ascent,
    }  # fmt: skip

    drawn = noise * d
    if method == "vadv":
        drawn = world * load.tokens * d  # for the global batch, so that processes do not change it
    found.moved = {
        "activations": activations,
        "optimizer": 4 * OPTIMIZER_MOVES * encoder.parameters,
        "similarities": 4 * SIMILARITY_MOVES * matrices,
        "noise ascent": 4 * SIMILARITY_MOVES * everyone * noise * (steps if method == "dclr" else 0),
        "noise": 2 * 4 * drawn,
    }

    # A ring: gathering sends a row to P - 1 others; its gradient is reduced over the whole, which is twice that.
    gathered = (world - 1) * rows * d * number
    gathers = {"dcl": 0, "anchor": 0, "robustsentembed": 9, "dclr": 5}.get(method, 3)
    found.sent = {
        "embeddings": gathers * gathered,
        "perturbations": (world - 1) * load.tokens * d * 4 * (method == "robustsentembed" and options.detection),
        "gradients": 2 * (world - 1) / world * 4 * encoder.parameters,
    }
    return found
