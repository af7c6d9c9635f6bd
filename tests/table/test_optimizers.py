"""Every optimizer: the reference bit for bit, the textbook in float64, any threads and instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from numpy.typing import NDArray
from reference import ReferenceCollection, as_floats

from cpr_native._native import Selection, supported_isas

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "row_wise_adagrad": {"eps": 1e-4, "initial_state": 0.25},
    "adagrad": {"eps": 1e-4, "initial_state": 0.25},
    "adam": {"eps": 1e-5, "beta1": 0.8, "beta2": 0.95},
    "partial_row_wise_adam": {"eps": 1e-5, "beta1": 0.8, "beta2": 0.95},
}
ROWS = (60, 9, 1)
each_optimizer = pytest.mark.parametrize("optimizer", SETTINGS)


def engine_of(optimizer: str, dim: int, *, weight_decay: float = 0.0, dtype: str = "float32") -> Engine:
    settings = {**SETTINGS[optimizer], "weight_decay": weight_decay}
    return Engine(rows=ROWS, dim=dim, optimizer=optimizer, settings=settings, spec={"dtype": dtype})


def weights_of(engine: Engine) -> list[NDArray[np.float32]]:
    dtype = engine.spec["dtype"]
    return [as_floats(engine.native.weight(table).copy(), dtype) for table in range(len(engine.rows))]


def reference_of(engine: Engine) -> ReferenceCollection:
    settings = dict(engine.settings)
    betas = (settings.pop("beta1", 0.9), settings.pop("beta2", 0.999))
    return ReferenceCollection(
        weights_of(engine),
        range(len(engine.rows)),
        optimizer=engine.optimizer,
        lr=engine.learning_rate,
        betas=betas,
        dtypes=[engine.spec["dtype"]] * len(engine.rows),
        seed=engine.seed,
        names=[f"t{table}" for table in range(len(engine.rows))],
        **settings,
    )


def batch(rng: np.random.Generator, dim: int) -> tuple[Any, Any, NDArray[np.float32]]:
    """Bags of 0 to 3 skewed ids: some rows are named often, some never."""
    lengths = rng.integers(0, 4, 3 * 25)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    counts = [offsets[25 * (table + 1)] - offsets[25 * table] for table in range(3)]
    ids = np.concatenate(
        [(rows * rng.random(count) ** 2).astype(np.int64) for rows, count in zip(ROWS, counts, strict=True)]
    )
    return ids, offsets, rng.standard_normal((25, 3 * dim)).astype(np.float32)


def check_state(engine: Engine, reference: ReferenceCollection, table: int) -> None:
    state, expected = engine.native.state(table), reference.states[table]
    if expected is None:
        assert state is None
        assert engine.native.state_columns(table) == 0
        return
    assert state is not None
    columns = expected.size // len(expected)
    assert engine.native.state_columns(table) == columns
    assert state.shape == ((len(expected),) if columns == 1 else (len(expected), columns))
    np.testing.assert_array_equal(state, expected.reshape(state.shape))


@each_optimizer
@pytest.mark.parametrize("dim", [1, 3, 8, 16, 17, 40])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_equals_the_reference_bit_for_bit(optimizer: str, dim: int, weight_decay: float) -> None:
    engine = engine_of(optimizer, dim, weight_decay=weight_decay)
    reference = reference_of(engine)
    rng = np.random.default_rng(dim)
    for _ in range(4):
        ids, offsets, grad = batch(rng, dim)
        assert engine.step(ids, offsets, grad)
        reference.update(ids, offsets, grad)
        for table in range(3):
            np.testing.assert_array_equal(engine.native.weight(table), reference.weights[table])
            check_state(engine, reference, table)
            np.testing.assert_array_equal(engine.native.dirty(table), reference.dirty[table])
    assert engine.native.step == 4


@each_optimizer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_half_precision_equals_the_reference_bit_for_bit(optimizer: str, dtype: str, dim: int) -> None:
    engine = engine_of(optimizer, dim, weight_decay=0.1, dtype=dtype)
    reference = reference_of(engine)
    rng = np.random.default_rng(dim)
    for _ in range(3):
        ids, offsets, grad = batch(rng, dim)
        assert engine.step(ids, offsets, grad)
        reference.update(ids, offsets, grad)
        for table, weight in enumerate(weights_of(engine)):
            np.testing.assert_array_equal(weight, reference.weights[table])
            check_state(engine, reference, table)


class Textbook:
    """One table in float64, each formula as its paper or torch's documentation has it."""

    def __init__(
        self, weight: Any, optimizer: str, *, lr: float, weight_decay: float, **settings: Any
    ) -> None:
        self.weight = np.array(weight, dtype=np.float64)
        self.optimizer, self.lr, self.weight_decay = optimizer, lr, weight_decay
        self.eps = settings.get("eps", 0.0)
        self.betas = (settings.get("beta1", 0.0), settings.get("beta2", 0.0))
        self.sum = np.full(self.weight.shape, settings.get("initial_state", 0.0))
        self.m, self.v = np.zeros(self.weight.shape), np.zeros(self.weight.shape)
        self.t = 0

    def step(self, gradient: Any, named: NDArray[np.bool_]) -> None:
        """`gradient` [n, dim]: of the `named` rows."""
        self.t += 1
        rows = np.flatnonzero(named)
        g = gradient[rows] + self.weight_decay * self.weight[rows]
        squares = g * g
        if "row_wise" in self.optimizer:
            squares = np.broadcast_to(squares.mean(axis=1, keepdims=True), g.shape)
        if self.optimizer == "sgd":
            self.weight[rows] -= self.lr * g
        elif "adagrad" in self.optimizer:
            self.sum[rows] += squares
            self.weight[rows] -= self.lr * g / (np.sqrt(self.sum[rows]) + self.eps)
        else:
            beta1, beta2 = self.betas
            self.m[rows] = beta1 * self.m[rows] + (1 - beta1) * g
            self.v[rows] = beta2 * self.v[rows] + (1 - beta2) * squares
            m, v = self.m[rows] / (1 - beta1**self.t), self.v[rows] / (1 - beta2**self.t)
            self.weight[rows] -= self.lr * m / (np.sqrt(v) + self.eps)


