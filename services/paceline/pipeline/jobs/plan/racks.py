"""The hard rules: nothing on unusable brokers, no broker twice in a partition, racks spread evenly."""

import numpy as np
from numpy.typing import NDArray

from paceline.pipeline.jobs.plan.model import Bools, ClusterModel, Ints


def most_per_rack(model: ClusterModel) -> Ints:
    """Return the limit of replicas per rack for each partition: 1 while there are enough racks."""
    racks = len(np.unique(model.racks[model.usable]))
    return np.asarray(-(-model.replication_factor // racks), dtype=np.int32)


def surplus_in_racks(model: ClusterModel) -> Bools:
    """Return the replicas (P x RF) above the limit of their rack; the first replicas in a row stay."""
    held = model.assignment >= 0
    racks = np.where(held, model.racks[model.assignment], -1 - np.arange(model.assignment.shape[1]))
    most = most_per_rack(model)
    surplus = np.zeros(model.assignment.shape, dtype=np.bool_)
    for column in range(model.assignment.shape[1]):
        before = (racks[:, :column] == racks[:, column, None]).sum(axis=1)
        surplus[:, column] = held[:, column] & (before >= most)
    return surplus


def on_unusable(model: ClusterModel) -> Bools:
    """Return the replicas (P x RF) on unusable brokers."""
    return np.asarray((model.assignment >= 0) & ~model.usable[model.assignment])


def may_move(
    model: ClusterModel, rows: NDArray[np.int64], columns: NDArray[np.int64], destinations: Ints, most: Ints
) -> Bools:
    """Return the moves that keep the hard rules: to a usable broker without the partition, in a rack with room."""
    places = model.assignment[rows]
    fine = model.usable[destinations] & (places != destinations[:, None]).all(axis=1)
    racks = np.where(places >= 0, model.racks[places], -1)
    racks[np.arange(len(rows)), columns] = -1
    in_rack = (racks == model.racks[destinations][:, None]).sum(axis=1)
    return np.asarray(fine & (in_rack < most[rows]))


def broken_rules(model: ClusterModel) -> list[str]:
    """Check the hard rules on the whole assignment, independently of the solver's code; return the violations."""
    problems = []
    unusable = int(on_unusable(model).sum())
    if unusable:
        problems.append(f"{unusable} replicas stay on brokers that should be empty")
    ordered = np.sort(model.assignment, axis=1)
    twice = int(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1).sum())
    if twice:
        problems.append(f"{twice} partitions have a broker twice")
    clashes = int(surplus_in_racks(model).any(axis=1).sum())
    if clashes:
        problems.append(f"{clashes} partitions have more replicas in a rack than necessary")
    return problems
