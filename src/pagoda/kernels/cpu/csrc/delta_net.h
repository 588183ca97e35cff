// Gated delta nets (arXiv 2412.06464): the convolution in front, the rule, and the norm behind.
//
// Tokens are taken one by one in the order of their positions, so a request's bits depend neither
// on how its tokens are cut into steps nor on the batch.
#pragma once

#include <algorithm>
#include <cstring>

#include "activation.h"
#include "isa.h"
#include "rope.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Requests that have rows in a step; others may stand between them.
inline int64_t num_present(const StateSlots& slots, int64_t rows) {
    int64_t count = 0;
    while (count < slots.max_reqs && slots.query_start[count] < rows) ++count;
    return count;
}

inline void zero_behind(const StateSlots& slots, int64_t rows, int64_t size, float* out) {
    const int64_t end = slots.query_start[slots.max_reqs];
    if (end < rows) std::memset(out + end * size, 0, static_cast<size_t>((rows - end) * size) * 4);
}

// One request's part of a step.
struct StateStep {
    int64_t begin, end;
    const float* before;  // the slot of the state before the step; null: zeros
    float* state;
    int64_t slot_stride;
    const int32_t* write;

    StateStep(const StateSlots& slots, int64_t req, float* state, int64_t slot_stride)
        : begin(slots.query_start[req]), end(slots.query_start[req + 1]), state(state),
          slot_stride(slot_stride), write(slots.write) {
        const bool fresh = slots.kv_lens[req] == end - begin;
        before = fresh ? nullptr : state + slots.read[req] * slot_stride;
    }

    // The slot for the state behind a row; null: it is not kept.
    float* after(int64_t row) const {
        return write[row] == 0 ? nullptr : state + write[row] * slot_stride;
    }
};

constexpr int64_t kConvChannels = 256;

// Channels from `first` on; the input `back` tokens before row `row`.
struct ConvInput {
    const CausalConv& op;
    const StateStep& part;
    int64_t first;

    const float* operator()(int64_t row, int64_t back) const {
        const int64_t index = row - back;
        if (index >= part.begin) return op.x + index * op.stride + first;
        if (part.before == nullptr) return nullptr;
        return part.before + (op.width - 1 + index - part.begin) * op.channels + first;
    }
};

inline void conv_row(const CausalConv& op, const ConvInput& input, int64_t row, int64_t count) {
    float totals[kConvChannels] = {};
    if (op.bias != nullptr)
        std::memcpy(totals, op.bias + input.first, static_cast<size_t>(count) * 4);
    const int64_t whole = count - count % Floats::kSize;
    for (int64_t tap = 0; tap < op.width; ++tap) {
        const float* x = input(row, op.width - 1 - tap);
        if (x == nullptr) continue;
        const float* weight = op.weight + tap * op.channels + input.first;
        for (int64_t i = 0; i < whole; i += Floats::kSize)
            Floats::fma(Floats::load(weight + i), Floats::load(x + i), Floats::load(totals + i))
                .store(totals + i);
        for (int64_t i = whole; i < count; ++i) totals[i] += weight[i] * x[i];
    }
    float* y = op.y + row * op.channels + input.first;
    if (op.silu) map_row(totals, y, count, [](Floats v) { return silu(v); });
    else std::memcpy(y, totals, static_cast<size_t>(count) * 4);
}

// The last width - 1 inputs up to a row, oldest first: each comes from a later place than its own,
// so that none overwrites what another is read from.
inline void keep_inputs(const CausalConv& op, const ConvInput& input, int64_t row, float* slot,
                        int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * 4;
    for (int64_t i = 0; i + 1 < op.width; ++i) {
        const float* x = input(row, op.width - 2 - i);
        float* kept = slot + i * op.channels + input.first;
        if (x == nullptr) std::memset(kept, 0, bytes);
        else std::memcpy(kept, x, bytes);
    }
}

