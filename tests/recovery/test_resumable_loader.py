from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from cpr_native.recovery import ResumableLoader
from cpr_native.recovery.dense import rng_state, set_rng_state

# torchdata's own call of a deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

DATA = TensorDataset(torch.arange(20))


def plain() -> Any:
    return DataLoader(DATA, batch_size=3, shuffle=True)


def with_generator() -> Any:
    return DataLoader(DATA, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5))


def stateful() -> Any:
    return StatefulDataLoader(DATA, batch_size=3, shuffle=True)


def lists() -> Any:
    return [(torch.arange(start, start + 3),) for start in range(0, 21, 3)]


MAKERS = [plain, with_generator, stateful, lists]


def consume(loader: ResumableLoader[Any]) -> list[tuple[list[int], float]]:
    """Ids of each batch and a number drawn in the step, as dropout would."""
    return [(batch[0].tolist(), float(torch.rand(()))) for batch in loader]


@pytest.mark.parametrize("make", MAKERS)
def test_all_epochs_are_seen_once(make: Any) -> None:
    torch.manual_seed(0)
    seen = [row for ids, _ in consume(ResumableLoader(make(), epochs=2)) for row in ids]
    assert sorted(seen) == sorted([row for batch in make() for row in batch[0].tolist()] * 2)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("at", [0, 1, 4, 7, 9, 14])
def test_going_back_in_a_running_loop_gives_the_same_batches(make: Any, at: int) -> None:
    torch.manual_seed(0)
    loader = ResumableLoader(make(), epochs=2)
    saved = (loader.state_dict(), rng_state())
    trace: list[tuple[list[int], float]] = []
    rewound = False
    for batch in loader:
        trace.append((batch[0].tolist(), float(torch.rand(()))))
        if len(trace) == at:
            saved = (loader.state_dict(), rng_state())
        if not rewound and len(trace) == 14:
            rewound = True
            first = list(trace)
            del trace[at:]
            loader.load_state_dict(saved[0])
            set_rng_state(saved[1])
    torch.manual_seed(0)
    reference = ResumableLoader(make(), epochs=2)
    reference.state_dict()
    assert trace == consume(reference)
    assert first == trace[:14]


@pytest.mark.parametrize("make", MAKERS)
def test_a_new_loader_goes_on_from_the_position(make: Any) -> None:
    torch.manual_seed(0)
    loader = ResumableLoader(make(), epochs=2)
    trace = []
    for batch in loader:
        trace.append((batch[0].tolist(), float(torch.rand(()))))
        if len(trace) == 9:
            position, rng = loader.state_dict(), rng_state()
    torch.manual_seed(99)
    fresh = ResumableLoader(make(), epochs=2)
    fresh.load_state_dict(position)
    set_rng_state(rng)
    assert consume(fresh) == trace[9:]


def test_the_end_stays_the_end() -> None:
    loader = ResumableLoader(lists())
    consume(loader)
    position = loader.state_dict()
    fresh = ResumableLoader(lists())
    fresh.load_state_dict(position)
    assert consume(fresh) == []


def test_position_of_another_kind_of_loader_is_refused() -> None:
    position = ResumableLoader(lists()).state_dict()
    loader = ResumableLoader(stateful())
    with pytest.raises(ValueError, match="saved without a stateful loader"):
        loader.load_state_dict(position)
    assert len(consume(loader)) == 7


def test_epochs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        ResumableLoader(lists(), epochs=0)
