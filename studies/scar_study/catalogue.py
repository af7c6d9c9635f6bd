"""The workloads of the study and where their data lie in a folder of data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scar import cnn, lda, mf_als, mf_sgd, mlr
from scar.workload import Workload

_MAKERS: dict[str, tuple[Callable[[Path | None], Workload], str]] = {
    "mlr-mnist": (mlr.mnist, "mnist"),
    "mlr-covertype": (mlr.covertype, "covtype/covtype_sample_25k.csv.gz"),
    "mf_als-movielens": (mf_als.movielens, "movielens/ml-100k/u.data.gz"),
    "mf_als-jester": (mf_als.jester, "jester/jester-data-1.zip"),
    "mf_sgd-movielens": (mf_sgd.movielens, "movielens/ml-100k/u.data.gz"),
    "mf_sgd-jester": (mf_sgd.jester, "jester/jester-data-1.zip"),
    "lda-reuters": (lda.reuters, "lda/reuters395/reuters.ldac"),
    "lda-newsgroups": (lda.newsgroups, "lda/20news/train.ldac.gz"),
    "cnn-mnist": (cnn.mnist, "mnist"),
}


def _fine(folder: Path | None) -> Workload:
    workload = mlr.mnist(folder)
    workload.blocks, workload.variant = 1, "a block for each number"
    return workload


def _momentum(path: Path | None) -> Workload:
    workload = mlr.covertype(path, momentum=0.9)
    workload.variant = "momentum 0.9"
    return workload


_VARIANTS: dict[str, tuple[Callable[[Path | None], Workload], str]] = {
    "mlr-mnist-fine": (_fine, "mnist"),
    "mlr-covertype-momentum": (_momentum, "covtype/covtype_sample_25k.csv.gz"),
}
NAMES = (*_MAKERS, *_VARIANTS)


def make(name: str, data: Path | None) -> Workload:
    """Return a workload on the data in the folder `data`, or on generated data for None.

    Raises OSError where a file is missing.
    """
    maker, place = (_MAKERS | _VARIANTS)[name]
    return maker(None if data is None else data / place)