void causal_conv(const CausalConv& op, int64_t rows, Pool& pool) {
    const int64_t parts = (op.channels + kConvChannels - 1) / kConvChannels;
    zero_behind(op.slots, rows, op.channels, op.y);
    pool.run(num_present(op.slots, rows) * parts, [&](int64_t item) {
        const StateStep part(op.slots, item / parts, op.state, op.slot_stride);
        if (part.begin == part.end) return;
        const int64_t first = item % parts * kConvChannels, rest = op.channels - first;
        const int64_t count = rest < kConvChannels ? rest : kConvChannels;
        const ConvInput input{op, part, first};
        for (int64_t row = part.begin; row < part.end; ++row) conv_row(op, input, row, count);
        // The last first: the first may go where the others are read from.
        for (int64_t row = part.end; row-- > part.begin;)
            if (float* slot = part.after(row)) keep_inputs(op, input, row, slot, count);
    });
}

constexpr float kUnitEps = 1e-6f;  // as in the reference implementations

// x = x / length of x * factor.
inline void unit_head(float* x, int64_t dim, float factor) {
    const int64_t whole = dim - dim % Floats::kSize;
    factor /= std::sqrt(sum_of_squares(x, dim) + kUnitEps);
    for (int64_t i = 0; i < whole; i += Floats::kSize)
        (Floats::load(x + i) * Floats::all(factor)).store(x + i);
    for (int64_t i = whole; i < dim; ++i) x[i] *= factor;
}

inline float softplus(float x) {
    return x > 20.0f ? x : std::log1p(std::exp(x));
}

// q and k at their lengths; per value head how much of the state stays and of v is written.
inline void prepare_row(const GatedDeltaRule& op, int64_t row, int64_t channels) {
    float* q = op.qkv + row * channels;
    float* k = q + op.key_heads * op.key_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(op.key_dim));
    for (int64_t head = 0; head < op.key_heads; ++head) {
        unit_head(q + head * op.key_dim, op.key_dim, scale);
        unit_head(k + head * op.key_dim, op.key_dim, 1.0f);
    }
    float* gates = op.scratch + row * op.value_heads * 2;
    for (int64_t head = 0; head < op.value_heads; ++head) {
        const float soft = softplus(op.decay[row * op.gate_stride + head] + op.bias[head]);
        gates[2 * head] = std::exp(op.rate[head] * soft);
        gates[2 * head + 1] = 1.0f / (1.0f + std::exp(-op.strength[row * op.gate_stride + head]));
    }
}

// Vectors of a state's columns that are worked on together: enough sums side by side to hide their
// latency, few enough for the registers.
#if PAGODA_ISA_AVX512 || PAGODA_ISA_NEON
constexpr int kColumnVectors = 4;
#else
constexpr int kColumnVectors = 2;
#endif

// Some columns of a head's state: rows of key_dim, `stride` apart.
struct Columns {
    float* data;
    int64_t stride;
};

// sums = S^T k.
template <int kVectors>
inline void recall(const Columns& s, const float* k, int64_t dim, Floats* sums) {
    for (int v = 0; v < kVectors; ++v) sums[v] = Floats::zero();
    for (int64_t i = 0; i < dim; ++i) {
        const Floats key = Floats::all(k[i]);
        for (int v = 0; v < kVectors; ++v)
            sums[v] = Floats::fma(Floats::load(s.data + i * s.stride + v * Floats::kSize), key,
                                  sums[v]);
    }
}

