// Both ends of a model: rows of the token table, and the largest of the logits.
#pragma once

#include <algorithm>

#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

template <typename T>
void embed_row(const EmbedRows& op, int64_t row) {
    const T* from = static_cast<const T*>(op.table) + op.ids[row] * op.size;
    float* y = op.y + row * op.size;
    const int64_t whole = op.size - op.size % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize) load(from + i).store(y + i);
    for (int64_t i = whole; i < op.size; ++i) y[i] = widen(from[i]);
}

void embed_rows(const EmbedRows& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 2 * op.size, [&](int64_t row) {
        switch (op.type) {
            case FloatType::kFloat32: return embed_row<float>(op, row);
            case FloatType::kBFloat16: return embed_row<BFloat16>(op, row);
            case FloatType::kFloat16: return embed_row<Float16>(op, row);
        }
    });
}

struct Best {
    float value;  // NaN if there was one
    int64_t id;
};

constexpr float kNone = -__builtin_inff();

// The largest of x[begin] to x[end - 1]; *nan is set if one is NaN.
inline float largest(const float* x, int64_t begin, int64_t end, bool* nan) {
    constexpr int kStep = Floats::kSize;
    Floats top[4] = {Floats::all(kNone), Floats::all(kNone), Floats::all(kNone),
                     Floats::all(kNone)};
    int64_t i = begin;
    for (; i + 4 * kStep <= end; i += 4 * kStep) {
        Floats y[4];
        for (int p = 0; p < 4; ++p) y[p] = Floats::load(x + i + p * kStep);
        *nan |= any_nan(y[0], y[1]);
        *nan |= any_nan(y[2], y[3]);
        for (int p = 0; p < 4; ++p) top[p] = max(top[p], y[p]);
    }
    float best = max(max(max(top[0], top[1]), max(top[2], top[3])));
    for (; i < end; ++i) {
        *nan |= x[i] != x[i];
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

// The largest of a range, the first of equals; the first NaN if there is one. Stretches that fit
// in the first cache are scanned once for their maximum; the best one then for its place.
inline Best best_of(const float* x, int64_t begin, int64_t end) {
    constexpr int64_t kStretch = 2048;
    Best best = {kNone, begin};
    bool nan = false;
    for (int64_t at = begin; at < end; at += kStretch) {
        const int64_t stop = at + kStretch < end ? at + kStretch : end;
        const float value = largest(x, at, stop, &nan);
        if (value > best.value) best = {value, at};
    }
    if (nan)
        for (int64_t i = begin; i < end; ++i)
            if (x[i] != x[i]) return {x[i], i};
    while (x[best.id] != best.value) ++best.id;
    return best;
}

// Whether b, of higher ids than a, is to be taken instead.
inline bool replaces(Best b, Best a) {
    return a.value == a.value && (b.value != b.value || b.value > a.value);
}

void argmax(const ArgMax& op, int64_t rows, Pool& pool) {
    constexpr int64_t kMaxParts = 64, kMinPart = 1 << 15;
    int64_t parts = rows > 0 ? kMaxParts / rows : 1;
    if (parts > op.size / kMinPart) parts = op.size / kMinPart;
    if (parts > pool.num_threads()) parts = pool.num_threads();
    if (parts <= 1) {
        pool.run(rows, [&](int64_t row) {
            const Best best = best_of(op.logits + row * op.size, 0, op.size);
            op.values[row] = best.value;
            op.ids[row] = best.id;
        });
        return;
    }
    Best found[kMaxParts];
    pool.run(rows * parts, [&](int64_t chunk) {
        const int64_t row = chunk / parts, part = chunk % parts;
        found[chunk] = best_of(op.logits + row * op.size, op.size * part / parts,
                               op.size * (part + 1) / parts);
    });
    for (int64_t row = 0; row < rows; ++row) {
        Best best = found[row * parts];
        for (int64_t part = 1; part < parts; ++part)
            if (replaces(found[row * parts + part], best)) best = found[row * parts + part];
        op.values[row] = best.value;
        op.ids[row] = best.id;
    }
}

// Keeps values[count] and ids[count] falling; x is behind all equals that came before it.
inline void insert_falling(float x, int64_t id, float* values, int64_t* ids, int64_t count) {
    int64_t at = count - 1;
    for (; at > 0 && (ids[at - 1] < 0 || values[at - 1] < x); --at) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = x;
    ids[at] = id;
}

inline void top_k_row(const TopK& op, int64_t row) {
    const float* x = op.logits + row * op.size;
    float* values = op.values + row * op.count;
    int64_t* ids = op.ids + row * op.count;
    for (int64_t i = 0; i < op.count; ++i) {
        values[i] = -__builtin_inff();
        ids[i] = -1;
    }
    int64_t filled = 0, i = 0;
    const auto offer = [&](int64_t id) {
        if (!(x[id] > values[op.count - 1]) && !(filled < op.count && x[id] == x[id])) return;
        insert_falling(x[id], id, values, ids, op.count);
        ++filled;
    };
    while (i < op.size && filled < op.count) offer(i++);
    for (; i + Floats::kSize <= op.size; i += Floats::kSize) {
        if (!any_greater(Floats::load(x + i), Floats::all(values[op.count - 1]))) continue;
        for (int64_t lane = 0; lane < Floats::kSize; ++lane) offer(i + lane);
    }
    for (; i < op.size; ++i) offer(i);
}

void top_k(const TopK& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { top_k_row(op, row); });
}

inline void mask_row(const MaskLogits& op, int64_t row) {
    float* x = op.logits + op.index[row] * op.size;
    const uint32_t* mask = op.masks + row * op.words;
    for (int64_t at = 0; at < op.size; at += 32) {
        const uint32_t word = mask[at / 32];
        if (word == ~0u) continue;
        const int64_t count = op.size - at < 32 ? op.size - at : 32;
        if (word == 0) {
            std::fill_n(x + at, count, kNone);
            continue;
        }
        for (int64_t i = 0; i < count; ++i)
            if (!(word >> i & 1)) x[at + i] = kNone;
    }
}

void mask_logits(const MaskLogits& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { mask_row(op, row); });
}

}  // namespace
}  // namespace pagoda
