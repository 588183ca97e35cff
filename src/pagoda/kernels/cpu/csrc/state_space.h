// Mamba-2's state space. Tokens are taken one by one, as in a gated delta net.
#pragma once

#include "delta_net.h"

namespace pagoda {
namespace {

// One request's tokens on kVectors vectors of a head's columns, from `column` on.
template <int kVectors>
inline void space_columns(const StateSpace& op, const StateStep& part, int64_t head,
                          int64_t column) {
    alignas(64) float tile_data[kMaxKeyDim * kVectors * Floats::kSize];
    const int64_t size = op.state_size, inner = op.heads * op.head_dim;
    const int64_t channels = inner + 2 * op.groups * size;
    const int64_t place = head * size * op.head_dim + column;
    const int64_t b_place = inner + head / (op.heads / op.groups) * size;
    const Columns tile{tile_data, kVectors * Floats::kSize};
    Columns from = tile;
    if (part.before != nullptr) from = {const_cast<float*>(part.before) + place, op.head_dim};
    else std::memset(tile_data, 0, sizeof(float) * static_cast<size_t>(size * tile.stride));

    const Floats skip = Floats::all(op.skip[head]);
    for (int64_t row = part.begin; row < part.end; ++row) {
        const float* x = op.xbc + row * channels + head * op.head_dim + column;
        const float* b = op.xbc + row * channels + b_place;
        const float dt = softplus(op.decay[row * op.decay_stride + head] + op.bias[head]);
        Floats told[kVectors], out[kVectors];
        for (int i = 0; i < kVectors; ++i)
            told[i] = Floats::load(x + i * Floats::kSize) * Floats::all(dt);
        float* after = part.after(row);
        const Columns to = after == nullptr ? tile : Columns{after + place, op.head_dim};
        advance<kVectors, false>(from, to, std::exp(op.rate[head] * dt), b, b + op.groups * size,
                                 nullptr, size, told, out, nullptr);
        float* y = op.out + row * inner + head * op.head_dim + column;
        for (int i = 0; i < kVectors; ++i)
            Floats::fma(skip, Floats::load(x + i * Floats::kSize), out[i])
                .store(y + i * Floats::kSize);
        from = to;
    }
}

void state_space(const StateSpace& op, int64_t rows, Pool& pool) {
    zero_behind(op.slots, rows, op.heads * op.head_dim, op.out);
    constexpr int64_t kColumns = kColumnVectors * Floats::kSize;
    const int64_t blocks = (op.head_dim + kColumns - 1) / kColumns;
    const int64_t per_request = op.heads * blocks;
    pool.run(num_present(op.slots, rows) * per_request, [&](int64_t item) {
        const StateStep part(op.slots, item / per_request, op.state, op.slot_stride);
        if (part.begin == part.end) return;
        const int64_t head = item % per_request / blocks, column = item % blocks * kColumns;
        switch (std::min<int64_t>((op.head_dim - column) / Floats::kSize, kColumnVectors)) {
            case 1: return space_columns<1>(op, part, head, column);
            case 2: return space_columns<2>(op, part, head, column);
            case 3: return space_columns<3>(op, part, head, column);
            default: return space_columns<4>(op, part, head, column);
        }
    });
}

}  // namespace
}  // namespace pagoda
