"""Observe a function that returns several results, each of which is a question of its own."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from cs336_course.engine.cases import Case
from cs336_course.engine.observe import Observer, same
from cs336_course.engine.records import Record, plain


def one_of(names: tuple[str, ...], calls: Callable[[], Iterable[Case]]) -> Observer:
    """Return the observer of one result, which the case names, for all calls.

    So an idea about one result explains it whatever the others are, if it agrees in every call.

    Args:
        names: Names of the results in the order in which an answer returns them.
        calls: Yields the inputs.
    """

    def observe(answer: Any, case: Case) -> Record:
        record: Record = {"form": "right"}
        changed: set[str] = set()
        for call in calls():
            inputs = copy.deepcopy(call.inputs)
            results = plain(answer(*inputs.values()))
            results = results.tolist() if isinstance(results, Tensor) else results
            if not isinstance(results, list) or len(results) != len(names):
                return {"form": results}
            where = call.what or call.described()
            record[f"the result for {where}"] = results[names.index(case.what)]
            changed |= {name for name in inputs if not same(inputs[name], call.inputs[name])}
        return record | {"changed": sorted(changed)}

    return observe
