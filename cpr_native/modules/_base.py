"""`EngineModule`: a torch module whose parameters are the tables of one native engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from cpr_native._tensor import describe
from cpr_native.device import describe_on
from cpr_native.device.engine import DeviceEngine
from cpr_native.modules import _compile, _copying, _following
from cpr_native.modules._memory import as_tensor, compute_dtype, torch_dtype
from cpr_native.modules._places import CPU
from cpr_native.modules._plan import Engine, EnginePlan
from cpr_native.modules._watch import mark_updates, watch_optimizers
from cpr_native.modules.optimizer import EmbeddingFusedOptimizer
from cpr_native.shared import current

if TYPE_CHECKING:
    from typing_extensions import Self

    from cpr_native.modules._call import Request

    UpdateObserver = Callable[[Request, Sequence[int]], Callable[[], None]]

_META = torch.device("meta")


class EngineModule(nn.Module):
    """Keeps torch's view of the tables (parameters) and the engine's (addresses) the same memory.

    The engine reads each parameter's address and version at every forward and backward. A parameter that
    moved (`.to()`, `.half()`, `load_state_dict(assign=True)`) is bound anew, an unexpected version means
    that somebody wrote in place; either way all rows of that table become dirty. Writes that torch doesn't
    see (`weight.data`, NumPy views) must be announced with `mark_dirty`.

    Tables on a GPU have their engine there. After `.to("cuda")`, `.cpu()` and the like the next forward, or
    `sync()`, makes an engine where the parameters are now, with the rows' state and trackers. Ids, offsets,
    per-sample weights and gradients lie on that device. Calls give work to torch's current stream and don't
    wait for it, so a bad id or offset is found late: its bag is NaN, nothing is updated any more, and the
    next call or `synchronize()` raises.

    With a fused optimizer every backward is one optimizer step of the engine and `weight.grad` stays None:

    - the ids are copied in forward; the caller may overwrite them;
    - a second backward through one lookup raises, so does `create_graph=True`;
    - gradient accumulation is one step per backward, gradient clipping leaves the tables out;
    - a batch whose gradient holds inf or NaN is skipped whole and counted in `skipped_steps`; `grad_scale`
      multiplies the gradient (with `torch.amp.GradScaler`: 1 / scale);
    - a table with `requires_grad=False` isn't updated; under `eval()` or `no_grad` nothing is updated or
      tracked;
    - keep the module out of activation checkpointing: the recomputation would read updated rows;
    - under `torch.distributed` with more than one rank the first backward raises unless `rank_local=True`.

    `torch.compile(fullgraph=True)` has the lookup and the update in its graph. Differences there: every
    backward through a lookup steps, whatever inputs it was asked for, and reads of a fused table's parameter
    in the same graph aren't ordered with its updates. `torch.jit` is refused.
    """

    rank_local: bool

    def __init__(
        self, plan: EnginePlan, *, rank_local: bool = False, weights: Sequence[Tensor] | None = None
    ) -> None:
        nn.Module.__init__(self)
        self.rank_local = rank_local
        self._plan = plan
        self._grad_scale = 1.0
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]
        if plan.host_memory:
            self.register_state_dict_pre_hook(_before_host_access)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_before_host_access)  # type: ignore[no-untyped-call]
        given = None if weights is None else [weight.detach() for weight in weights]
        self._start(plan.build(current(), given))

    def _start(self, engine: Engine) -> None:
        self._use(engine)
        self._addresses = [0] * len(self._plan.tables)
        self._versions = [0] * len(self._plan.tables)
        optimizer = self._plan.optimizer
        self._optimizer = None if optimizer is None else EmbeddingFusedOptimizer(self, optimizer)
        self._fused = optimizer is not None
        self._skipped_before = 0
        self._observer: UpdateObserver | None = None
        # Asks autograd for a backward although no weight wants a gradient; never gets one itself.
        with torch.inference_mode(False):
            self._hook = torch.zeros((), device=CPU, requires_grad=True)
        self._token = _compile.new_token(self)
        if not self._fused:
            watch_optimizers(self, lambda module: list(enumerate(module._weights())), mark_updates)

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._output_dim = engine.output_dim
        self._compute_dtype = compute_dtype(torch_dtype(self._plan.tables[0].data_type))
        place = self._plan.place
        self._describe = describe if place is None else partial(describe_on, place)
        self._device = CPU if place is None else place.torch_device
        self._weight_device = CPU if self._plan.host_memory else self._device

    def _input_device(self, ids: object) -> torch.device:
        """Where `ids` and all that comes with them have to be: with the weights, moved ones too."""
        if getattr(ids, "device", None) != self._device and not torch.compiler.is_compiling():
            self.sync()
        return self._device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if self._plan.host_memory:
            self.synchronize()  # the host reads the rows
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # At once: a graph that is compiled next has to find the engine where the parameters are.
        if self._weights()[0].device not in (self._weight_device, _META):
            self.sync()
        return self

    def _table_view(self, table: int) -> Tensor:
        """The engine's memory of a table: a tensor [num_embeddings, embedding_dim] of its dtype, aliased."""
        with torch.inference_mode(False):
            return as_tensor(self._engine.weight(table), self._plan.tables[table].data_type)

    def _adopt(self) -> None:
        """Take the parameters as they are now for the engine's own memory, unchanged."""
        for table, weight in enumerate(self._weights()):
            self._addresses[table] = weight.data_ptr()
            self._versions[table] = weight._version

    def _weights(self) -> list[nn.Parameter]:
        """The parameter of every table, in the order of the engine's tables."""
        raise NotImplementedError

    @property
    def plan(self) -> EnginePlan:
        """The settings from which the engine was built."""
        return self._plan

    @property
    def engine(self) -> Engine:
        """The native engine; call `sync()` before handing it on if a parameter may have changed."""
        return self._engine

    @property
    def fused(self) -> bool:
        """Whether backward updates the rows; otherwise it returns a gradient for torch's optimizers."""
        return self._fused

    @property
    def grad_scale(self) -> float:
        """What the incoming gradient is multiplied by before the fused update; finite and above 0."""
        return self._grad_scale

    @grad_scale.setter
    def grad_scale(self, value: float) -> None:
        if not (math.isfinite(value) and value > 0.0):
            raise ValueError(f"grad_scale: expected a finite number > 0, got {value}")
        self._grad_scale = float(value)

    @property
    def fused_optimizer(self) -> EmbeddingFusedOptimizer:
        """The optimizer inside backward, shaped as `torch.optim.Optimizer`: for schedulers and `state_dict`.

        Raises:
            ValueError: the module was built with `optimizer=None`.
        """
        if self._optimizer is None:
            raise ValueError("fused_optimizer: the module has none, it was built with optimizer=None")
        self._optimizer.follow(self._weights())
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """The fused optimizer's `lr`, from the next backward on; 0 without one.

        Finite and at least 0; setting it without a fused optimizer raises ValueError.
        """
        return 0.0 if self._optimizer is None else self._optimizer.settings.lr

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        try:
            self.fused_optimizer.assign(lr=float(value))
        except ValueError as error:
            raise ValueError(f"learning_rate: {error}") from None

    @property
    def skipped_steps(self) -> int:
        """Number of batches skipped because their gradient held inf or NaN; waits for a GPU that has them."""
        return self._skipped_before + self._engine.skipped_steps

    def optimizer_scalars(self) -> dict[str, Any]:
        """All that backward depends on and that is not of one row, as JSON values.

        Hyperparameters in force (`learning_rate`, `weight_decay`, `eps`, `betas`, as the optimizer has them),
        `step`, `grad_scale` and `skipped_steps`.
        """
        scalars = {"step": self._engine.step, "grad_scale": self._grad_scale}
        scalars["skipped_steps"] = self.skipped_steps
        return scalars if self._optimizer is None else scalars | self._optimizer.scalars()

    def load_optimizer_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back what `optimizer_scalars` returned; what isn't in `scalars` stays as it is.

        Raises:
            ValueError: a hyperparameter out of its range; nothing is changed then.
        """
        if self._optimizer is not None:
            self._optimizer.load_scalars(scalars)
        self._engine.step = scalars.get("step", self._engine.step)
        self._grad_scale = scalars.get("grad_scale", self._grad_scale)
        if "skipped_steps" in scalars:
            self._skipped_before = scalars["skipped_steps"] - self._engine.skipped_steps

    def observe_updates(self, observer: UpdateObserver | None) -> None:
        """Call `observer` at each lookup that will be updated, and what it returned once that has been done.

        `observer(request, frozen)` reads the ids now (the caller may overwrite them) and returns the call to
        make after the update was counted; `frozen` are the tables left out. None ends it; copies have none.
        """
        self._observer = observer

    def sync(self) -> None:
        """Bind parameters that moved, mark tables that somebody wrote to, put hyperparameters in force.

        Cheap when nothing happened.

        Raises:
            TypeError: a weight has a dtype that the engine has no tables of.
            ValueError: a weight isn't contiguous, changed its shape or is on a device without an engine, or
                the weights are on several.
            RuntimeError: they moved to a GPU that can't be used, or under a RecoveryManager.
        """
        self._synced()

    def synchronize(self) -> None:
        """Wait for the device that the tables are on, and raise what it found; without effect on the CPU.

        Raises:
            IndexError: an id out of range, of an earlier lookup; names table, id and position.
            ValueError: offsets that don't fit, of an earlier lookup.
        """
        if isinstance(self._engine, DeviceEngine):
            self._engine.synchronize()

    def _synced(self) -> list[nn.Parameter]:
        """`sync`, then the parameter of every table."""
        if self._optimizer is not None:
            self._optimizer.push()
        weights = self._weights()
        moved = [weight.data_ptr() for weight in weights] != self._addresses
        if moved or [weight._version for weight in weights] != self._versions:
            _following.follow(self, weights)
        return weights

    def _mark(self, table: int, rows: Tensor | Sequence[int] | None) -> None:
        if rows is None:
            return self._engine.mark_dirty(table)
        ids = torch.as_tensor(rows, dtype=torch.int64, device=CPU).reshape(-1).contiguous()
        self._engine.mark_dirty(table, describe(ids))

    def _written(self, weights: Sequence[Tensor], frozen: Sequence[int]) -> None:
        """Tell autograd that the engine has just written to all tables but the frozen ones."""
        written = [weight for table, weight in enumerate(weights) if table not in frozen]
        torch.autograd.graph.increment_version(written)
        self._versions = [weight._version for weight in weights]
        if self._optimizer is not None:
            self._optimizer.updated()

    def __getstate__(self) -> dict[str, Any]:
        self.sync()
        return _copying.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _copying.restore(self, state)

    def __prepare_scriptable__(self) -> NoReturn:
        raise RuntimeError("torch.jit.script: the engine's modules can't be scripted, use torch.compile")

    def _slow_forward(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        # nn.Module calls it instead of `forward` while torch.jit traces.
        raise RuntimeError("torch.jit.trace: the engine's modules can't be traced, use torch.compile")

    def __copy__(self) -> NoReturn:
        raise TypeError("a shallow copy would share the tables between two engines: use copy.deepcopy")


def _before_host_access(module: EngineModule, *_args: object) -> None:
    # The host reads or writes rows that the device may still be writing.
    module.synchronize()


def _after_load(module: nn.Module, _incompatible: object) -> None:
    assert isinstance(module, EngineModule)
    module.sync()
