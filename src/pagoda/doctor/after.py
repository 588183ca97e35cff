"""What the doctor adds when a server could not start: what is wrong here, and what would work."""

from pagoda.base.errors import CapacityError, EngineDeadError, PagodaError
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import answer
from pagoda.doctor.checks import findings
from pagoda.doctor.hardware import this_machine
from pagoda.doctor.probe import probe
from pagoda.doctor.remedies import remedies
from pagoda.doctor.subject import find_subject

# Topics that can be why an engine ended without a word.
_TOPICS = frozenset(("kernels", "memory", "oom", "limits", "gpu"))


def after_failure(config: EngineConfig, error: PagodaError) -> list[str]:
    """Lines for the log; none where the error has said it all."""
    if not isinstance(error, CapacityError | EngineDeadError):
        return []
    try:
        machine = probe()
        lines = [
            f"{found.topic}: {found.text}. {found.fix}"
            for found in findings(machine)
            if found.status in ("WARN", "FAIL") and found.topic in _TOPICS
        ]
        hardware = this_machine(machine, config.device.device)
        made = answer(find_subject(config.model), hardware, config)
        found = [] if made.fits else remedies(made)
    except PagodaError:  # what is wrong with the model, the error has said
        return []
    return lines + [f"What would fit, {remedy.words}: {remedy.command}" for remedy in found]