@each_optimizer
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_is_the_textbooks_step_in_float64(optimizer: str, weight_decay: float) -> None:
    engine = engine_of(optimizer, 12, weight_decay=weight_decay)
    textbook = Textbook(engine.native.weight(0), optimizer, lr=engine.learning_rate, **engine.settings)
    rng = np.random.default_rng(1)
    for _ in range(30):
        ids, offsets, grad = batch(rng, 12)
        gradient, named = np.zeros((60, 12)), np.zeros(60, dtype=np.bool_)
        for bag in range(25):
            for row in ids[offsets[bag] : offsets[bag + 1]]:
                gradient[row] += grad[bag, :12].astype(np.float64)
                named[row] = True
        textbook.step(gradient, named)
        assert engine.step(ids, offsets, grad)
    np.testing.assert_allclose(engine.native.weight(0), textbook.weight, rtol=2e-4, atol=2e-5)


def test_adams_count_of_steps_is_of_the_collection() -> None:
    """A row that the batches leave out for a while gets the correction of the step it comes back in."""
    engine = engine_of("adam", 4)
    for step in range(3):
        ids = np.array([0 if step < 2 else 5, 0, 0])
        assert engine.step(ids, np.arange(4), np.ones((1, 12), np.float32))
    state = engine.native.state(0)
    assert state is not None
    m, v = (1 - 0.8) / (1 - 0.8**3), (1 - 0.95) / (1 - 0.95**3)
    before = Engine(rows=ROWS, dim=4, optimizer="adam").native.weight(0)[5]
    expected = before - 0.1 * m / (np.sqrt(v) + 1e-5)
    np.testing.assert_allclose(engine.native.weight(0)[5], expected, rtol=1e-5)
    np.testing.assert_allclose(state[5], [0.2] * 4 + [0.05] * 4, rtol=1e-5)


