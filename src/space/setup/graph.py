"""Steps that wait for one another and otherwise run side by side: mmdebstrap beside pip beside cargo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """`work` gets the results of the steps named in `after`, in that order."""

    work: Callable[..., Any]
    after: tuple[str, ...] = ()


class Skipped(Exception):
    """A step that could not run because another had failed."""


def run(steps: Mapping[str, Step]) -> dict[str, Any]:
    """Run all steps, each as soon as what it waits for is there, and return their results.

    Steps are listed after what they wait for. The first failure in that order is raised when everything has ended: what
    does not hang on it is finished, so that the next try finds it done.
    """
    futures: dict[str, Future[Any]] = {}
    with ThreadPoolExecutor(max(1, len(steps))) as pool:
        for name, step in steps.items():
            futures[name] = pool.submit(_one, name, step, [futures[needed] for needed in step.after])
    failures = [error for future in futures.values() if (error := future.exception()) is not None]
    for error in failures:
        if not isinstance(error, Skipped):
            raise error
    return {name: future.result() for name, future in futures.items()}


def _one(name: str, step: Step, needed: list[Future[Any]]) -> Any:
    results = []
    for future in needed:
        if future.exception() is not None:
            raise Skipped(name)
        results.append(future.result())
    return step.work(*results)