// to = decay * from + k d^T; out = to^T q; unless it is null, recalled = to^T next_k.
template <int kVectors, bool kHasNext>
inline void advance(const Columns& from, const Columns& to, float decay, const float* k,
                    const float* q, const float* next_k, int64_t dim, const Floats* d,
                    Floats* out, Floats* recalled) {
    Floats told[kVectors], said[kVectors], next[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        told[v] = d[v];
        said[v] = Floats::zero();
        next[v] = Floats::zero();
    }
    const Floats left = Floats::all(decay);
    for (int64_t i = 0; i < dim; ++i) {
        const Floats key = Floats::all(k[i]), query = Floats::all(q[i]);
        const Floats next_key = kHasNext ? Floats::all(next_k[i]) : Floats::zero();
        for (int v = 0; v < kVectors; ++v) {
            const int64_t column = v * Floats::kSize;
            const Floats old = Floats::load(from.data + i * from.stride + column);
            const Floats s = Floats::fma(key, told[v], old * left);
            s.store(to.data + i * to.stride + column);
            said[v] = Floats::fma(s, query, said[v]);
            if (kHasNext) next[v] = Floats::fma(s, next_key, next[v]);
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        out[v] = said[v];
        if (kHasNext) recalled[v] = next[v];
    }
}

// One request's tokens on kVectors vectors of a head's columns, from `column` on.
template <int kVectors>
inline void delta_columns(const GatedDeltaRule& op, const StateStep& part, int64_t channels,
                          int64_t head, int64_t column) {
    alignas(64) float tile_data[kMaxKeyDim * kVectors * Floats::kSize];
    const int64_t shared = op.value_heads / op.key_heads, dim = op.key_dim;
    const int64_t key_head = op.tiled ? head % op.key_heads : head / shared;
    const int64_t place = head * dim * op.value_dim + column;
    const Columns tile{tile_data, kVectors * Floats::kSize};
    Columns from = tile;
    if (part.before != nullptr) from = {const_cast<float*>(part.before) + place, op.value_dim};
    else std::memset(tile_data, 0, sizeof(float) * static_cast<size_t>(dim * tile.stride));

    const auto q_of = [&](int64_t row) { return op.qkv + row * channels + key_head * dim; };
    Floats recalled[kVectors], d[kVectors], out[kVectors];
    recall<kVectors>(from, q_of(part.begin) + op.key_heads * dim, dim, recalled);
    for (int64_t row = part.begin; row < part.end; ++row) {
        const bool is_last = row + 1 == part.end;
        const float* q = q_of(row);
        const float* k = q + op.key_heads * dim;
        const float* v = op.qkv + row * channels + 2 * op.key_heads * dim +
                         head * op.value_dim + column;
        const float* gates = op.scratch + (row * op.value_heads + head) * 2;
        const Floats decay = Floats::all(gates[0]), strength = Floats::all(gates[1]);
        for (int i = 0; i < kVectors; ++i)
            d[i] = (Floats::load(v + i * Floats::kSize) - recalled[i] * decay) * strength;
        float* after = part.after(row);
        const Columns to = after == nullptr ? tile : Columns{after + place, op.value_dim};
        if (is_last) {
            advance<kVectors, false>(from, to, gates[0], k, q, nullptr, dim, d, out, nullptr);
        } else {
            advance<kVectors, true>(from, to, gates[0], k, q, k + channels, dim, d, out,
                                    recalled);
        }
        float* y = op.out + (row * op.value_heads + head) * op.value_dim + column;
        for (int i = 0; i < kVectors; ++i) out[i].store(y + i * Floats::kSize);
        from = to;
    }
}

void gated_delta_rule(const GatedDeltaRule& op, int64_t rows, Pool& pool) {
    const int64_t channels = 2 * op.key_heads * op.key_dim + op.value_heads * op.value_dim;
    zero_behind(op.slots, rows, op.value_heads * op.value_dim, op.out);
    run_rows(pool, rows, channels, [&](int64_t row) { prepare_row(op, row, channels); });
    constexpr int64_t kColumns = kColumnVectors * Floats::kSize;
    const int64_t blocks = (op.value_dim + kColumns - 1) / kColumns;
    const int64_t per_request = op.value_heads * blocks;
    pool.run(num_present(op.slots, rows) * per_request, [&](int64_t item) {
        const StateStep part(op.slots, item / per_request, op.state, op.slot_stride);
        if (part.begin == part.end) return;
        const int64_t head = item % per_request / blocks, column = item % blocks * kColumns;
        switch (std::min<int64_t>((op.value_dim - column) / Floats::kSize, kColumnVectors)) {
            case 1: return delta_columns<1>(op, part, channels, head, column);
            case 2: return delta_columns<2>(op, part, channels, head, column);
            case 3: return delta_columns<3>(op, part, channels, head, column);
            default: return delta_columns<4>(op, part, channels, head, column);
        }
    });
}

void gated_rms_norm(const GatedRmsNorm& op, int64_t rows, Pool& pool) {
    const int64_t width = op.heads * op.size;
    run_rows(pool, rows, 3 * width, [&](int64_t row) {
        float* y = op.y + row * width;
        std::memcpy(y, op.x + row * width, static_cast<size_t>(width) * sizeof(float));
        for (int64_t head = 0; head < op.heads; ++head)
            norm_head(y + head * op.size, op.weight, op.size, op.eps);
        if (op.gate == nullptr) return;
        gate_row(y, op.gate + row * op.gate_stride, y, width, [](Floats v) { return silu(v); });
    });
}

}  // namespace
}  // namespace pagoda
