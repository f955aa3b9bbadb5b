"""PowerNorm against a float64 loop over Python lists: forward, backward, running statistics, saving and resuming.

`eps` is tiny here, so that the place where it enters the formula does not matter.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Sequence

import pytest
import torch

from hf_robustcse.modules import PowerNorm

EPS = 1e-12
CLOSE = {"rtol": 1e-8, "atol": 1e-9}
Matrix = Sequence[Sequence[float]]


class Oracle:
    """DCL section 2 (after Shen et al. 2020), one feature of one row at a time."""

    def __init__(self, features: int, alpha_fwd: float, alpha_bwd: float, warmup: int) -> None:
        self.features, self.alpha_fwd, self.alpha_bwd, self.warmup = features, alpha_fwd, alpha_bwd, warmup
        self.weight, self.bias = [1.0] * features, [0.0] * features
        self.psi2, self.nu, self.step = [1.0] * features, [0.0] * features, 0

    def forward(self, x: Matrix) -> list[list[float]]:
        self.step += 1
        batch = [math.fsum(row[k] ** 2 for row in x) / len(x) for k in range(self.features)]
        scale2 = batch if self.step <= self.warmup else self.psi2
        self.psi = [math.sqrt(v) for v in scale2]
        self.x_hat = [[row[k] / self.psi[k] for k in range(self.features)] for row in x]
        self.psi2 = [old + (1 - self.alpha_fwd) * (new - old) for old, new in zip(self.psi2, batch, strict=True)]
        return [[self.weight[k] * row[k] + self.bias[k] for k in range(self.features)] for row in self.x_hat]

    def backward(self, gradient: Matrix) -> tuple[list[list[float]], list[float], list[float]]:
        """Gradients of the input, the weight and the bias."""
        n, features = len(gradient), range(self.features)
        scaled = [[self.weight[k] * row[k] for k in features] for row in gradient]
        grad_x = [[(scaled[i][k] - self.nu[k] * self.x_hat[i][k]) / self.psi[k] for k in features] for i in range(n)]
        for k in features:
            gamma = math.fsum(self.x_hat[i][k] ** 2 for i in range(n)) / n
            lam = math.fsum(scaled[i][k] * self.x_hat[i][k] for i in range(n)) / n
            self.nu[k] = self.nu[k] * (1 - (1 - self.alpha_bwd) * gamma) + (1 - self.alpha_bwd) * lam
        grad_weight = [math.fsum(gradient[i][k] * self.x_hat[i][k] for i in range(n)) for k in features]
        grad_bias = [math.fsum(gradient[i][k] for i in range(n)) for k in features]
        return grad_x, grad_weight, grad_bias

    def evaluate(self, x: Matrix) -> list[list[float]]:
        columns = range(self.features)
        return [[self.weight[k] * row[k] / math.sqrt(self.psi2[k]) + self.bias[k] for k in columns] for row in x]


def rand(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual: torch.Tensor, expected: object, **tolerance: float) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, **(tolerance or CLOSE))


def norm(features: int = 3, alpha_fwd: float = 0.8, alpha_bwd: float = 0.7, warmup: int = 0) -> PowerNorm:
    return PowerNorm(features, alpha_fwd=alpha_fwd, alpha_bwd=alpha_bwd, warmup_steps=warmup, eps=EPS).double()


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def train_step(module: PowerNorm, seed: int, rows: int = 5) -> list[torch.Tensor]:
    """One training step as an optimizer would make it; returns the output and the three gradients."""
    features = module.weight.numel()
    # Columns of different size, away from the initial psi of 1.
    x = (rand(seed, rows, features) * torch.linspace(0.5, 4.0, features).double() + 0.3).requires_grad_()
    module.zero_grad()
    out = module(x)
    out.backward(rand(seed + 1000, rows, features))
    gradients = [x.grad, module.weight.grad.clone(), module.bias.grad.clone()]
    with torch.no_grad():
        module.weight -= 0.05 * module.weight.grad
        module.bias -= 0.05 * module.bias.grad
    return [out.detach(), *gradients]


def oracle_step(oracle: Oracle, seed: int, rows: int = 5) -> list[object]:
    features = oracle.features
    x = rand(seed, rows, features) * torch.linspace(0.5, 4.0, features).double() + 0.3
    out = oracle.forward(x.tolist())
    grad_x, grad_weight, grad_bias = oracle.backward(rand(seed + 1000, rows, features).tolist())
    oracle.weight = [w - 0.05 * g for w, g in zip(oracle.weight, grad_weight, strict=True)]
    oracle.bias = [b - 0.05 * g for b, g in zip(oracle.bias, grad_bias, strict=True)]
    return [out, grad_x, grad_weight, grad_bias]


@pytest.mark.parametrize(("alpha_fwd", "alpha_bwd"), [(0.9, 0.9), (0.8, 0.3), (0.0, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (1, 4), (5, 3), (8, 6)])
def test_training_then_evaluation_equals_the_loop(
    rows: int, features: int, warmup: int, alpha_fwd: float, alpha_bwd: float
) -> None:
    module = norm(features, alpha_fwd, alpha_bwd, warmup)
    oracle = Oracle(features, alpha_fwd, alpha_bwd, warmup)
    for seed in range(6):
        names = ("output", "input gradient", "weight gradient", "bias gradient")
        got, expected = train_step(module, seed, rows), oracle_step(oracle, seed, rows)
        for name, actual, wanted in zip(names, got, expected, strict=True):
            wanted = torch.tensor(wanted, dtype=torch.float64)
            assert torch.allclose(actual, wanted, **CLOSE), f"{name} of step {seed + 1}: {actual} instead of {wanted}"
    module.eval()
    x = rand(99, 4, features)
    close(module(x), oracle.evaluate(x.tolist()))


def test_initial_state() -> None:
    module = PowerNorm(4)
    parameters = {name: value.tolist() for name, value in module.named_parameters()}
    assert parameters == {"weight": [1.0] * 4, "bias": [0.0] * 4}
    buffers = dict(module.named_buffers())
    vectors = sorted(value.tolist() for value in buffers.values() if value.shape == (4,))
    scalars = [value.item() for value in buffers.values() if value.numel() == 1]
    assert vectors == [[0.0] * 4, [1.0] * 4], "nu starts at 0 and psi squared at 1"
    assert scalars == [0], "the step counter"
    assert set(module.state_dict()) == set(buffers) | {"weight", "bias"}, "every statistic is saved"


def test_first_step_uses_the_statistics_before_it() -> None:
    module, x = norm(), rand(1, 5, 3)
    close(module(x), x)  # psi is 1 until the update that follows
    assert not torch.allclose(module(x), x)


def test_warmup_uses_the_statistics_of_the_batch() -> None:
    module = norm(warmup=2)
    for seed in (1, 2):
        close(module(7 * rand(seed, 6, 3)).square().mean(0), [1.0] * 3)
    assert not torch.allclose(module(7 * rand(3, 6, 3)).square().mean(0), torch.ones(3).double(), rtol=1e-3)


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_saved_module_continues_identically(at: int) -> None:
    module, resumed = norm(warmup=2), norm(warmup=2)
    for seed in range(at):
        train_step(module, seed)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert same(state(module), state(resumed))
    twin = copy.deepcopy(module)
    for seed in range(at, 7):
        expected = train_step(module, seed)
        for other in (resumed, twin):
            assert all(torch.equal(a, b) for a, b in zip(train_step(other, seed), expected, strict=True))
            assert same(state(other), state(module))


@pytest.mark.parametrize("warmup", [0, 10])
def test_evaluation_is_a_fixed_affine_map_and_changes_nothing(warmup: int) -> None:
    module = norm(warmup=warmup)
    for seed in range(3):
        train_step(module, seed)
    before = state(module)
    module.eval()
    x = rand(50, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    first = module(x)
    first.sum().backward()
    close(module(x[:1]), first[:1])
    assert same(state(module), before), "evaluation changed the state"
    module.train()
    assert same(state(module), before)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_before_two_backwards(order: tuple[int, int]) -> None:
    module, oracle = norm(), Oracle(3, 0.8, 0.7, 0)
    inputs = [(3 * rand(seed, 5, 3)).requires_grad_() for seed in (1, 2)]
    outputs, psi = [], []
    for x in inputs:
        outputs.append(module(x))
        close(outputs[-1], oracle.forward(x.tolist()))
        psi.append(list(oracle.psi))
    for k in order:
        outputs[k].backward(rand(10 + k, 5, 3))
    # nu is still 0 in the first backward, so its gradient tells which psi was used: the one of its own forward.
    first = order[0]
    close(inputs[first].grad, rand(10 + first, 5, 3) / torch.tensor(psi[first], dtype=torch.float64))
    assert all(x.grad.isfinite().all() for x in inputs)
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_both_views_in_one_graph() -> None:
    module, x = norm(warmup=1), rand(1, 5, 3).requires_grad_()
    (module(x) * module(2 * x)).sum().backward()
    assert x.grad.isfinite().all() and module.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("warmup", [0, 5])
def test_half_inputs_keep_float32_statistics(dtype: torch.dtype, warmup: int) -> None:
    # 1000 squared does not exist in float16.
    half = PowerNorm(4, warmup_steps=warmup)
    full = PowerNorm(4, warmup_steps=warmup)
    for seed in range(3):
        x = (1000 * rand(seed, 5, 4)).to(dtype).requires_grad_()
        out, expected = half(x), full(x.detach().float())
        # Rounded once at most, on return.
        close(out, expected.detach(), rtol=max(torch.finfo(out.dtype).eps / 2, 1e-6), atol=1e-6)
        out.float().sum().backward()
        expected.sum().backward()
        assert x.grad.dtype == dtype and x.grad.isfinite().all()
        for name, value in full.state_dict().items():
            close(half.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert all(value.dtype == torch.float32 for value in half.state_dict().values() if value.is_floating_point())
    assert all(value.isfinite().all() for value in half.state_dict().values())


@pytest.mark.parametrize("warmup", [0, 4])
def test_a_silent_feature_stays_finite(warmup: int) -> None:
    module = PowerNorm(3, alpha_fwd=0.0, warmup_steps=warmup)
    for seed in range(6):
        x = rand(seed, 5, 3, dtype=torch.float32)
        x[:, 1] = 0
        x.requires_grad_()
        out = module(x)
        out.square().sum().backward()
        assert out.isfinite().all() and x.grad.isfinite().all()
    assert all(value.isfinite().all() for value in module.state_dict().values())
    assert module.eval()(x).isfinite().all()


@pytest.mark.parametrize("shape", [(5, 4), (3,), (2, 5, 3)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        norm(3)(torch.ones(shape, dtype=torch.float64))
