"""Block formats, decoded to the dtype of activations while loading."""

from pagoda.kernels import ops
from pagoda.quant.base import ShardSource
from pagoda.quant.plain import PlainLinear

# Elements decoded at a time: decoding makes several fp32 temporaries of this size.
_CHUNK_ELEMENTS = 1 << 20


class GgufLinear(PlainLinear):
    """Shards may differ in storage: llama.cpp's mixes give v more bits than q and k."""

    def load(self, shard: int, source: ShardSource) -> None:
        raw, target = source.read(), self._shards[shard]
        step = max(1, _CHUNK_ELEMENTS // max(1, source.in_features))
        for start in range(0, source.out_features, step):
            rows = raw[start : start + step].to(target.device)
            target[start : start + step] = ops.dequantize(rows, source.storage, target.dtype)
