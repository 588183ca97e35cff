// What this CPU can do at best with the instruction set that this file is compiled for: the
// ceilings that `pagoda bench micro` holds the kernels against.
#pragma once

#include "lanes.h"
#include "pool.h"
#include "tiles.h"

namespace pagoda {
namespace {

// Results that nobody needs, but that the compiler has to have ready.
template <typename T>
[[gnu::always_inline]] inline void keep(T* values) {
    asm volatile("" : : "r"(values) : "memory");
}

// Reads every byte once.
void probe_read(const uint8_t* data, int64_t bytes, Pool& pool) {
    // Large enough to cost nothing to hand out, small enough that no thread ends long after others.
    constexpr int64_t kChunkBytes = 256 << 10;
    constexpr int kChains = 8;
    constexpr int64_t kVector = sizeof(Bytes);
    pool.run((bytes + kChunkBytes - 1) / kChunkBytes, [&](int64_t chunk) {
        const uint8_t* from = data + chunk * kChunkBytes;
        const int64_t left = bytes - chunk * kChunkBytes;
        const int64_t size = left < kChunkBytes ? left : kChunkBytes;
        Bytes seen[kChains];
        for (Bytes& one : seen) one = Bytes::all(0);
        int64_t i = 0;
        for (; i + kChains * kVector <= size; i += kChains * kVector)
#pragma GCC unroll 8
            for (int c = 0; c < kChains; ++c) {
                if (c * kVector % 64 == 0) __builtin_prefetch(from + i + c * kVector + kPrefetchBytes);
                seen[c] = seen[c] | Bytes::load(from + i + c * kVector);
            }
        uint8_t rest = 0;
        for (; i < size; ++i) rest |= from[i];
        keep(seen);
        keep(&rest);
    });
}

// Multiplications and additions done: `steps` fused ones in each of a few chains, on all threads.
int64_t probe_floats(int64_t steps, Pool& pool) {
    // Two units with a latency of 4 or 5 cycles; with a and b they fit 16 registers.
    constexpr int kChains = 12;
    pool.run(pool.num_threads(), [&](int64_t) {
        float start = 0.5f;
        keep(&start);
        const Floats a = Floats::all(start), b = Floats::all(start * start);
        Floats sums[kChains];
        for (Floats& one : sums) one = Floats::zero();
        for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 12
            for (int c = 0; c < kChains; ++c) sums[c] = Floats::fma(a, sums[c], b);
        keep(sums);
    });
    return int64_t{2} * Floats::kSize * kChains * steps * pool.num_threads();
}

// Adds the products of 8 vectors of weights to `sums` as 4-bit weights are multiplied.
[[gnu::always_inline]] inline void add_dots(const Bytes* weights, const int8_t* q, Ints& sums) {
#if PAGODA_BYTE_PAIRS
#pragma GCC unroll 2
    for (int first = 0; first < 8; first += 4) {
        Pairs run = Pairs::products(weights[first], Bytes::repeated(q + 4 * first));
#pragma GCC unroll 3
        for (int i = first + 1; i < first + 4; ++i)
            run.add(Pairs::products(weights[i], Bytes::repeated(q + 4 * i)));
        sums.add(run.times(Ints::all(0x10001)));
    }
#else
    sums = dot<15, false, 8>(weights, q, sums);
#endif
}

// The same of 8-bit numbers.
int64_t probe_dots(int64_t steps, Pool& pool) {
    constexpr int kChains = 8, kCount = 8;
    pool.run(pool.num_threads(), [&](int64_t) {
        int8_t q[4 * kCount];
        std::memset(q, 3, sizeof q);
        Bytes weights[kCount];
        for (int i = 0; i < kCount; ++i) weights[i] = Bytes::all(i);
        Ints sums[kChains];
        for (Ints& one : sums) one = Ints::zero();
        for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 8
            for (int c = 0; c < kChains; ++c) {
                keep(q);  // else the products are taken out of the loop
                add_dots(weights, q, sums[c]);
            }
        keep(sums);
    });
    return int64_t{2} * 4 * kLanes * kCount * kChains * steps * pool.num_threads();
}

}  // namespace
}  // namespace pagoda
