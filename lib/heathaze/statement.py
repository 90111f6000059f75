"""What a policy promises, in plain words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from heathaze.policy import WITH_MAP, Policy
from heathaze.rho import Measuring, select_measuring


def promise(policy: Policy) -> list[str]:
    """One sentence per promise, for the person who signs for the policy."""
    privacy, budget, grid = policy.privacy, policy.budget, policy.grid.build()
    length = "day" if policy.period.days == 1 else f"{policy.period.days} days"
    one_period = "one day" if policy.period.days == 1 else length
    nights = Fraction(budget.cap) // Fraction(privacy.epsilon)
    per = "ever" if budget.window == "ever" else f"per {budget.window}"
    scale = float(privacy.histogram_scale)
    sentences = [
        f"Dataset {policy.dataset.name}: each release speaks of {one_period} from midnight {policy.dataset.timezone}, "
        f"in {policy.period.slices} slices of {policy.period.days * 24 / policy.period.slices:g} hours.",
        f"The public grid has {grid.rows} x {grid.cols} cells of {grid.height_metres / grid.rows:.0f} x "
        f"{grid.width_metres / grid.cols:.0f} m, from {grid.south:g}, {grid.west:g} to {grid.north:g}, {grid.east:g}; "
        f"{_blocks(policy)}points outside are dropped.",
        f"One release is epsilon {privacy.epsilon} differentially private (delta {privacy.delta}) for adding or removing ALL "
        f"records of one user id within that {length}.",
        f"At most {privacy.max_events_per_user} events of a user are used, chosen by keyed hash; every cell gets exact discrete "
        f"Laplace noise of scale {scale:.4g} (standard deviation {(2 * scale**2) ** 0.5:.3g}).",
        f"Of epsilon, {_share(policy, privacy.shares.histogram)} goes to the cells and "
        f"{_share(policy, privacy.shares.totals)} to the number of events used in each slice.",
    ]
    if privacy.map_scale is not None:
        sentences.append(
            f"A map of the whole period on the public grid is measured apart with {_share(policy, privacy.shares.map)}: every "
            f"cell of it gets noise of scale {float(privacy.map_scale):.4g}."
        )
    if privacy.declared_event_count is not None:
        sentences.append(
            f"The number of events before bounding is declared: {privacy.declared_event_count:,}, a public constant."
        )
    else:
        sentences.append(
            f"The number of events before bounding is measured with {_share(policy, privacy.shares.event_count)}, counting at "
            f"most {privacy.max_counted_per_user:,} events of a user."
        )
    sentences.append(
        f"All releases together may spend epsilon {budget.cap} {per}, enough for {nights} releases; the ledger refuses the next. "
        "A person present in every release loses that sum, not the epsilon of one release."
    )
    sentences.append(
        "Not covered: one person with several user ids, what a release says about groups, and who may read the raw events."
    )
    return sentences


def advice(policy: Policy) -> list[str]:
    """What would make the releases of a policy more useful, from its public numbers alone."""
    declared, cells, privacy = policy.privacy.declared_event_count, policy.grid.fine(), policy.privacy
    if policy.release.method != "vdr" or declared is None:
        return []
    numbers = (declared, float(privacy.epsilon), privacy.max_events_per_user)
    chosen = select_measuring(*numbers, (cells.rows, cells.cols), policy.period.slices, policy.period.days)
    is_mapped = chosen.slice_block == 0 or policy.grid.slice_block > 0 or policy.denoise.method not in WITH_MAP
    if chosen.block <= policy.grid.block and is_mapped:
        return []
    return [
        f"Advice: for {declared:,} events under this noise, {_told(chosen)} are expected to tell more than "
        f'blocks of {policy.grid.block} x {policy.grid.block}: give grid.block = "auto", and leave slice_block and shares out.'
    ]


def _told(chosen: Measuring) -> str:
    blocks, larger = (f"of {side} x {side}" for side in (chosen.block, chosen.slice_block))
    if not chosen.slice_block:
        return f"blocks {blocks} cells"
    return f"blocks {blocks} cells in a map of the whole period and {larger} in each slice"


def _blocks(policy: Policy) -> str:
    side, larger, cells = policy.grid.block, policy.grid.slice_block, policy.grid.fine()
    told = "" if side == 1 else f"each of them measures {side} x {side} of the {cells.rows} x {cells.cols} cells as one; "
    return told + (f"in a single slice, {larger} x {larger} cells are measured as one; " if larger else "")


def _share(policy: Policy, share: Decimal) -> str:
    return f"{(policy.privacy.epsilon * share).normalize():f}"
