"""The only file that knows Horovod: ranks, how they are started, and how they agree.

A training function is written once against `Seam`. Horovod is its first implementation, torch.distributed (gloo on CPUs, nccl on
GPUs) its second, for machines without a compiler; one process alone is the third.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from heathaze.errors import HeathazeError


class RankFailed(HeathazeError):
    """A rank died or raised; the others were stopped."""

    exit_code = 3


class Seam(Protocol):
    """What a training function needs to know of the other ranks."""

    rank: int
    size: int
    local_rank: int

    def broadcast(self, module: nn.Module) -> None:
        """Give every rank the parameters and buffers of rank 0."""

    def wrap(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
        """An optimizer that steps with the gradient averaged over the ranks."""

    def sum(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The sum of a tensor over the ranks; `name` is the same on every rank."""


class _Alone:
    rank = local_rank = 0
    size = 1

    def broadcast(self, module: nn.Module) -> None:
        pass

    def wrap(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
        return optimizer

    def sum(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor


def alone() -> Seam:
    """The seam of one process on its own."""
    return _Alone()


class _Horovod:
    def __init__(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def broadcast(self, module: nn.Module) -> None:
        self._hvd.broadcast_parameters(module.state_dict(), root_rank=0)

    def wrap(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=module.named_parameters())

    def sum(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)


class _Torch:
    def __init__(self, init_method: str, rank: int, size: int, local_rank: int) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size, self.local_rank = rank, size, local_rank
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size)

    def broadcast(self, module: nn.Module) -> None:
        for tensor in module.state_dict().values():
            self._dist.broadcast(tensor, src=0)

    def wrap(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
        parameters = list(module.parameters())

        def average(*_: Any) -> None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            flat = torch.cat([g.reshape(-1) for g in gradients])
            self._dist.all_reduce(flat)
            flat /= self.size
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

        optimizer.register_step_pre_hook(average)
        return optimizer

    def sum(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        total = tensor.clone()
        self._dist.all_reduce(total)
        return total


Work = Callable[..., Any]
"""A top-level function work(seam, **arguments), so that it can be sent to other processes."""


def choose_launcher(wanted: str) -> str:
    """The launcher to use: Horovod where it is installed, torch.distributed elsewhere."""
    if wanted == "auto":
        return "horovod" if importlib.util.find_spec("horovod") else "torch"
    if wanted.startswith("horovod") and not importlib.util.find_spec("horovod"):
        raise HeathazeError("denoise.launcher asks for Horovod, but it is not installed: run make setup, or choose 'torch'.")
    return wanted


def launch(work: Work, arguments: dict[str, Any], ranks: int, launcher: str) -> Any:
    """Run work(seam, **arguments) on `ranks` ranks and return what rank 0 returned.

    A rank that dies or raises ends all of them with `RankFailed`.
    """
    launcher = choose_launcher(launcher)
    if ranks == 1 and not launcher.endswith("spark"):
        return work(_Alone(), **arguments)
    try:
        if launcher == "horovod":
            import horovod

            results = horovod.run(_horovod_rank, args=(work, arguments), np=ranks, use_gloo=True, verbose=False)
            return results[0]
        if launcher == "horovod-spark":
            import horovod.spark

            return horovod.spark.run(_horovod_rank, args=(work, arguments), num_proc=ranks, use_gloo=True, verbose=0)[0]
        if launcher == "torch-spark":
            from pyspark.ml.torch.distributor import TorchDistributor

            distributor = TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=torch.cuda.is_available())
            return distributor.run(_torch_environment_rank, work, arguments)
        return _launch_torch(work, arguments, ranks)
    except HeathazeError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise RankFailed(
            f"a training rank of {ranks} ({launcher}) failed and the others were stopped: {reason[-1] if reason else error!r}. "
            "No model was registered; run again to go on from the last checkpoint."
        ) from None


def _launch_torch(work: Work, arguments: dict[str, Any], ranks: int) -> Any:
    import tempfile

    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/{uuid.uuid4().hex}"
        every = (meeting, ranks, folder, work, arguments)
        multiprocessing.start_processes(_torch_rank, every, nprocs=ranks, start_method="spawn")
        return torch.load(Path(folder) / "result", weights_only=False)


def _torch_rank(rank: int, meeting: str, size: int, folder: str, work: Work, arguments: dict[str, Any]) -> None:
    result = _guarded(work, _Torch(meeting, rank, size, rank), arguments)
    if rank == 0:
        torch.save(result, Path(folder) / "result")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Everything is saved. Left to end by itself, the interpreter sometimes aborts over a thread of torch's own that still runs.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _torch_environment_rank(work: Work, arguments: dict[str, Any]) -> Any:
    environment = os.environ
    seam = _Torch("env://", int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment["LOCAL_RANK"]))
    return _guarded(work, seam, arguments)


def _horovod_rank(work: Work, arguments: dict[str, Any]) -> Any:
    import horovod.torch as hvd

    result = _guarded(work, _Horovod(), arguments)
    hvd.shutdown()
    return result


def _guarded(work: Work, seam: Seam, arguments: dict[str, Any]) -> Any:
    """Run the work with its share of the cores; a rank that raises says so and ends at once, so that nobody waits for it."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // seam.size))
    try:
        return work(seam, **arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
