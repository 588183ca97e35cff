"""The built-in tools as models are told of them, and the checks of their arguments."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.filetools.shell import (
    DEFAULT_OUTPUT,
    DEFAULT_SECONDS,
    MAX_OUTPUT,
    MAX_SECONDS,
)

_PATH = "Relative paths start at the working directory."


class _Arguments(BaseModel):
    # What is unknown is left alone: models make up arguments.
    model_config = ConfigDict(extra="ignore")


class _OfPath(_Arguments):
    path: str = Field(description=f"Path of the file. {_PATH}")


class ReadFile(_OfPath):
    start_line: int = Field(1, ge=1, description="First line; the first one of a file is 1.")
    end_line: int = Field(-1, ge=-1, description="Last line, included; -1 reads to the end.")
    append_loc: bool = Field(False, description="Put its number before each line, as in `12→`.")


class WriteFile(_OfPath):
    content: str = Field(description="The whole new text.")


class Edit(_Arguments):
    old_text: str = Field(min_length=1, description="Text that is in the file exactly once.")
    new_text: str = Field(description="What takes its place.")


class EditFile(_OfPath):
    edits: list[Edit] = Field(min_length=1, max_length=1000, description="All or none are made.")


class _Search(_Arguments):
    include: str = Field(
        "**", description="Glob: one without `/` fits a name at any depth, as `*.py`; another a "
        "path, as `src/**/*.py`.",
    )  # fmt: skip
    exclude: str = Field("", description="Glob of what is left out.")


class FileGlobSearch(_Search):
    path: str = Field(description=f"Folder to search. {_PATH}")
    type: Literal["file", "dir", "all"] = Field("file", description="What is listed.")
    max_depth: int = Field(0, ge=0, description="Levels of folders; 1 is this one, 0 all.")
    limit: int = Field(100, ge=1, description="Most entries; never more than 100.")


class GrepSearch(_Search):
    path: str = Field(description=f"File or folder to search. {_PATH}")
    pattern: str = Field(description="Regular expression, as Python has it.", max_length=10_000)
    return_line_numbers: bool = Field(False, description="Put its number before each line.")
    literal: bool = Field(False, description="`pattern` is a text as it stands.")
    ignore_case: bool = Field(False, description="Capitals and small letters are the same.")
    context_lines: int = Field(0, ge=0, le=50, description="Lines around each match.")


class ExecShellCommand(_Arguments):
    command: str = Field(description="Command for `sh`.", min_length=1, max_length=100_000)
    timeout: int = Field(
        DEFAULT_SECONDS, ge=1, description=f"Seconds it may take, at most {MAX_SECONDS}."
    )
    max_output_size: int = Field(
        DEFAULT_OUTPUT, ge=2, description=f"Bytes of output to answer with, at most {MAX_OUTPUT}."
    )


class GetInfo(_Arguments):
    pass


@dataclass(frozen=True)
class Described:
    title: str
    description: str
    arguments: type[_Arguments]
    writes: bool = False

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        schema: dict[str, Any] = self.arguments.model_json_schema()
        schema.pop("title")
        _without_titles(schema)
        return schema


def _without_titles(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values() if "properties" in schema else ():
        field.pop("title", None)
    for other in schema.get("$defs", {}).values():
        other.pop("title", None)
        _without_titles(other)


DESCRIBED = {
    "read_file": Described(
        "Read file",
        "Read a text file, or some of its lines. A long file comes in parts of 16 KiB: the last "
        "line says how to read on.",
        ReadFile,
    ),
    "file_glob_search": Described(
        "Find files",
        "List files and folders by a glob pattern. Folders such as .git, node_modules and build "
        "are named, and what is in them is not.",
        FileGlobSearch,
    ),
    "grep_search": Described(
        "Search in files",
        "Search text files for a pattern: lines as `PATH:LINE`. Folders such as .git, node_modules "
        "and build are left out.",
        GrepSearch,
    ),
    "exec_shell_command": Described(
        "Execute shell command",
        "Run a command in a shell; standard output and standard error come as one text. It has no "
        "input, and what it leaves in the background ends with it.",
        ExecShellCommand,
        writes=True,
    ),
    "write_file": Described(
        "Write file",
        "Write a whole text file; it is replaced if it is there, and missing folders are made.",
        WriteFile,
        writes=True,
    ),
    "edit_file": Described(
        "Edit file",
        "Replace texts in a file. Each old text must be in it exactly once.",
        EditFile,
        writes=True,
    ),
    "get_info": Described(
        "System information", "The operating system and the working directory.", GetInfo
    ),
}
