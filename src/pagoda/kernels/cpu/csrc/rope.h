// Rotary positions (arXiv 2104.09864) and the way of new keys and values into the paged cache.
#pragma once

#include "isa.h"
#include "norm.h"
#include "q4_row.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// x = x * factor * weight; null: no weight.
inline void scale_head(float* x, float factor, const float* weight, int64_t dim) {
    const int64_t whole = dim - dim % Floats::kSize;
    const Floats factors = Floats::all(factor);
    for (int64_t i = 0; i < whole; i += Floats::kSize) {
        const Floats scaled = Floats::load(x + i) * factors;
        (weight == nullptr ? scaled : scaled * Floats::load(weight + i)).store(x + i);
    }
    for (int64_t i = whole; i < dim; ++i)
        x[i] = weight == nullptr ? x[i] * factor : x[i] * factor * weight[i];
}

// x = x / rms(x) * weight; null: no weight.
inline void norm_head(float* x, const float* weight, int64_t dim, float eps) {
    scale_head(x, rms_factor(x, dim, eps), weight, dim);
}

inline void rotate_head(float* x, const float* cos, const float* sin, int64_t half) {
    const int64_t whole = half - half % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize) {
        const Floats a = Floats::load(x + i), b = Floats::load(x + half + i);
        const Floats c = Floats::load(cos + i), s = Floats::load(sin + i);
        (a * c - b * s).store(x + i);
        (b * c + a * s).store(x + half + i);
    }
    for (int64_t i = whole; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

template <typename T>
inline void store_value(const float* x, int64_t dim, T* out) {
    const int64_t whole = dim - dim % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize) store(Floats::load(x + i), out + i);
    for (int64_t i = whole; i < dim; ++i) narrow(x[i], out + i);
}

// out[dim] = x[dim] * factor, the elements `stride` apart.
template <typename T>
inline void store_column(const float* x, float factor, int64_t dim, int64_t stride, T* out) {
    const int64_t whole = dim - dim % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize) {
        T part[Floats::kSize];
        store(Floats::load(x + i) * Floats::all(factor), part);
        for (int j = 0; j < Floats::kSize; ++j) out[(i + j) * stride] = part[j];
    }
    for (int64_t i = whole; i < dim; ++i) narrow(x[i] * factor, out + i * stride);
}

template <typename T>
inline void store_key(const float* x, const KvCache& cache, T* block, int64_t offset) {
    store_column(x, 1.0f, cache.dim, cache.block_size, block + offset);
}
inline void store_key(const float* x, const KvCache& cache, Int8* block, int64_t offset) {
    const auto [scale, inverse] = scale_of(x, cache.dim);
    store_column(x, inverse, cache.dim, cache.block_size, block + offset);
    Int8* scales = block + cache.dim * cache.block_size;
    std::memcpy(scales + offset * sizeof(float), &scale, sizeof scale);
}

inline void store_key(const float* x, const KvCache& cache, Q4_0* head, int64_t offset) {
    const int64_t size = cache.block_size;
    Float16* const scales = reinterpret_cast<Float16*>(head + cache.dim / 2 * size) + offset;
    store_q4_row(x, cache.dim, size, size, head + offset, scales);
}

template <typename T>
inline void store_value(const float* x, const KvCache& cache, T* head, int64_t offset) {
    store_value(x, cache.dim, head + offset * row_size<T>(cache.dim));
}
inline void store_value(const float* x, const KvCache& cache, Q4_0* head, int64_t offset) {
    const int64_t size = cache.block_size, half = cache.dim / 2;
    Float16* const scales = reinterpret_cast<Float16*>(head + half * size) + offset;
    store_q4_row(x, cache.dim, 1, size, head + offset * half, scales);
}

// What is done to queries and keys before they are used, whatever the cache's type.
void norm_and_rotate(const RotaryStore& op, int64_t row, float* q, float* k) {
    const int64_t heads = op.heads, kv_heads = op.cache.kv_heads;
    const int64_t dim = op.cache.dim, half = op.rotary_dim / 2;
    if (op.q_norm != nullptr)
        for (int64_t head = 0; head < heads; ++head)
            norm_head(q + head * dim, op.q_norm, dim, op.eps);
    if (op.k_norm != nullptr)
        for (int64_t head = 0; head < kv_heads; ++head) {
            // Where values are keys, their norm has divided these already.
            if (op.values_are_keys && op.norm_values)
                scale_head(k + head * dim, 1.0f, op.k_norm, dim);
            else norm_head(k + head * dim, op.k_norm, dim, op.eps);
        }
    if (op.cos_sin != nullptr) {
        const float* cos = op.cos_sin + op.positions[row] * op.rotary_dim;
        for (int64_t head = 0; head < heads + kv_heads; ++head)
            rotate_head(q + head * dim, cos, cos + half, half);
    }
    if (op.q_scales != nullptr) {
        const float factor = op.q_scales[op.positions[row]];
        for (int64_t i = 0; i < heads * dim; ++i) q[i] *= factor;
    }
}

template <typename T>
void rotary_store_row(const RotaryStore& op, int64_t row) {
    const KvCache& cache = op.cache;
    const int64_t dim = cache.dim;
    const int64_t block = op.slots[row] / cache.block_size;
    const int64_t offset = op.slots[row] % cache.block_size;
    T* const keys = reinterpret_cast<T*>(static_cast<char*>(cache.k) + block * cache.block_bytes);
    T* const values = reinterpret_cast<T*>(static_cast<char*>(cache.v) + block * cache.block_bytes);
    const int64_t head_size = cache.block_size * row_size<T>(dim);
    float* q = op.qkv + row * op.stride;
    float* k = q + op.heads * dim;
    float* v = op.values_are_keys ? k : k + cache.kv_heads * dim;
    for (int64_t head = 0; head < cache.kv_heads && cache.v != cache.k; ++head) {
        if (op.norm_values) norm_head(v + head * dim, nullptr, dim, op.eps);
        store_value(v + head * dim, cache, values + head * head_size, offset);
    }
    norm_and_rotate(op, row, q, k);
    for (int64_t head = 0; head < cache.kv_heads; ++head)
        store_key(k + head * dim, cache, keys + head * head_size, offset);
}

template <typename T>
void rotary_store_as(const RotaryStore& op, int64_t rows, Pool& pool) {
    const int64_t size = (op.heads + 2 * op.cache.kv_heads) * op.cache.dim;
    run_rows(pool, rows, 2 * size, [&](int64_t row) { rotary_store_row<T>(op, row); });
}

void rotary_store(const RotaryStore& op, int64_t rows, Pool& pool) {
    switch (op.cache.type) {
        case CacheType::kFloat32: return rotary_store_as<float>(op, rows, pool);
        case CacheType::kBFloat16: return rotary_store_as<BFloat16>(op, rows, pool);
        case CacheType::kFloat16: return rotary_store_as<Float16>(op, rows, pool);
        case CacheType::kInt8: return rotary_store_as<Int8>(op, rows, pool);
        case CacheType::kQ4_0: return rotary_store_as<Q4_0>(op, rows, pool);
    }
}

void rotary(const Rotary& op, int64_t rows, Pool& pool) {
    const int64_t half = op.rotary_dim / 2;
    run_rows(pool, rows, 2 * op.heads * op.rotary_dim, [&](int64_t row) {
        const float* cos = op.cos_sin + op.positions[row] * op.rotary_dim;
        for (int64_t head = 0; head < op.heads; ++head)
            rotate_head(op.x + row * op.stride + head * op.head_stride, cos, cos + half, half);
    });
}

}  // namespace
}  // namespace pagoda