@each_optimizer
def test_a_snapshot_has_the_state_of_its_beginning(optimizer: str) -> None:
    engine = Engine(rows=(5000, 70), dim=5, optimizer=optimizer, settings=SETTINGS[optimizer])
    rng = np.random.default_rng(2)
    for _ in range(3):
        engine.random_step(rng, 300)
    expected = [engine.rows_of(table)[:2] for table in range(2)]
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    for _ in range(5):
        engine.random_step(rng, 300)
    for (weight, state), taken in zip(expected, drain(snapshot, 2), strict=True):
        np.testing.assert_array_equal(taken.weight, weight)
        if state is not None:
            np.testing.assert_array_equal(taken.state, state)
    snapshot.commit()


@each_optimizer
def test_reset_and_discarded_rows(optimizer: str) -> None:
    engine = engine_of(optimizer, 6)
    fresh = [engine_of(optimizer, 6).rows_of(table)[:2] for table in range(3)]
    rng = np.random.default_rng(3)
    for _ in range(3):
        assert engine.step(*batch(rng, 6))
    engine.native.discard_rows(0, 10, 40)
    weight, state, _ = engine.rows_of(0)
    assert np.isnan(weight[10:40]).all()
    assert np.isfinite(weight[:10]).all()
    assert state is None or (np.isnan(state[10:40]).all() and np.isfinite(state[40:]).all())
    for table, rows in enumerate(ROWS):
        engine.native.reset_rows(table, 0, rows)
        weight, state, _ = engine.rows_of(table)
        np.testing.assert_array_equal(weight, fresh[table][0])
        if state is not None:
            np.testing.assert_array_equal(state, fresh[table][1])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("eps", -1.0),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("weight_decay", -0.5),
        ("weight_decay", float("inf")),
    ],
)
def test_hyperparameters_out_of_range_are_refused(name: str, bad: float) -> None:
    engine = engine_of("adam", 4)
    before = getattr(engine.native, name)
    with pytest.raises(ValueError, match=name):
        setattr(engine.native, name, bad)
    assert getattr(engine.native, name) == before
    if name != "learning_rate":
        with pytest.raises(ValueError, match=name):
            Engine(rows=ROWS, optimizer="adam", settings={name: bad})


PROGRAM = """
import hashlib, sys
import numpy as np
from engine import Engine
from cpr_native._native import isa

digest = hashlib.sha256()
rng = np.random.default_rng(0)
for dim in (1, 7, 8, 16, 33, 128):
    for optimizer in ("sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"):
        for dtype in ("float32", "float16", "bfloat16"):
            for decay in (0.0, 0.1):
                engine = Engine(rows=(3000, 50), dim=dim, threads=int(sys.argv[1]), optimizer=optimizer,
                                spec={"dtype": dtype, "drift": True}, settings={"weight_decay": decay})
                for _ in range(2):
                    engine.random_step(rng, 700)
                for table in range(2):
                    weight, state, words = engine.rows_of(table)
                    digest.update(weight.tobytes() + words.tobytes() + engine.native.drift(table).tobytes())
                    digest.update(b"" if state is None else state.tobytes())
print(isa(), digest.hexdigest())
"""


def digest_of(isa: str, threads: int) -> str:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads)],
        env={**os.environ, "CPR_ISA": isa, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    used, digest = done.stdout.split()
    assert used == isa
    return digest


def test_same_bits_on_every_instruction_set_and_thread_count() -> None:
    runs = [(isa, 1) for isa in supported_isas()] + [(supported_isas()[-1], n) for n in (2, 5)]
    assert len({digest_of(*run) for run in runs}) == 1
