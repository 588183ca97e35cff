"""What the doctor adds when a server could not start: what is wrong here, and what would work."""

from dataclasses import replace

from pagoda.base.errors import CapacityError, EngineDeadError, EngineKilledError, PagodaError
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import answer
from pagoda.doctor.command import key_note
from pagoda.doctor.machine.checks import findings
from pagoda.doctor.machine.hardware import this_machine
from pagoda.doctor.machine.probe import probe
from pagoda.doctor.remedies.search import remedies
from pagoda.doctor.subject import find_subject, with_draft_model

# Topics that can be why an engine ended, and those that only matter where it did not say why: the
# kernel may have ended another process, hours before.
_TOPICS = frozenset(("kernels", "memory", "limits", "gpu"))
_WORDLESS = frozenset(("oom",))


def after_failure(config: EngineConfig, error: PagodaError, serving: str = "") -> list[str]:
    """Lines for the log; none where the error has said it all. `serving` is what else the command
    was given (`doctor.command`)."""
    if not isinstance(error, CapacityError | EngineDeadError):
        return []
    topics = _TOPICS | (_WORDLESS if isinstance(error, EngineKilledError) else frozenset())
    try:
        machine = probe()
        lines = [
            say("{topic}: {text}. {fix}", topic=found.topic, text=found.text, fix=found.fix)
            for found in findings(machine)
            if found.status in ("WARN", "FAIL") and found.topic in topics
        ]
        hardware = this_machine(machine, config.device.device)
        made = answer(with_draft_model(find_subject(config.model), config), hardware, config)
        found = [] if made.fits else remedies(replace(made, serving=serving))
    except PagodaError:  # what is wrong with the model, the error has said
        return []
    lines += [
        say("What would fit, {how}: {command}", how=remedy.words, command=remedy.command)
        for remedy in found
    ]
    return lines + (key_note(found[0].command) if found else [])
