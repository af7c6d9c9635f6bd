"""A checkpoint as one plain file: the numbers of the model, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery.jobs import BATCH, OPTIMIZERS, Net, adam, batches, manage, train_step
from remote_cases import LOG, open_store
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file
from store_cases import PLACEMENT, SCHEMA, Model, flip

from cpr_native.cli import main
from cpr_native.config import DataType
from cpr_native.policy import Delta
from cpr_native.recovery import export as module
from cpr_native.store import CheckpointStore

NAMES = ("big", "mid", "tiny")


def train(path: Path, data_type: DataType = DataType.FP32, **options: Any) -> Net:
    model = Net(OPTIMIZERS["adagrad"], data_type=data_type)
    dense = adam(model)
    with manage(model, path, Delta(), dense=dense, background=False, **options) as manager:
        manager.start()
        for batch in batches()[:9]:
            train_step(model, batch, dense)
            manager.step(BATCH)
    return model


def expected(model: Net, *, state: bool) -> dict[str, torch.Tensor]:
    tensors = {}
    for index, name in enumerate(NAMES):
        weight = model.tables.engine.weight(index).copy()
        bfloat16 = weight.dtype == np.uint16
        view = torch.from_numpy(weight.view(np.int16) if bfloat16 else weight)
        tensors[f"{name}.weight"] = view.view(torch.bfloat16) if bfloat16 else view
        if state:
            tensors[f"{name}.state"] = torch.from_numpy(model.tables.engine.state(index).copy())
    dense = {key: value for key, value in model.state_dict().items() if key.startswith("mlp")}
    return {**tensors, **dense}


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("data_type", [DataType.FP32, DataType.BF16])
def test_both_formats_hold_the_model(
    tmp_path: Path, data_type: DataType, capsys: pytest.CaptureFixture[str]
) -> None:
    model = train(tmp_path / "ckpt", data_type)
    ckpt, plain, torch_file = str(tmp_path / "ckpt"), tmp_path / "a.safetensors", tmp_path / "a.pt"
    assert main(["export", ckpt, str(plain)]) == 0
    assert main(["export", ckpt, str(torch_file), "--format", "state_dict", "--state"]) == 0
    check(load_file(plain), expected(model, state=False))
    check(torch.load(torch_file, weights_only=True), expected(model, state=True))
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith(f"{plain}: 7 tensors of step 9, ")
    assert captured.err == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "a.safetensors", "ckpt"]


def test_points_and_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, seen = Model(), []
    with CheckpointStore(tmp_path / "c").writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "priority"):
            model.train_some()
            model.save(writer, kind)
            seen.append({name: weight.copy() for name, weight in model.weight.items()})
    for number, (options, wanted) in enumerate(
        [(["--sequence", "2"], 0), ([], 1), (["--mode", "running"], 2)]
    ):
        out = tmp_path / f"{number}.safetensors"
        assert main(["export", str(tmp_path / "c"), str(out), *options]) == 0
        found = load_numpy(out)
        for name, weight in seen[wanted].items():
            assert found[f"{name}.weight"].tobytes() == weight.tobytes()
        assert found["mlp"].tolist() == [wanted + 1.0] * 3
    assert "left out: rng is no tensor" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "c"), str(tmp_path / "x"), "--sequence", "9"]) == 1
    assert "no exact point 9; there are: 3, 2" in capsys.readouterr().err
    wrong = ["export", str(tmp_path / "c"), str(tmp_path / "x"), "--sequence", "2", "--mode", "running"]
    assert main(wrong) == 2


def test_never_overwrites_and_leaves_nothing_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    with CheckpointStore(tmp_path / "c").writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
    out = tmp_path / "out"
    out.write_text("mine")
    assert main(["export", str(tmp_path / "c"), str(out)]) == 2
    assert out.read_text() == "mine"
    point = CheckpointStore(tmp_path / "c").latest()
    with pytest.raises(FileExistsError):
        module.export(point, out)

    def fails(*_: object) -> None:
        raise OSError(28, "no space left", "out")

    monkeypatch.setattr(module, "_publish", fails)
    with pytest.raises(OSError, match="no space"):
        module.export(point, tmp_path / "other")
    flip(next((tmp_path / "c/shards").rglob("*.safetensors")))
    assert main(["export", str(tmp_path / "c"), str(tmp_path / "other")]) == 1
    assert main(["export", str(tmp_path / "none"), str(tmp_path / "other")]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "out"]
    assert "CRC-32C" in capsys.readouterr().err


def test_chain_without_a_base_is_refused(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.train_some()
        model.save(writer, "priority")
    with pytest.raises(module.NoCheckpointError, match="never saved"):
        module.export(CheckpointStore(tmp_path).latest("running"), tmp_path / "out")


def test_exports_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    model = Model()
    store = open_store(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
    assert main(["export", str(store.url), str(tmp_path / "out")]) == 0
    assert load_numpy(tmp_path / "out")["user.weight"].tobytes() == model.weight["user"].tobytes()


def test_codes_come_back_as_weights(tmp_path: Path) -> None:
    model = train(tmp_path / "ckpt", quantise=8)
    assert main(["export", str(tmp_path / "ckpt"), str(tmp_path / "out")]) == 0
    found = load_numpy(tmp_path / "out")["big.weight"]
    exact = model.tables.engine.weight(0)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 0.003
