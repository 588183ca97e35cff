"""A pytest plugin for llama.cpp's own server tests: models that are here in place of theirs.

Their models lie in the network. `LLAMA_TESTS_MODELS` is a JSON object from a preset's repository to
a file that stands in for it; a test whose model has none is skipped, and the reason says which.
"""

import json
import os
from typing import Any

import pytest
import utils

_MODELS: dict[str, str] = json.loads(os.environ["LLAMA_TESTS_MODELS"])
_start = utils.ServerProcess.start


def _start_here(self: Any, *args: Any, **options: Any) -> None:
    wanted = self.model_url or self.model_hf_repo
    if wanted and self.model_file is None:
        name = f"{wanted}/{self.model_hf_file}" if self.model_hf_file else wanted
        if name not in _MODELS:
            pytest.skip(f"needs {name}")
        self.model_file, self.model_hf_repo, self.model_hf_file = _MODELS[name], None, None
    self.offline = False
    _start(self, *args, **options)


def _download(url: str, output_file_path: str | None = None) -> str:
    pytest.skip(f"needs {url}", allow_module_level=True)


utils.ServerProcess.start = _start_here
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.download_file = _download
