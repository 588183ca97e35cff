// Gated activations.
#pragma once

#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

inline Floats silu(Floats x) {
    return x / (Floats::all(1.0f) + exp(Floats::zero() - x));
}

inline void silu_and_mul_row(const SiluAndMul& op, int64_t row) {
    const float* gate = op.x + row * 2 * op.size;
    const float* up = gate + op.size;
    float* y = op.y + row * op.size;
    const int64_t whole = op.size - op.size % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize)
        (silu(Floats::load(gate + i)) * Floats::load(up + i)).store(y + i);
    if (whole == op.size) return;
    const int64_t rest = op.size - whole;
    float lanes[Floats::kSize];
    (silu(load_first(gate + whole, rest)) * load_first(up + whole, rest)).store(lanes);
    for (int64_t i = 0; i < rest; ++i) y[whole + i] = lanes[i];
}

void silu_and_mul(const SiluAndMul& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 3 * op.size, [&](int64_t row) { silu_and_mul_row(op, row); });
}

}  // namespace
}  // namespace pagoda
