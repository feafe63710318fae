"""Groups: more than one answer to one prompt, and answers that can be compared."""

import torch
from torch import Tensor

from .finding import Place
from .sight import Check, Found, Sight, share

TIED = 0.9
"""Share of groups without any spread above which a step is mostly idle."""


def _grouped(sight: Sight) -> tuple[Tensor, Tensor] | None:
    s = sight.sequences
    return None if s.groups is None or s.slots is None or not len(sight.batch) else (s.groups, s.group_size())


def singletons(sight: Sight) -> Found:
    """Find groups of one."""
    if (known := _grouped(sight)) is None:
        return
    groups, size = known
    alone = size == 1
    if bool(alone.any()):
        compared = [b.component.name for b in sight.plan.advantages if b.component.scope == "group"] if sight.plan is not None else []
        group = int(alone.to(torch.uint8).argmax())
        yield (
            "error" if compared and bool(alone.all()) else "warning",
            Place("group_ids", int((groups == group).to(torch.uint8).argmax()), group=group),
            f"{share(alone.sum(), alone.numel())} groups have one sequence; this is the first",
            f"nothing to compare with: {compared[0] if compared else 'a group baseline'} gives it the advantage 0 or its bare reward",
            "sample two or more answers to each prompt; look whether ids are of prompts and not of sequences",
        )


def uneven(sight: Sight) -> Found:
    """Find groups that lost members."""
    if (known := _grouped(sight)) is None:
        return
    groups, size = known
    small = (size < size.max() / 2) & (size > 1)
    if bool(small.any()):
        group = int(small.to(torch.uint8).argmax())
        yield (
            "warning",
            Place("group_ids", int((groups == group).to(torch.uint8).argmax()), group=group),
            f"{share(small.sum(), small.numel())} groups have less than half the {int(size.max())} members of the largest; this is the first",
            "its baseline is noisier, and an aggregation by sequences gives its prompt less weight",
            "wait for all answers to a prompt before the batch is cut, or filter whole groups",
        )


def tied(sight: Sight) -> Found:
    """Find a step in which nearly all groups are all right or all wrong, unless the recipe compares beyond groups."""
    beyond = sight.plan is not None and sight.plan.advantages and all(b.component.scope == "step" for b in sight.plan.advantages)
    if (known := _grouped(sight)) is None or beyond:
        return
    groups, size = known
    s = sight.sequences
    name = "rewards" if "rewards" in sight else "advantages"
    if name not in sight:
        return
    x = sight.per_sequence(name)
    none = (s.group_std(x) <= 1e-9) & (size > 1)
    several = (size > 1).sum()
    if int(several) > 1 and int(none.sum()) > TIED * int(several):
        group = int(none.to(torch.uint8).argmax())
        yield (
            "warning",
            Place(name, int((groups == group).to(torch.uint8).argmax()), group=group),
            f"{share(none.sum(), several)} groups of several answers have no spread; this is the first",
            "an answer is compared with its group only: a tied group teaches nothing, and its tokens still count in the denominator",
            "easier or harder prompts, more answers to each, a finer reward; filter: group-spread drops such groups",
        )


def mixed(sight: Sight) -> Found:
    """Find sequences of one group that cannot answer the same prompt."""
    if (known := _grouped(sight)) is None:
        return
    groups, _ = known
    for name in ("prompt_lengths", "state_ids", "baseline_rewards"):
        if name not in sight:
            continue
        x = sight.real(name).double()
        first = torch.full((int(groups.max()) + 1,), len(sight.batch), device=groups.device)
        first = first.scatter_reduce(0, groups, torch.arange(len(sight.batch), device=groups.device), "amin")
        wrong = x != x[first[groups]]
        if (place := sight.first(wrong, name)) is not None and place.sequence is not None:
            group = int(groups[place.sequence])
            yield (
                "error",
                Place(name, place.sequence, group=group),
                f"{name} is {float(x[place.sequence]):g}, but {float(x[first[group]]):g} in sequence {int(first[group])} of the same group",
                "answers to different prompts are compared: advantages say which prompt is easier, not which answer is better",
                "give group_ids by prompt, before rows are sorted or shuffled; look at every place that reorders rows",
            )
            return


def parted(sight: Sight) -> Found:
    """Find prompts that were given several groups."""
    if (known := _grouped(sight)) is None or (sight.plan is not None and "state_ids" in sight.reads):
        return
    groups, _ = known
    state = sight["state_ids"]
    _, index = torch.unique(state, return_inverse=True)
    first = torch.full((int(index.max()) + 1,), len(sight.batch), device=index.device)
    first = first.scatter_reduce(0, index, torch.arange(len(sight.batch), device=index.device), "amin")
    wrong = groups != groups[first[index]]
    if (place := sight.first(wrong, "state_ids")) is not None and place.sequence is not None:
        yield (
            "warning",
            Place("group_ids", place.sequence, group=int(groups[place.sequence])),
            f"it starts in the same state as sequence {int(first[index[place.sequence]])}, which is in group {int(groups[first[index[place.sequence]]])}",
            "one prompt has two baselines: answers that could be compared are not",
            "give one id to all answers to one prompt, on all workers",
        )


def copies(sight: Sight) -> Found:
    """Find groups that hold one answer many times."""
    if (known := _grouped(sight)) is None:
        return
    groups, size = known
    s = sight.sequences
    mixed = (sight["token_ids"].double() + 1) * torch.sin(s.places.double() * 1.618 + 1)
    mark = s.sum(mixed) + 1e3 * s.lengths
    several = size > 1
    same = (s.group_std(mark) <= 1e-9 * mark.abs().max().clamp(min=1)) & several
    if int(several.sum()) > 1 and bool((same == several).all()):
        yield (
            "warning",
            Place(
                "token_ids",
                int((groups == int(same.to(torch.uint8).argmax())).to(torch.uint8).argmax()),
                group=int(same.to(torch.uint8).argmax()),
            ),
            f"in all {int(several.sum())} groups of several answers every answer is the same",
            "equal answers earn equal rewards: no group has a spread",
            "sample with temperature > 0 and another seed for each answer; if the policy is that sure, it has collapsed: raise entropy",
        )


CHECKS = (
    Check("singleton-groups", "Has every group at least two sequences?", singletons, ("group_ids",), whole=True),
    Check("groups-uneven", "Are groups of similar size?", uneven, ("group_ids",), whole=True),
    Check("groups-tied", "Do rewards differ in some groups?", tied, ("group_ids",), whole=True),
    Check("groups-mixed", "Does each group answer one prompt?", mixed, ("group_ids",), whole=True),
    Check("groups-parted", "Is each prompt one group?", parted, ("group_ids", "state_ids"), cost="full", whole=True),
    Check("samples-identical", "Do the answers to one prompt differ?", copies, ("group_ids", "token_ids"), cost="full", whole=True),
)
