"""What would fit where the question does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.doctor.answer import Answer, answer
from pagoda.doctor.hardware import Hardware
from pagoda.doctor.levers import (
    Case,
    Change,
    combinations,
    condensed,
    inner_levers,
    more_devices,
    other_weights,
    pulled,
    words_of,
)
from pagoda.doctor.users import Users

_MOST = 5
# What is free here moves while programs run: a command is to hold when it is typed.
_MOVES = 256 << 20
# A context that is so much shorter than the model's own is worth a word, where smaller steps and
# cache leave room for one that is so much longer.
_SHORT, _LONGER = 4, 2
_TRIES = 6
# Tokens; who is offered less than a page has nothing to say to the model.
_SHORTEST = 512
_ANY_MEMORY = 1 << 50


@dataclass(frozen=True)
class Remedy:
    words: str
    command: str


def remedies(asked: Answer) -> list[Remedy]:
    """Commands that fit, those first that change least of what was asked for; each was planned.
    Of a model that fits with a short context, one that has a longer."""
    if asked.fits:
        return _roomier(asked)
    case = _case(asked)
    users = None if asked.users is None else asked.users.users
    kept: list[Remedy] = []
    taken_back: list[Remedy] = []
    for changes, remedy in _keeping(case, users, asked, ()):
        (taken_back if any(change.drops for change in changes) else kept).append(remedy)
    # Fewer users only where nothing else helps: it is what was asked for.
    less = list(_less(case, users, asked)) if users is None or not kept else []
    found = [*kept, *taken_back, *less]
    if len(found) < _MOST:
        found += [*_with_more(case, users, asked), *_offloaded(case, users, asked)]
    return found[:_MOST]


def _with_more(case: Case, users: Users | None, asked: Answer) -> Iterator[Remedy]:
    """More devices, up to the first number that needs no other change."""
    for more in more_devices(case):
        first = next(_keeping(case, users, asked, (more,)), None)
        if first is not None:
            changes, remedy = first
            yield remedy
            if not changes:
                return


def _offloaded(case: Case, users: Users | None, asked: Answer) -> Iterator[Remedy]:
    """Where it is not known how much memory the GPU's host has: as much as it takes."""
    facts = case.hardware.facts
    if facts.device == "cpu" or facts.host_memory is not None:
        return
    rich = replace(case.hardware, facts=replace(facts, host_memory=_ANY_MEMORY))
    made = _planned(replace(case, hardware=rich), users)
    if made is None or made.resolution is None:
        return
    gib = made.resolution.config.device.cpu_offload_gb
    device = replace(case.config.device, cpu_offload_gb=gib)
    given = replace(case, config=replace(case.config, device=device))
    command = _command(given, users, asked) if gib else None
    if command is not None:
        yield Remedy(f"{gib:g} GiB of weights in the host's memory, many times slower", command)


def _case(asked: Answer) -> Case:
    return Case(condensed(asked.subject), _later(asked.hardware), asked.asked)


def _later(hardware: Hardware) -> Hardware:
    """With a little less free, where others use it too."""
    if not hardware.here:
        return hardware
    free = max(0, hardware.facts.free_memory - _MOVES)
    return replace(hardware, facts=replace(hardware.facts, free_memory=free))


def _keeping(
    case: Case, users: Users | None, asked: Answer, outer: tuple[Change, ...]
) -> Iterator[tuple[Sequence[Change], Remedy]]:
    """Ways that keep contexts and users, none of which does more than another: of the model as it
    is all, of each other form of its weights the cheapest."""
    case = pulled(case, outer)
    num_users = 0 if users is None else users.count
    found: list[tuple[Change, ...]] = []
    for weights in (None, *other_weights(case)):
        chosen = () if weights is None else (weights,)
        inside = pulled(case, chosen)
        levers = inner_levers(inside, num_users)
        if not _may_fit(pulled(inside, [lever[-1] for lever in levers]), users):
            continue
        for way in combinations(levers):
            if any(_does_more(way, before) for before in found):
                continue
            command = _command(pulled(inside, way), users, asked)
            changes = (*chosen, *way)
            if command is None or not (outer or changes):
                continue
            found += [] if weights is not None else [way]
            yield changes, Remedy(words_of((*outer, *changes)), command)
            if weights is not None:
                break


def _does_more(way: Sequence[Change], before: Sequence[Change]) -> bool:
    strengths = {change.lever: change.strength for change in way}
    return all(strengths.get(change.lever, 0) >= change.strength for change in before)


