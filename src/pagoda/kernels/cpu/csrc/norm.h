// RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450), with the residual's addition in the
// same pass.
#pragma once

#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// 1 / rms(x).
inline float rms_factor(const float* x, int64_t size, float eps) {
    return 1.0f / std::sqrt(sum_of_squares(x, size) / static_cast<float>(size) + eps);
}

// residual = x + residual, or (x * factor * added + residual) * scale.
inline void add_to_residual(const RmsNorm& op, const float* x, float* residual) {
    constexpr int kStep = Floats::kSize;
    const int64_t whole = op.size - op.size % kStep;
    if (op.added == nullptr) {
        for (int64_t i = 0; i < whole; i += kStep)
            (Floats::load(x + i) + Floats::load(residual + i)).store(residual + i);
        for (int64_t i = whole; i < op.size; ++i) residual[i] += x[i];
        return;
    }
    const float factor = rms_factor(x, op.size, op.eps);
    const Floats factors = Floats::all(factor), scale = Floats::all(op.scale);
    for (int64_t i = 0; i < whole; i += kStep) {
        const Floats normed = Floats::load(x + i) * factors * Floats::load(op.added + i);
        ((normed + Floats::load(residual + i)) * scale).store(residual + i);
    }
    for (int64_t i = whole; i < op.size; ++i)
        residual[i] = (x[i] * factor * op.added[i] + residual[i]) * op.scale;
}

void rms_norm_row(const RmsNorm& op, int64_t row) {
    const float* x = op.x + row * op.stride;
    float* y = op.y + row * op.stride;
    constexpr int kStep = Floats::kSize;
    const int64_t whole = op.size - op.size % kStep;
    if (op.residual != nullptr) {
        float* residual = op.residual + row * op.size;
        add_to_residual(op, x, residual);
        x = residual;
    }
    const float factor = rms_factor(x, op.size, op.eps);
    const Floats factors = Floats::all(factor);
    for (int64_t i = 0; i < whole; i += kStep)
        (Floats::load(x + i) * factors * Floats::load(op.weight + i)).store(y + i);
    for (int64_t i = whole; i < op.size; ++i) y[i] = x[i] * factor * op.weight[i];
}

void rms_norm(const RmsNorm& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { rms_norm_row(op, row); });
}

struct Spread {
    float mean;
    float variance;
};

// Mean first, then the squares around it: their difference from a sum of squares would lose what
// a large mean leaves of the digits.
inline Spread spread_of(const float* x, int64_t count) {
    constexpr int kStep = Floats::kSize;
    const int64_t whole = count - count % kStep;
    const float size = static_cast<float>(count);
    Floats sums = Floats::zero();
    for (int64_t i = 0; i < whole; i += kStep) sums = sums + Floats::load(x + i);
    float total = sum(sums);
    for (int64_t i = whole; i < count; ++i) total += x[i];
    const float mean = total / size;
    Floats squares = Floats::zero();
    for (int64_t i = 0; i < whole; i += kStep) {
        const Floats part = Floats::load(x + i) - Floats::all(mean);
        squares = Floats::fma(part, part, squares);
    }
    float square = sum(squares);
    for (int64_t i = whole; i < count; ++i) square += (x[i] - mean) * (x[i] - mean);
    return {mean, square / size};
}

void layer_norm_row(const LayerNorm& op, int64_t row) {
    const float* x = op.x + row * op.size;
    float* y = op.y + row * op.size;
    constexpr int kStep = Floats::kSize;
    const int64_t whole = op.size - op.size % kStep;
    if (op.residual != nullptr) {
        const float* residual = op.residual + row * op.size;
        for (int64_t i = 0; i < whole; i += kStep)
            (Floats::load(x + i) + Floats::load(residual + i)).store(y + i);
        for (int64_t i = whole; i < op.size; ++i) y[i] = x[i] + residual[i];
        x = y;
    }
    const auto [mean, variance] = spread_of(x, op.size);
    const float factor = 1.0f / std::sqrt(variance + op.eps);
    for (int64_t i = 0; i < whole; i += kStep) {
        const Floats part = (Floats::load(x + i) - Floats::all(mean)) * Floats::all(factor);
        Floats::fma(part, Floats::load(op.weight + i), Floats::load(op.bias + i)).store(y + i);
    }
    for (int64_t i = whole; i < op.size; ++i)
        y[i] = (x[i] - mean) * factor * op.weight[i] + op.bias[i];
}

void layer_norm(const LayerNorm& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { layer_norm_row(op, row); });
}

}  // namespace
}  // namespace pagoda
