"""The speculator that was resolved."""

from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.ngram import NgramProposer
from pagoda.core.speculation.proposer import Proposer
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from pagoda.core.speculation.suffix import SuffixProposer
from pagoda.planner.resolved import ResolvedSpeculation


def make_speculator(resolved: ResolvedSpeculation) -> Speculator | None:
    """None where nothing is guessed."""
    proposer: Proposer
    match resolved.method:
        case "none":
            return None
        case "ngram":
            proposer = NgramProposer(resolved.shortest, resolved.longest)
        case "suffix":
            proposer = SuffixProposer()
        case "mtp" | "eagle3" | "draft":
            proposer = DraftedProposer()
    limits = SpeculationLimits(resolved.most, resolved.least, resolved.most_in_step)
    return Speculator(proposer, limits)
