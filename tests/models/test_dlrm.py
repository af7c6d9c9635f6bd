from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cpr_native.config import Trackers
from cpr_native.data import SyntheticClicks, auc
from cpr_native.models import CRITEO, DEMO, DLRM, KAGGLE, TERABYTE, DLRMConfig, Recipe, build_dlrm
from cpr_native.optim import SGD, RowWiseAdagrad

SMALL = DLRMConfig(dense_features=3, embedding_dim=4, bottom=(5, 4), top=(6, 1))
SIZES = (7, 2, 9)


def small_batch(batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(batch, 3, generator=generator)
    ids = torch.cat([torch.randint(0, size, (batch,), generator=generator) for size in SIZES])
    return dense, ids, torch.arange(3 * batch + 1)


def slow_mlp(x: np.ndarray, layers: nn.Sequential) -> np.ndarray:
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x = layer.weight.detach().numpy().astype(np.float64) @ x + layer.bias.detach().numpy()
        else:
            x = np.maximum(x, 0.0)
    return x


def slow_logit(model: DLRM, dense: np.ndarray, ids: list[int]) -> float:
    bottom = slow_mlp(dense.astype(np.float64), model.bottom)
    tables = list(model.embeddings.state_dict().values())
    vectors = [
        bottom,
        *(table[row].numpy().astype(np.float64) for table, row in zip(tables, ids, strict=True)),
    ]
    dots = [float(vectors[i] @ vectors[j]) for i in range(len(vectors)) for j in range(i)]
    return float(slow_mlp(np.concatenate((bottom, dots)), model.top)[0])


def test_logits_equal_the_slow_model() -> None:
    model = build_dlrm(SMALL, SIZES, optimizer=SGD(lr=0.1), seed=3)
    dense, ids, offsets = small_batch(8)
    logits = model(dense, ids, offsets)
    assert (logits.shape, logits.dtype) == ((8,), torch.float32)
    expected = [slow_logit(model, dense[b].numpy(), ids.view(3, 8)[:, b].tolist()) for b in range(8)]
    torch.testing.assert_close(
        logits.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6
    )


def test_any_module_with_the_collection_s_forward_serves() -> None:
    class Ones(nn.Module):
        def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return torch.ones((offsets.numel() - 1) // 3, 3 * 4)

    logits = DLRM(SMALL, Ones(), features=3)(*small_batch(5))
    assert logits.shape == (5,)


def test_one_step_updates_tables_and_mlps() -> None:
    model = build_dlrm(SMALL, SIZES, optimizer=RowWiseAdagrad(lr=0.1))
    dense, ids, offsets = small_batch(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nn.functional.softplus(model(dense, ids, offsets)).sum().backward()
    torch.optim.SGD(model.dense_parameters(), lr=0.1).step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {f"embeddings.embedding_bags.C{table}.weight" for table in (1, 2, 3)} <= changed
    assert any(name.startswith("bottom") for name in changed)
    assert any(name.startswith("top") for name in changed)


def test_parameters_are_named_and_split() -> None:
    model = build_dlrm(SMALL, SIZES, optimizer=SGD(lr=0.1))
    assert set(model.state_dict()) == {
        *(f"embeddings.embedding_bags.C{table}.weight" for table in (1, 2, 3)),
        *(
            f"{part}.{layer}.{kind}"
            for part in ("bottom", "top")
            for layer in (0, 2)
            for kind in ("weight", "bias")
        ),
    }
    assert [parameter.shape for parameter in model.dense_parameters()] == [
        *((5, 3), (5,), (4, 5), (4,)),
        *((6, 10), (6,), (1, 6), (1,)),
    ]


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    models = [build_dlrm(SMALL, SIZES, optimizer=SGD(lr=0.1), seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    first, same, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_mlp_weights_have_the_spread_of_the_public_code() -> None:
    model = DLRM(KAGGLE, nn.Identity(), features=26)
    for layer in itertools.chain(model.bottom, model.top):
        if isinstance(layer, nn.Linear) and layer.weight.numel() > 1000:
            fan_out, fan_in = layer.weight.shape
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2.0 / (fan_in + fan_out)), rel=0.1)
            assert layer.bias.std().item() == pytest.approx(math.sqrt(1.0 / fan_out), rel=0.4)


def test_presets_have_the_published_widths() -> None:
    model = DLRM(KAGGLE, nn.Identity(), features=26)
    assert [layer.out_features for layer in model.bottom if isinstance(layer, nn.Linear)] == [
        512,
        256,
        64,
        16,
    ]
    assert [layer.out_features for layer in model.top if isinstance(layer, nn.Linear)] == [512, 256, 1]
    assert model.top[0].in_features == 16 + 27 * 26 // 2
    assert (TERABYTE.embedding_dim, TERABYTE.bottom, TERABYTE.top) == (64, (512, 256, 64), (512, 512, 256, 1))


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two spinning threads on a busy machine take minutes
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("recipe", [CRITEO, DEMO])
@pytest.mark.usefixtures("_one_thread")
def test_recipes_learn_the_planted_signal(recipe: Recipe) -> None:
    sizes = [200] * 26
    train = SyntheticClicks(end=24_000, batch_size=recipe.batch_size, table_sizes=sizes)
    held_out = train.batch(24_000, 32_000)
    model = build_dlrm(recipe.model, sizes, optimizer=recipe.table_optimizer, trackers=Trackers(ssu=False))
    optimizer = recipe.dense_optimizer(model.dense_parameters())
    for batch in train:
        optimizer.zero_grad()
        logits = model(batch.dense, batch.ids, batch.offsets)
        nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        optimizer.step()
    with torch.no_grad():
        logits = model(held_out.dense, held_out.ids, held_out.offsets)
    assert auc(held_out.labels, logits) > 0.67


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bottom": (8, 8)}, "bottom: expected a last width of embedding_dim = 16"),
        ({"top": (8, 2)}, "top: expected a last width of 1"),
        ({"top": ()}, "top: expected widths"),
        ({"dense_features": 0}, "dense_features: expected widths"),
        ({"bottom": (0, 16)}, "bottom: expected widths"),
    ],
)
def test_wrong_widths_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DLRMConfig(**options)


def test_wrong_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        Recipe(model=KAGGLE, batch_size=0, table_optimizer=SGD(lr=0.1), dense_lr=0.1)
    with pytest.raises(ValueError, match="dense_lr"):
        Recipe(model=KAGGLE, batch_size=1, table_optimizer=SGD(lr=0.1), dense_lr=0.0)


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="features"):
        DLRM(SMALL, nn.Identity(), features=0)
    model = build_dlrm(SMALL, SIZES, optimizer=SGD(lr=0.1))
    dense, ids, offsets = small_batch(4)
    with pytest.raises(ValueError, match=r"dense: expected shape \[B, 3\], got \[4, 2\]"):
        model(dense[:, :2], ids, offsets)
    with pytest.raises(ValueError, match="dense has 3 samples, ids and offsets have 4"):
        model(dense[:3], ids, offsets)


def test_v27_empty_batch_is_a_no_op() -> None:
    model = build_dlrm(SMALL, SIZES, optimizer=RowWiseAdagrad(lr=0.1))
    before = [table.clone() for table in model.embeddings.state_dict().values()]
    logits = model(*small_batch(0))
    assert logits.shape == (0,)
    logits.sum().backward()
    for table, old in zip(model.embeddings.state_dict().values(), before, strict=True):
        assert torch.equal(table, old)
