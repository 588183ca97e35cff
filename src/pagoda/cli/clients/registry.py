"""The programs that `pagoda launch` knows, a file each."""

from pagoda.cli.clients import aider, claude, cline, codex, copilot, opencode

CLIENTS = {
    module.CLIENT.name: module.CLIENT for module in (codex, opencode, claude, cline, aider, copilot)
}
