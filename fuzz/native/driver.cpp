// The kernels of one instruction set on random shapes and contents, under ASan and UBSan. What is
// said of every kernel is checked too: the threads of a step change no bit, and neither does what
// shares a batch.
#include <algorithm>
#include <cmath>
#include <string>

#include "attention_scratch.h"
#include "formats.h"
#include "grids.h"
#include "input.h"
#include "isa.h"
#include "packed.h"

#define PAGODA_JOIN_(a, b) a##b
#define PAGODA_JOIN(a, b) PAGODA_JOIN_(a, b)

namespace pagoda {
extern const Kernels PAGODA_JOIN(kernels_, PAGODA_ISA);
}

namespace {

using namespace pagoda;
using fuzz::Buffer;
using fuzz::expect;
using fuzz::expect_equal;
using fuzz::Input;

const Kernels& kernels = PAGODA_JOIN(pagoda::kernels_, PAGODA_ISA);

Pool& alone() {
    static Pool pool(1);
    return pool;
}
Pool& together() {
    static Pool pool(3);
    return pool;
}

struct Stored {
    const char* name;
    int64_t columns, bytes;
};
// Of a block, as ggml-common.h has it.
constexpr Stored kStored[] = {
    {"F32", 1, 4},       {"F16", 1, 2},       {"BF16", 1, 2},     {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},    {"Q5_0", 32, 22},    {"Q5_1", 32, 24},   {"Q8_0", 32, 34},
    {"Q2_K", 256, 84},   {"Q3_K", 256, 110},  {"Q4_K", 256, 144}, {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},  {"IQ4_NL", 32, 18},  {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},
    {"TQ2_0", 256, 66},  {"TQ1_0", 256, 54},  {"IQ1_S", 256, 50},  {"IQ1_M", 256, 56},
    {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ2_S", 256, 82}, {"IQ3_XXS", 256, 98},
    {"IQ3_S", 256, 110},
};
static_assert(std::size(kStored) == kNumStorages);

// Codewords, which Python hands over else: some levels of each grid's range.
const bool kGridsFilled = [] {
    for (int g = 0; g < kNumGrids; ++g) {
        int i = 0;
        for (uint8_t& x : grids[g].codewords) {
            const int level = g == kGridIQ1 ? kLevelOffset + 8 * (i % 3 - 1) : 37 * i % 63;
            x = static_cast<uint8_t>(level);
            ++i;
        }
        grids[g].is_filled = true;
    }
    return true;
}();

// Scratch memory as bind.cpp gives it: aligned to 64. What is asked for and no more.
struct Scratch {
    explicit Scratch(int64_t bytes)
        : memory(static_cast<uint8_t*>(
              std::aligned_alloc(64, static_cast<size_t>(std::max<int64_t>(bytes, 1) + 63) / 64 * 64))) {}
    ~Scratch() { std::free(memory); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    uint8_t* memory;
};

int64_t any_columns(Input& in, const Stored& stored) {
    const int64_t most = stored.columns == 1 ? 100 : stored.columns == 32 ? 8 : 3;
    return in.number(1, most) * stored.columns;
}

// Rows of any bytes, as they lie in a file.
void load(Input& in, PackedMatrix& matrix, const Stored& stored, int64_t first, int64_t rows) {
    const int64_t row_bytes = matrix.columns() / stored.columns * stored.bytes;
    const int64_t stride = row_bytes + in.number(0, 5);
    if (rows == 0) return;
    Buffer<uint8_t> source(in, (rows - 1) * stride + row_bytes);
    source.with_bytes(in);
    if (in.flag()) std::fill_n(source.data(), source.size(), static_cast<uint8_t>(in.bits()));
    matrix.load(first, rows, source.data(), stride, together());
}

void try_gather(Input& in) {
    const Stored stored = in.one_of(kStored);
    const int64_t rows = in.number(1, 40);
    PackedMatrix matrix(stored.name, rows, any_columns(in, stored));
    const int64_t first = in.number(0, rows - 1);
    load(in, matrix, stored, first, in.number(0, rows - first));
    const int64_t count = in.number(0, 9);
    Buffer<int64_t> ids(in, count);
    for (int64_t i = 0; i < count; ++i) ids[i] = in.number(0, rows - 1);
    Buffer<float> one(in, count * matrix.columns()), other(in, count * matrix.columns());
    matrix.gather(ids.data(), count, one.data(), alone());
    matrix.gather(ids.data(), count, other.data(), together());
    expect_equal(one.data(), other.data(), one.size(), "gather: threads change bits");
}

void multiply(MatMul op, int64_t rows, float* out, Pool& pool) {
    op.out = out;
    const Scratch scratch(kernels.matmul_scratch_bytes(op, rows));
    op.scratch = scratch.memory;
    kernels.matmul(op, rows, pool);
}

void try_matmul(Input& in) {
    const Stored stored = in.one_of(kStored);
    const int64_t columns = any_columns(in, stored), tokens = in.number(1, 21);
    const int parts = static_cast<int>(in.number(1, 3));
    std::vector<std::unique_ptr<PackedMatrix>> matrices;
    std::vector<MatrixView> views;
    int64_t rows = 0;
    for (int i = 0; i < parts; ++i) {
        const int64_t part = in.number(1, 50);
        matrices.push_back(std::make_unique<PackedMatrix>(stored.name, part, columns));
        load(in, *matrices.back(), stored, 0, part);
        views.push_back(matrices.back()->view());
        rows += part;
    }
    in.choose_floats();
    const int64_t ldx = columns + in.number(0, 3), ldo = rows + in.number(0, 3);
    Buffer<float> x(in, (tokens - 1) * ldx + columns), bias(in, rows);
    x.with_reals(in), bias.with_reals(in);
    const int64_t size = (tokens - 1) * ldo + rows;
    Buffer<float> one(in, size), other(in, size), row(in, rows);
    MatMul op{x.data(), ldx, columns, views.data(), parts, in.flag() ? bias.data() : nullptr,
              nullptr, ldo, nullptr};
    multiply(op, tokens, one.data(), alone());
    multiply(op, tokens, other.data(), together());
    expect_equal(one.data(), other.data(), size, "matmul: threads change bits");
    const int64_t token = in.number(0, tokens - 1);
    op.x = x.data() + token * ldx;
    op.ldo = rows;
    multiply(op, 1, row.data(), alone());
    expect_equal(one.data() + token * ldo, row.data(), rows, "matmul: the batch changes bits");
}

// Of one token's K or V of one head.
int64_t row_bytes(CacheType type, int64_t dim) {
    switch (type) {
        case CacheType::kFloat32: return 4 * dim;
        case CacheType::kBFloat16:
        case CacheType::kFloat16: return 2 * dim;
        case CacheType::kInt8: return dim + 4;
        case CacheType::kQ4_0: return dim / 2 + (dim + 31) / 32 * 2;
    }
    return 0;
}

// A step of attention: its requests, their caches filled by `rotary_store`.
struct Step {
    int64_t kv_heads, heads, dim, block_size, reqs, table, rows = 0;
    CacheType type;
    std::vector<int32_t> lens, counts;

    explicit Step(Input& in) {
        static constexpr int64_t kDims[] = {2, 4, 8, 16, 30, 32, 64, 80, 128, 34};
        static constexpr int64_t kBlocks[] = {1, 3, 8, 16, 17, 32, 64, 100};
        static constexpr CacheType kTypes[] = {CacheType::kFloat32, CacheType::kBFloat16,
                                               CacheType::kFloat16, CacheType::kInt8,
                                               CacheType::kQ4_0};
        kv_heads = in.number(1, 3), heads = kv_heads * in.number(1, 5);
        dim = in.one_of(kDims), block_size = in.one_of(kBlocks), type = in.one_of(kTypes);
        reqs = in.number(1, 4);
        int64_t longest = 1;
        for (int64_t i = 0; i < reqs; ++i) {
            const int64_t most = in.number(0, 3) == 0 ? 700 : 40;
            lens.push_back(static_cast<int32_t>(1 + in.bits() % static_cast<uint64_t>(most)));
            const int64_t count = std::min<int64_t>(lens.back(), in.flag() ? 1 : in.number(0, 60));
            counts.push_back(static_cast<int32_t>(count));
            rows += count;
            longest = std::max<int64_t>(longest, lens.back());
        }
        table = (longest + block_size - 1) / block_size + in.number(0, 2);
    }
};

void store(Input& in, const Step& step, const KvCache& cache, const int32_t* table) {
    for (int64_t req = 0; req < step.reqs; ++req) {
        const int64_t count = step.lens[static_cast<size_t>(req)];
        const int64_t stride = (step.heads + 2 * step.kv_heads) * step.dim + in.number(0, 3);
        Buffer<float> qkv(in, count * stride);
        qkv.with_reals(in);
        Buffer<int64_t> slots(in, count), positions(in, count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t block = table[req * step.table + i / step.block_size];
            slots[i] = block * step.block_size + i % step.block_size;
            positions[i] = i;
        }
        const int64_t rotary = in.number(0, step.dim / 2) * 2;
        Buffer<float> turn(in, count * rotary), norm(in, step.dim);
        turn.with_reals(in), norm.with_reals(in);
        const float* weights = in.flag() ? norm.data() : nullptr;
        kernels.rotary_store({qkv.data(), stride, step.heads, cache, slots.data(),
                              positions.data(), rotary == 0 ? nullptr : turn.data(), rotary,
                              weights, weights, 1e-6f, nullptr, in.flag(), in.flag()},
                             count, together());
    }
}

void attend(PagedAttention op, int64_t rows, int64_t longest, float* out, Pool& pool) {
    op.out = out;
    op.scratch_bytes = paged_attention_scratch(op.heads, op.cache, op.max_reqs, longest,
                                               pool.num_threads());
    const Scratch scratch(op.scratch_bytes);
    op.scratch = scratch.memory;
    kernels.paged_attention(op, rows, pool);
}

void try_attention(Input& in) {
    const Step step(in);
    in.choose_floats();
    // Block 0 belongs to nobody; the others lie in no order.
    const int64_t blocks = 1 + step.reqs * step.table;
    Buffer<int32_t> table(in, step.reqs * step.table);
    const auto turn = static_cast<int64_t>(in.bits() % static_cast<uint64_t>(step.reqs * step.table));
    for (int64_t i = 0; i < table.size(); ++i)
        table[i] = static_cast<int32_t>(1 + (table.size() - 1 - i + turn) % table.size());
    const int64_t head = step.block_size * row_bytes(step.type, step.dim);
    const int64_t own = step.kv_heads * head, apart = own + in.number(0, 2) * 64;
    const int64_t size = (blocks - 1) * apart + own;
    Buffer<uint8_t> k(in, size, false), v(in, size, false);
    const KvCache cache{k.data(), v.data(), step.type, apart, step.kv_heads, step.block_size,
                        step.dim};
    store(in, step, cache, table.data());

    Buffer<int32_t> starts(in, step.reqs + 1), lens(in, step.reqs);
    for (int64_t i = 0; i < step.reqs; ++i) {
        starts[i + 1] = starts[i] + step.counts[static_cast<size_t>(i)];
        lens[i] = step.lens[static_cast<size_t>(i)];
    }
    const int64_t behind = in.number(0, 2), rows = step.rows + behind;
    if (rows == 0) return;
    const int64_t width = step.heads * step.dim, stride = width + in.number(0, 3);
    Buffer<float> q(in, (rows - 1) * stride + width), sinks(in, step.heads);
    q.with_reals(in), sinks.with_reals(in);
    const bool both_ways = in.number(0, 3) == 0;
    const int64_t window = both_ways || in.flag() ? 0 : in.number(1, 80);
    const PagedAttention op{q.data(), stride, step.heads, cache, table.data(), step.table,
                            starts.data(), lens.data(), step.reqs, 0.125f, window,
                            window > 0 && in.flag(), in.flag() ? sinks.data() : nullptr,
                            both_ways, nullptr, nullptr, 0, nullptr};
    Buffer<float> one(in, rows * width), other(in, rows * width);
    const int64_t longest = step.table * step.block_size;
    attend(op, rows, longest, one.data(), alone());
    attend(op, rows, longest, other.data(), together());
    expect_equal(one.data(), other.data(), one.size(), "attention: threads change bits");
    for (int64_t i = step.rows * width; i < one.size(); ++i)
        expect(one[i] == 0.0f, "attention: rows behind the last request are not zero");
}

void mix(Experts op, int64_t rows, float* out, Pool& pool) {
    op.out = out;
    const Scratch none(0);
    op.scratch = none.memory;
    const Scratch scratch(kernels.experts_scratch_bytes(op, rows));
    op.scratch = scratch.memory;
    kernels.experts(op, rows, pool);
}

void try_experts(Input& in) {
    const int64_t experts = in.number(1, 9), top_k = in.number(1, experts), tokens = in.number(1, 20);
    const int64_t first = in.number(0, experts - 1), count = in.number(1, experts - first);
    const Stored up_stored = in.one_of(kStored), down_stored = in.one_of(kStored);
    const int64_t columns = any_columns(in, up_stored), inner = any_columns(in, down_stored);
    const int64_t outer = in.number(1, 40);
    const auto padded = [](int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows * kPanelRows; };
    PackedMatrix gate(up_stored.name, count * padded(inner), columns);
    PackedMatrix up(up_stored.name, count * padded(inner), columns);
    PackedMatrix down(down_stored.name, count * padded(outer), inner);
    for (int64_t e = 0; e < count; ++e) {
        if (in.number(0, 4) == 0) continue;  // one that nobody loaded is zero
        load(in, gate, up_stored, e * padded(inner), inner);
        load(in, up, up_stored, e * padded(inner), inner);
        load(in, down, down_stored, e * padded(outer), outer);
    }
    in.choose_floats();
    Buffer<float> logits(in, tokens * experts), weights(in, tokens * top_k), scales(in, experts);
    logits.with_reals(in), scales.with_reals(in);
    Buffer<int64_t> ids(in, tokens * top_k);
    static constexpr Scoring kScorings[] = {Scoring::kSoftmax, Scoring::kTopKSoftmax,
                                            Scoring::kSigmoid};
    kernels.route({logits.data(), experts, experts, top_k, in.one_of(kScorings), in.flag(),
                   ids.data(), weights.data(), in.flag() ? scales.data() : nullptr},
                  tokens, together());
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < top_k; ++i) {
            const int64_t* row = ids.data() + t * top_k;
            expect(row[i] >= 0 && row[i] < experts, "route: no such expert");
            expect(std::count(row, row + top_k, row[i]) == 1, "route: an expert twice");
        }
    Buffer<float> x(in, tokens * columns), up_bias(in, count * 2 * inner), down_bias(in, count * outer);
    x.with_reals(in), up_bias.with_reals(in), down_bias.with_reals(in);
    const MatrixView parts[] = {gate.view(), up.view(), down.view()};
    const bool biased = in.flag(), clamped = in.flag();
    Experts op{x.data(), ids.data(), weights.data(), top_k, first, count,
               {parts, 2, inner, columns, biased ? up_bias.data() : nullptr},
               {parts + 2, 1, outer, inner, biased ? down_bias.data() : nullptr},
               clamped ? 1.702f : 0.0f, clamped ? 7.0f : 0.0f, in.flag(), nullptr, nullptr,
               in.flag() ? Activation::kSilu : Activation::kGeluTanh};
    Buffer<float> one(in, tokens * outer), other(in, tokens * outer), row(in, outer);
    mix(op, tokens, one.data(), alone());
    mix(op, tokens, other.data(), together());
    expect_equal(one.data(), other.data(), one.size(), "experts: threads change bits");
    const int64_t token = in.number(0, tokens - 1);
    op.x += token * columns, op.ids += token * top_k, op.weights += token * top_k;
    mix(op, 1, row.data(), alone());
    expect_equal(one.data() + token * outer, row.data(), outer, "experts: the batch changes bits");
}

void try_draw(Input& in) {
    const int64_t rows = in.number(1, 5), size = 1 + static_cast<int64_t>(in.bits() % 700);
    in.choose_floats();
    Buffer<float> logits(in, rows * size), top(in, rows), temperature(in, rows), min_p(in, rows);
    logits.with_reals(in);
    const int64_t words = (size + 31) / 32, masked = in.number(0, rows);
    Buffer<int64_t> index(in, masked), ids(in, rows), tokens(in, rows), position(in, rows);
    Buffer<uint32_t> masks(in, masked * words);
    masks.with_bytes(in);
    for (int64_t i = 0; i < masked; ++i) index[i] = i;
    kernels.mask_logits({logits.data(), size, index.data(), masks.data(), words}, masked, together());
    kernels.argmax({logits.data(), size, top.data(), ids.data()}, rows, together());
    Buffer<int32_t> top_k(in, rows);
    Buffer<double> top_p(in, rows);
    Buffer<uint64_t> seed(in, rows);
    for (int64_t i = 0; i < rows; ++i) {
        static constexpr float kTemperatures[] = {0.0f, 1e-5f, 0.7f, 1.0f, 2.0f, 100.0f};
        static constexpr double kShares[] = {1.0, 0.9, 1e-9, 0.5};
        static constexpr float kLeast[] = {0.0f, 0.05f, 1.0f};
        temperature[i] = in.one_of(kTemperatures), min_p[i] = in.one_of(kLeast);
        top_k[i] = static_cast<int32_t>(in.flag() ? 0 : in.number(1, size));
        top_p[i] = in.one_of(kShares), seed[i] = in.bits();
        position[i] = static_cast<int64_t>(in.bits() % 100000), tokens[i] = -7;
        expect(ids[i] >= -1 && ids[i] < size, "argmax: no such token");
    }
    const Draw op{logits.data(), size, top.data(), temperature.data(), top_k.data(), top_p.data(),
                  min_p.data(), seed.data(), position.data(), tokens.data()};
    kernels.draw(op, rows, alone());
    Buffer<int64_t> again(in, rows);
    std::fill_n(again.data(), rows, -7);
    Draw twice = op;
    twice.tokens = again.data();
    kernels.draw(twice, rows, together());
    for (int64_t i = 0; i < rows; ++i) {
        expect(tokens[i] == again[i], "draw: threads change tokens");
        expect(tokens[i] == -7 || (tokens[i] >= 0 && tokens[i] < size), "draw: no such token");
        if (temperature[i] == 0.0f) expect(tokens[i] == -7, "draw: a row without temperature");
        if (tokens[i] >= 0)
            expect(logits[i * size + tokens[i]] > -__builtin_inff(), "draw: a masked token");
    }
    const int64_t count = in.number(1, kMaxTopK);
    Buffer<float> values(in, rows * count);
    Buffer<int64_t> best(in, rows * count);
    kernels.top_k({logits.data(), size, count, values.data(), best.data()}, rows, together());
    for (int64_t i = 0; i < best.size(); ++i)
        expect(best[i] >= -1 && best[i] < size, "top_k: no such token");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input in(data, size);
    switch (in.number(0, 4)) {
        case 0: try_gather(in); break;
        case 1: try_matmul(in); break;
        case 2: try_attention(in); break;
        case 3: try_experts(in); break;
        default: try_draw(in); break;
    }
    return 0;
}
