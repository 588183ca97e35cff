// RMSNorm (arXiv 1910.07467), with the residual's addition in the same pass.
#pragma once

#include "isa.h"
#include "simd.h"

namespace pagoda {
namespace {

void rms_norm_row(const RmsNorm& op, int64_t row) {
    const float* x = op.x + row * op.size;
    float* y = op.y + row * op.size;
    constexpr int kStep = Floats::kSize;
    const int64_t whole = op.size - op.size % kStep;
    if (op.residual != nullptr) {
        float* residual = op.residual + row * op.size;
        for (int64_t i = 0; i < whole; i += kStep)
            (Floats::load(x + i) + Floats::load(residual + i)).store(residual + i);
        for (int64_t i = whole; i < op.size; ++i) residual[i] += x[i];
        x = residual;
    }
    Floats squares = Floats::zero();
    for (int64_t i = 0; i < whole; i += kStep) {
        const Floats part = Floats::load(x + i);
        squares = Floats::fma(part, part, squares);
    }
    float total = sum(squares);
    for (int64_t i = whole; i < op.size; ++i) total += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / static_cast<float>(op.size) + op.eps);
    const Floats factors = Floats::all(factor);
    for (int64_t i = 0; i < whole; i += kStep)
        (Floats::load(x + i) * factors * Floats::load(op.weight + i)).store(y + i);
    for (int64_t i = whole; i < op.size; ++i) y[i] = x[i] * factor * op.weight[i];
}

void rms_norm(const RmsNorm& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { rms_norm_row(op, row); });
}

}  // namespace
}  // namespace pagoda
