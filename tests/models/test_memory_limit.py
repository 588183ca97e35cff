"""A checkpoint twice as large as the memory there is loads: the file is never held, only passed.

The limit is RLIMIT_DATA, which the kernel enforces on private memory (a cgroup would need rights
that a test should not ask for). Pages of the file do not count there, so the process's peak with
all of them is compared with the limit too: a loader that keeps the file mapped and touched, or
copies it, passes neither.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip

# One of two ranks: half of the file, in half of its width.
SCRIPT = """
import json, resource, sys
from pathlib import Path
import torch
from pagoda.arch.registry import spec_for
from pagoda.layers.context import Parallel
from pagoda.models.loader import build_model
from pagoda.weights.files import open_model

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))

torch.set_num_threads(1)
torch.mm(torch.ones(64, 64), torch.ones(64, 64))
limit = int(sys.argv[2])
files = open_model(Path(sys.argv[1]))
spec = spec_for(files.config, {}, files.checkpoint.tensors)
before = status("VmRSS")
data = status("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (data + limit, data + limit))
try:
    bytearray(limit + (1 << 20))
    enforced = False
except MemoryError:
    enforced = True
Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
model = build_model(
    spec, files.checkpoint, dtype=torch.bfloat16, device="cpu", parallel=Parallel(0, 2)
)
print(json.dumps({"enforced": enforced, "peak": status("VmHWM") - before}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    with torch.device("meta"):
        shapes = LlamaForCausalLM(LlamaConfig(**CONFIG)).state_dict()
    weights = {name: torch.ones(meta.shape) for name, meta in shapes.items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", **CONFIG}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_twice_the_limit(checkpoint: Path):
    limit = (checkpoint / "model.safetensors").stat().st_size // 2
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(checkpoint), str(limit)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["enforced"]
    assert 0.4 * limit < result["peak"] < limit
