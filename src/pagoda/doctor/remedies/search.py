"""What would fit where the question does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pagoda.base.units import format_bytes
from pagoda.base.words import say, with_and
from pagoda.doctor.answer import Answer
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.remedies.case import SHORTEST, Case, planned
from pagoda.doctor.remedies.condensed import condensed
from pagoda.doctor.remedies.levers import (
    Change,
    combinations,
    inner_levers,
    more_devices,
    other_weights,
    pulled,
    words_of,
)
from pagoda.doctor.streaming import streams
from pagoda.doctor.users import Users

_MOST = 5
# What is free here moves while programs run: a command is to hold when it is typed.
_MOVES = 256 << 20
# By so much at least, where every MiB counts.
_MOVES_LEAST = 64 << 20
# Addresses that a start took beyond those without which none is begun.
_MORE_ADDRESSES = 256 << 20
# A context that is so much shorter than the model's own is worth a word, where smaller steps and
# cache leave room for one that is so much longer.
_SHORT, _LONGER = 4, 2
_TRIES = 6
_ANY_MEMORY = 1 << 50


@dataclass(frozen=True)
class Remedy:
    words: str
    command: str


def remedies(asked: Answer) -> list[Remedy]:
    """Commands that fit, those first that change least of what was asked for; each was planned.
    Of a model that fits with a short context, one that has a longer; of one whose experts are read
    from disk, those that have them in memory."""
    if asked.fits and not streams(asked):
        return _roomier(asked)
    case = _case(asked)
    users = None if asked.users is None else asked.users.users
    lifted = list(_with_all_addresses(case, users, asked))
    # A cache of a given size may take what is else kept free, so it comes last; but where only
    # addresses are too few, it is what takes them.
    cases = [case, _with_own_pool(asked)]
    searches = (_searched(each, users, asked) for each in (cases[::-1] if lifted else cases))
    found = next((some for some in searches if some), [])
    if len(found) < _MOST:
        found += [*_with_more(case, users, asked), *_offloaded(case, users, asked)]
    return [*found[:_MOST], *lifted]


def _searched(case: Case, users: Users | None, asked: Answer) -> list[Remedy]:
    kept: list[Remedy] = []
    taken_back: list[Remedy] = []
    for changes, remedy in _keeping(case, users, asked, ()):
        (taken_back if any(change.drops for change in changes) else kept).append(remedy)
    # Fewer users only where nothing else helps: it is what was asked for.
    less = list(_less(case, users, asked)) if users is None or not kept else []
    return [*kept, *taken_back, *less]


def _with_own_pool(asked: Answer) -> Case:
    less = _with_less(asked.hardware, _MOVES_LEAST if asked.hardware.here else _MOVES)
    return replace(_case(asked), hardware=less, own_pool=True)


def _with_all_addresses(case: Case, users: Users | None, asked: Answer) -> Iterator[Remedy]:
    """Where the limit of addresses is all that is in the way."""
    if case.hardware.address_space is None:
        return
    free = replace(case, hardware=replace(case.hardware, address_space=None))
    made = planned(free, users)
    if made is not None and made.fits:
        yield Remedy(say("no limit of addresses"), f"ulimit -v unlimited && {asked.command}")


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
    made = planned(replace(case, hardware=rich), users)
    gib = made and made.resolution and made.resolution.config.device.offload_gib
    if not gib:
        return
    device = replace(case.config.device, cpu_offload_gb=gib)
    given = replace(case, config=replace(case.config, device=device))
    words = say("{gib:g} GiB of weights in the host's memory, many times slower", gib=gib)
    remedy = _remedy(words, (), given, users, asked)
    if remedy is not None:
        yield remedy


def _case(asked: Answer) -> Case:
    return Case(condensed(asked.subject), _later(asked.hardware), asked.asked)


def _later(hardware: Hardware) -> Hardware:
    """With a little less free, where others use it too."""
    return _with_less(hardware, _MOVES) if hardware.here else hardware


def _with_less(hardware: Hardware, nbytes: int) -> Hardware:
    facts, space = hardware.facts, hardware.address_space
    facts = replace(facts, free_memory=max(0, facts.free_memory - nbytes))
    space = None if space is None else max(0, space - _MORE_ADDRESSES)
    return replace(hardware, facts=facts, address_space=space)


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
            changes = (*chosen, *way)
            if not (outer or changes or inside.own_pool):
                continue
            words = words_of((*outer, *changes))
            remedy = _remedy("", words, pulled(inside, way), users, asked)
            if remedy is None:
                continue
            found += [] if weights is not None else [way]
            yield changes, remedy
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
        if users is not None and not _holds_some(pulled(inside, tightest), users):
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
            words = words_of(offer.changes)
            remedy = _remedy(offer.words, words, offer.case, offer.users, asked)
            found += [] if remedy is None else [remedy]
    return found


def _remedy(
    offer: str, changes: Sequence[str], case: Case, users: Users | None, asked: Answer
) -> Remedy | None:
    """`offer`, with what is changed for it. What is typed is planned once more as it will be read;
    None where that does not fit."""
    made = planned(case, users)
    if made is None or not made.fits or made.resolution is None:
        return None
    config = made.config
    if config.model.max_model_len == "auto":  # a command says what it gives
        length = made.resolution.config.model.max_model_len
        config = replace(config, model=replace(config.model, max_model_len=length))
    if case.own_pool:
        pool = format_bytes(made.config.cache.kv_cache_memory_bytes or 0)
        words = say(
            "a KV cache of {pool}"
            if offer
            else "a KV cache of {pool} for contexts of {tokens:,} tokens",
            pool=pool,
            tokens=made.resolution.plan.max_model_len,
        )
        changes = [*changes, words]
    made = replace(made, config=config, serving=asked.serving)
    given = asked.asked.device
    device = replace(config.device, device=given.device, threads=given.threads)
    typed = replace(config, device=device)
    replanned = planned(replace(case, config=typed, own_pool=False), users)
    if replanned is None or not replanned.fits:
        return None
    return Remedy(offered(offer, changes), made.command)


def offered(offer: str, changes: Sequence[str]) -> str:
    """What is offered, if anything, with what is changed for it."""
    if not changes:
        return offer
    if not offer:
        return with_and(changes)
    return say("{offer}, with {changes}", offer=offer, changes=with_and(changes))


def _may_fit(tightest: Case, users: Users | None) -> bool:
    """Whether any of the ways that lead up to `tightest` can: all of them need more."""
    made = planned(tightest, users)
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
        words = up_to_users(most, users.tokens)
        yield _Offer("users", most, words, case, replace(users, count=most))
    longest = _longest(case, users)
    if SHORTEST <= longest < users.tokens:
        model = replace(case.config.model, max_model_len=None)
        free = replace(case, config=replace(case.config, model=model))
        words = say(
            "{count:,} users of up to {longest:,} tokens", count=users.count, longest=longest
        )
        yield _Offer("tokens", longest, words, free, replace(users, tokens=longest))


def up_to_users(count: int, tokens: int) -> str:
    return say(
        "up to {count:,} user of {tokens:,} tokens"
        if count == 1
        else "up to {count:,} users of {tokens:,} tokens",
        count=count,
        tokens=tokens,
    )


def _holds_some(case: Case, users: Users) -> bool:
    """Whether some of them fit, or all of them with shorter contexts."""
    return bool(_most_users(case, users)) or _longest(case, users) >= SHORTEST


def _longest(case: Case, users: Users) -> int:
    """Tokens for each of them."""
    made = planned(case, users)
    return made.users.longest if made is not None and made.users is not None else 0


def _most_users(case: Case, users: Users) -> int:
    """Steps for more requests leave room for fewer: as many as fit beside their own steps."""
    count = 1
    for _ in range(_TRIES):
        made = planned(case, replace(users, count=count))
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
        words = say(
            "a context of {length:,} tokens instead of {wanted:,}", length=length, wanted=wanted
        )
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
        if length < enough:
            continue
        words = say("a context of {length:,} tokens", length=length)
        remedy = _remedy(words, words_of(way), pulled(case, way), None, asked)
        if remedy is not None:
            return [remedy]
    return []


def _length(case: Case) -> int:
    """Tokens of the context that is chosen; 0 where nothing fits."""
    made = planned(case, None)
    return made.resolution.plan.max_model_len if made and made.resolution else 0