def _less(case: Case, users: Users | None, asked: Answer) -> list[Remedy]:
    """Fewer users or shorter contexts: as they come with the least change, and the most."""
    offers: list[list[_Offer]] = []
    for weights in (None, *other_weights(case)):
        chosen = () if weights is None else (weights,)
        inside = pulled(case, chosen)
        tightest = [lever[-1] for lever in inner_levers(inside, 0 if users is None else 1)]
        if users is not None and not _most_users(pulled(inside, tightest), users):
            continue  # nor do gentler changes hold anybody
        for way in [(), tightest] if tightest else [()]:
            offers.append(_offers(inside, (*chosen, *way), way, users))
    kinds: dict[str, list[_Offer]] = {}
    for offer in (offer for some in offers for offer in some):
        kinds.setdefault(offer.kind, []).append(offer)
    found = []
    for same in kinds.values():
        best = max(same, key=lambda offer: offer.amount)
        worth = best.amount >= _LONGER * same[0].amount
        for offer in (same[0], best) if worth else same[:1]:
            command = _command(offer.case, offer.users, asked)
            with_ = f", with {words_of(offer.changes)}" if offer.changes else ""
            if command is not None:
                found.append(Remedy(offer.words + with_, command))
    return found


def _command(case: Case, users: Users | None, asked: Answer) -> str | None:
    """What to type, planned once more as it will be read; None where that does not fit."""
    made = _planned(case, users)
    if made is None or not made.fits or made.resolution is None:
        return None
    config = made.config
    if config.model.max_model_len == "auto":  # a command says what it gives
        length = made.resolution.config.model.max_model_len
        config = replace(config, model=replace(config.model, max_model_len=length))
    made = replace(made, config=config, serving=asked.serving)
    given = asked.asked.device
    device = replace(config.device, device=given.device, threads=given.threads)
    typed = replace(config, device=device)
    again = _planned(replace(case, config=typed), users)
    return made.command if again is not None and again.fits else None


def _planned(case: Case, users: Users | None) -> Answer | None:
    """None for flags that contradict each other, the model or the hardware."""
    try:
        return answer(case.subject, case.hardware, case.config, users=users)
    except (CapacityError, ConfigError):
        return None


def _may_fit(tightest: Case, users: Users | None) -> bool:
    """Whether any of the ways that lead up to `tightest` can: all of them need more."""
    made = _planned(tightest, users)
    return made is None or made.fits


def _offers(
    inside: Case, changes: Sequence[Change], way: Sequence[Change], users: Users | None
) -> "list[_Offer]":
    case = pulled(inside, way)
    some = _fewer(case, users) if users is not None else _shorter(case)
    return [replace(offer, changes=changes) for offer in some]


@dataclass(frozen=True)
class _Offer:
    """Less than was asked for."""

    kind: str
    amount: int
    words: str
    case: Case
    users: Users | None
    changes: Sequence[Change] = ()


def _fewer(case: Case, users: Users) -> Iterator[_Offer]:
    most = _most_users(case, users)
    if 0 < most < users.count:
        words = f"up to {most:,} user{'s' * (most > 1)} of {users.tokens:,} tokens"
        yield _Offer("users", most, words, case, replace(users, count=most))
    made = _planned(case, users) if most else None
    longest = made.users.longest if made is not None and made.users is not None else 0
    if _SHORTEST <= longest < users.tokens:
        model = replace(case.config.model, max_model_len=None)
        free = replace(case, config=replace(case.config, model=model))
        words = f"{users.count:,} users of up to {longest:,} tokens"
        yield _Offer("tokens", longest, words, free, replace(users, tokens=longest))


def _most_users(case: Case, users: Users) -> int:
    """Steps for more requests leave room for fewer: as many as fit beside their own steps."""
    count = 1
    for _ in range(_TRIES):
        made = _planned(case, replace(users, count=count))
        room = made.users.most_users if made is not None and made.users is not None else 0
        if count == 1 and room > 1:
            count = min(room, users.count)
        elif room >= count:
            return count
        elif count == 1:
            break
        else:
            count = max(room, count // 4, 1)
    return 0


def _shorter(case: Case) -> Iterator[_Offer]:
    """The longest context that fits, where a longer one was asked for."""
    wanted = case.config.model.max_model_len
    if not isinstance(wanted, int):
        return
    model = replace(case.config.model, max_model_len="auto")
    free = replace(case, config=replace(case.config, model=model))
    length = _length(free)
    if 0 < length < wanted:
        words = f"a context of {length:,} tokens instead of {wanted:,}"
        yield _Offer("tokens", length, words, free, None)


def _roomier(asked: Answer) -> list[Remedy]:
    assert asked.resolution is not None
    plan, most = asked.resolution.plan, asked.subject.spec.max_position
    chosen = not isinstance(asked.asked.model.max_model_len, int) and asked.users is None
    if not plan.groups or not chosen or _SHORT * plan.max_model_len > most:
        return []
    case, enough = _case(asked), _LONGER * plan.max_model_len
    levers = [lever for lever in inner_levers(case, 0) if not lever[-1].drops]
    ways = combinations(levers)[1:]
    if not ways or _length(pulled(case, [lever[-1] for lever in levers])) < enough:
        return []
    for way in ways:
        length = _length(pulled(case, way))
        command = _command(pulled(case, way), None, asked) if length >= enough else None
        if command is not None:
            return [Remedy(f"a context of {length:,} tokens, with {words_of(way)}", command)]
    return []


def _length(case: Case) -> int:
    """Tokens of the context that is chosen; 0 where nothing fits."""
    made = _planned(case, None)
    return made.resolution.plan.max_model_len if made and made.resolution else 0
