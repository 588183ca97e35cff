// Runs every kernel of the tables named on the command line on the same random inputs as the
// generic table, whose results the Python tests compare with references of their own; sizes are
// odd, outputs poisoned. For instruction sets where no Python runs the tests: emulated ones.
// Without names it lists the tables that run here.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention_scratch.h"
#include "coded.h"
#include "formats.h"
#include "half.h"
#include "isa.h"

using namespace pagoda;

namespace {

constexpr size_t kMargin = 32;  // poisoned elements behind each output
const float kPoison = std::nanf("0x123");

std::mt19937 generator(7);
float normal() { return std::normal_distribution<float>()(generator); }
int64_t below(int64_t limit) { return static_cast<int64_t>(generator() % limit); }
uint16_t random_half() {  // of a sane size: 2^-6 to 2^0
    return static_cast<uint16_t>((generator() & 0x83ff) | (9 + generator() % 6) << 10);
}

std::vector<float> normals(int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = normal();
    return out;
}
std::vector<float> poisoned(int64_t count) {
    return std::vector<float>(static_cast<size_t>(count) + kMargin, kPoison);
}

// One table under test, the generic one, and what was found.
struct Test {
    const Kernels& kernels;
    const Kernels& generic;
    Pool pool{3};
    Pool single{1};
    int cases = 0, failures = 0;

    void fail(const std::string& what, size_t at, double found, double expected) {
        ++failures;
        std::printf("%s: %s: element %zu is %g, expected %g\n", kernels.name, what.c_str(), at,
                    found, expected);
    }

    // Equal up to `tolerance` of the largest number; NaN where NaN is expected, so that the margin
    // is compared too.
    void compare(const std::string& what, const std::vector<float>& found,
                 const std::vector<float>& expected, double tolerance) {
        ++cases;
        double largest = 0;
        for (float x : expected)
            if (std::isfinite(x)) largest = std::max(largest, std::fabs(double{x}));
        for (size_t i = 0; i < expected.size(); ++i) {
            const double a = found[i], b = expected[i];
            const bool same = a == b || (std::isnan(a) && std::isnan(b)) ||
                              std::fabs(a - b) <= tolerance * largest;
            if (!same) return fail(what, i, a, b);
        }
    }

    template <typename Int>
    void compare_whole(const std::string& what, const std::vector<Int>& found,
                       const std::vector<Int>& expected) {
        ++cases;
        for (size_t i = 0; i < expected.size(); ++i)
            if (found[i] != expected[i])
                return fail(what, i, double(found[i]), double(expected[i]));
    }
};

void test_rms_norm(Test& test) {
    for (int64_t size : {1, 7, 16, 33, 577})
        for (int64_t rows : {0, 1, 5})
            for (bool residual : {false, true}) {
                const auto x = normals(rows * size), weight = normals(size);
                auto sums = normals(rows * size), sums2 = sums;
                auto y = poisoned(rows * size), y2 = y;
                test.kernels.rms_norm({x.data(), residual ? sums.data() : nullptr, weight.data(),
                                       y.data(), size, size, 1e-5f}, rows, test.pool);
                test.generic.rms_norm({x.data(), residual ? sums2.data() : nullptr, weight.data(),
                                       y2.data(), size, size, 1e-5f}, rows, test.single);
                test.compare("rms_norm", y, y2, 1e-6);
                test.compare("rms_norm's residual", sums, sums2, 0);
                if (!residual) continue;
                const auto added = normals(size);
                test.kernels.rms_norm({x.data(), sums.data(), weight.data(), y.data(), size, size,
                                       1e-5f, added.data(), -0.7f}, rows, test.pool);
                test.generic.rms_norm({x.data(), sums2.data(), weight.data(), y2.data(), size,
                                       size, 1e-5f, added.data(), -0.7f}, rows, test.single);
                test.compare("rms_norm of a sum with a norm", y, y2, 2e-6);
                test.compare("the sum with a norm", sums, sums2, 2e-6);
            }
}

// Any bits, but scales of a sane size.
struct Panels {
    std::vector<uint8_t> bytes;
    MatrixView view;

    Panels(Storage storage, int64_t rows, int64_t columns) {
        const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
        view.rows = rows;
        view.units = (columns + unit_columns(storage) - 1) / unit_columns(storage);
        view.panel_bytes = view.units * unit_bytes(storage);
        view.storage = static_cast<int>(storage);
        bytes.resize(static_cast<size_t>(panels * view.panel_bytes));
        for (uint8_t& x : bytes) x = static_cast<uint8_t>(generator());
        for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(unit_bytes(storage)))
            fill_numbers(storage, bytes.data() + at);
        view.panels = bytes.data();
    }

    static void fill_numbers(Storage storage, uint8_t* unit) {
        if (storage == Storage::kF32 || storage == Storage::kBF16) {
            for (int i = 0; i < kPanelRows * kBlockColumns; ++i) {
                const float x = normal();
                if (storage == Storage::kF32) std::memcpy(unit + 4 * i, &x, 4);
                else std::memcpy(unit + 2 * i, reinterpret_cast<const char*>(&x) + 2, 2);
            }
            return;
        }
        if (!is_float(storage) && format_of(storage).scaling == Scaling::kE8M0) {
            for (int i = 0; i < kPanelRows; ++i) unit[i] = static_cast<uint8_t>(118 + below(12));
            unit[0] = static_cast<uint8_t>(below(2));  // the subnormal scales
            return;
        }
        if (is_coded(storage)) {
            const bool spread = storage == Storage::kIQ1_M;  // over the highest bits of four bytes
            const int first = spread ? 53 : storage == Storage::kTQ1_0 ? kDigitBytes : 0;
            for (int i = 0; i < kPanelRows; ++i) {
                const uint16_t half = random_half();
                unit[first * kPanelRows + i] = static_cast<uint8_t>(half);
                unit[(spread ? 55 : first + 1) * kPanelRows + i] = static_cast<uint8_t>(half >> 8);
            }
            return;
        }
        const int halves = is_float(storage) ? kPanelRows * kBlockColumns
                                             : format_of(storage).header_bytes() / 2;
        for (int i = 0; i < halves; ++i) {
            const uint16_t half = random_half();
            std::memcpy(unit + 2 * i, &half, 2);
        }
    }
};

std::vector<float> multiply(const Kernels& kernels, Pool& pool, MatMul op, int64_t tokens) {
    auto out = poisoned(tokens * op.ldo);
    op.out = out.data();
    std::vector<uint8_t> scratch(
        static_cast<size_t>(kernels.matmul_scratch_bytes(op, tokens)) + 64, 0xff);
    op.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
    kernels.matmul(op, tokens, pool);
    return out;
}

// Any magnitudes that a grid may have.
void fill_grids() {
    for (int g = 0; g < kNumGrids; ++g)
        for (uint8_t& x : grids[g].codewords)
            x = static_cast<uint8_t>(g == kGridIQ1 ? kLevelOffset + 8 * (below(3) - 1) : below(63));
}

void test_matmul(Test& test) {
    for (int s = 0; s < kNumStorages; ++s) {
        const Storage storage = static_cast<Storage>(s);
        // Activations are rounded to bf16 there.
        const std::string name = test.kernels.name;
        const bool rounds = storage == Storage::kBF16 && (name == "amx" || name == "avx512");
        for (int64_t tokens : {0, 1, 2, 7, 17, 33})
            for (int64_t rows : {1, 37}) {
                const int64_t columns = is_float(storage) ? 100 : 2 * unit_columns(storage);
                const Panels first(storage, rows, columns), second(storage, 19, columns);
                const MatrixView views[] = {first.view, second.view};
                const int64_t all = rows + 19, ldx = columns + 3;
                auto x = normals(tokens * ldx);
                const auto bias = normals(all);
                if (tokens == 7) x[3 * ldx + 20] = std::nanf("");
                const MatMul op{x.data(), ldx, columns, views, 2,
                                tokens % 2 ? bias.data() : nullptr, nullptr, all + 5, nullptr};
                test.compare(std::string("matmul ") + kStorageNames[s],
                             multiply(test.kernels, test.pool, op, tokens),
                             multiply(test.generic, test.single, op, tokens),
                             rounds ? 1e-2 : 2e-6);
            }
    }
}

std::vector<float> mix(const Kernels& kernels, Pool& pool, Experts op, int64_t tokens) {
    auto out = poisoned(tokens * op.down.rows);
    op.out = out.data();
    std::vector<uint8_t> scratch(
        static_cast<size_t>(kernels.experts_scratch_bytes(op, tokens)) + 64, 0xff);
    op.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
    kernels.experts(op, tokens, pool);
    return out;
}

// Experts chosen by random logits, one of them another rank's.
void test_experts(Test& test) {
    const int64_t count = 5, top_k = 3, size = 32;
    for (Storage storage : {Storage::kF32, Storage::kQ8_0, Storage::kMXFP4})
        for (int64_t hidden : {32, 64})
            for (int64_t tokens : {0, 1, 40}) {
                const Panels gate(storage, count * size, hidden), up(storage, count * size, hidden);
                const Panels down(storage, count * hidden, size);
                const MatrixView views[] = {gate.view, up.view, down.view};
                const auto x = normals(tokens * hidden), logits = normals(tokens * (count + 1));
                const auto up_bias = normals(count * 2 * size), down_bias = normals(count * hidden);
                std::vector<int64_t> ids(static_cast<size_t>(tokens * top_k), -7), ids2 = ids;
                auto weights = poisoned(tokens * top_k), weights2 = weights;
                const auto scoring = Scoring(tokens % 3);
                const auto scales = normals(count + 1);
                const float* scaled = hidden == 32 ? scales.data() : nullptr;
                test.kernels.route({logits.data(), count + 1, count + 1, top_k, scoring, hidden == 32,
                                    ids.data(), weights.data(), scaled}, tokens, test.pool);
                test.generic.route({logits.data(), count + 1, count + 1, top_k, scoring, hidden == 32,
                                    ids2.data(), weights2.data(), scaled}, tokens, test.single);
                test.compare("route", weights, weights2, 1e-6);
                test.compare_whole("route's ids", ids, ids2);
                const Experts op{x.data(), ids2.data(), weights2.data(), top_k, 1, count,
                                 {views, 2, size, hidden, up_bias.data()},
                                 {views + 2, 1, hidden, size, down_bias.data()},
                                 1.702f, hidden == 32 ? 0.0f : 2.0f, tokens == 40, nullptr, nullptr,
                                 tokens == 1 ? Activation::kSilu : Activation::kGeluTanh};
                // What is rounded to 8 bits between the products may fall to either side.
                test.compare("experts", mix(test.kernels, test.pool, op, tokens),
                             mix(test.generic, test.single, op, tokens),
                             is_float(storage) ? 1e-5 : 2e-2);
            }
}

float widen_bits(FloatType type, uint16_t bits) {
    return type == FloatType::kFloat16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Memory of `count` elements of a type, and what its numbers are.
struct Typed {
    FloatType type;
    std::vector<uint8_t> bytes;

    Typed(FloatType type, int64_t count) : type(type) {
        bytes.resize(static_cast<size_t>(count) * size() + kMargin, 0xff);
    }
    size_t size() const { return type == FloatType::kFloat32 ? 4 : 2; }
    void randomize() {
        for (size_t i = 0; i + kMargin < bytes.size(); i += size()) {
            const float x = normal();
            const uint16_t half = random_half();
            if (type == FloatType::kFloat32) std::memcpy(&bytes[i], &x, 4);
            else if (type == FloatType::kBFloat16)
                std::memcpy(&bytes[i], reinterpret_cast<const char*>(&x) + 2, 2);
            else std::memcpy(&bytes[i], &half, 2);
        }
    }
    std::vector<float> numbers() const {
        std::vector<float> out(bytes.size() / size());
        for (size_t i = 0; i < out.size(); ++i) {
            uint16_t bits;
            std::memcpy(&bits, &bytes[i * size()], 2);
            if (type == FloatType::kFloat32) std::memcpy(&out[i], &bytes[i * 4], 4);
            else out[i] = widen_bits(type, bits);
        }
        return out;
    }
};

constexpr FloatType kTypes[] = {FloatType::kFloat32, FloatType::kBFloat16, FloatType::kFloat16};

// Numbers at the edges of the 16-bit formats: ties, subnormal, too large, NaN.
float edge(int64_t i) {
    const float edges[] = {1.00390625f, 1.01171875f, 1.00048828125f, 1.0014648f, 6e-8f, 2.9e-8f,
                           6.1e-5f, 6.0e-5f, 65519.0f, 65520.0f, 3.4e38f, INFINITY, -INFINITY,
                           std::nanf(""), -0.0f, 1e-40f};
    return edges[i % 16];
}

void test_rotary_store(Test& test) {
    const int64_t rows = 5, heads = 3, kv_heads = 2, block_size = 4, blocks = 4;
    for (FloatType type : kTypes)
        for (int64_t dim : {2, 18, 64})
            for (int form = 0; form < 6; ++form) {
                const int64_t rotary_dim = dim > 2 ? dim - 2 : 2;
                const int64_t stride = (heads + 2 * kv_heads) * dim + 1;
                auto qkv = normals(rows * stride);
                if (form == 0)
                    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = edge(int64_t(i));
                auto qkv2 = qkv;
                const auto norm = normals(dim), table = normals(9 * rotary_dim);
                std::vector<int64_t> slots = {15, 0, 6, 7, 9}, positions = {8, 0, 3, 3, 1};
                const auto run = [&](const Kernels& kernels, Pool& pool, std::vector<float>& x) {
                    Typed k(type, blocks * kv_heads * block_size * dim), v = k;
                    const float* weights = form >= 2 ? norm.data() : nullptr;
                    kernels.rotary_store(
                        {x.data(), stride, heads,
                         {k.bytes.data(), v.bytes.data(), CacheType(type),
                          kv_heads * block_size * dim * int64_t(k.size()), kv_heads, block_size,
                          dim},
                         slots.data(), positions.data(), form % 2 ? table.data() : nullptr,
                         rotary_dim, weights, weights, 1e-6f, nullptr, form >= 4, form == 5},
                        rows, pool);
                    auto out = k.numbers();
                    const auto more = v.numbers();
                    out.insert(out.end(), more.begin(), more.end());
                    return out;
                };
                const auto cache = run(test.kernels, test.pool, qkv);
                const auto cache2 = run(test.generic, test.single, qkv2);
                test.compare("rotary_store's cache", cache, cache2, form < 2 ? 0 : 4e-3);
                test.compare("rotary_store", qkv, qkv2, form < 2 ? 0 : 1e-6);
            }
}

void test_attention(Test& test) {
    const int64_t kv_heads = 2, block_size = 16, max_blocks = 40, reqs = 4;
    for (FloatType type : kTypes)
        for (int64_t dim : {2, 20, 64})
            for (int64_t group : {1, 3})
                for (int64_t window : {0, 70, -1}) {
                    const int64_t heads = kv_heads * group, rows = 1 + 9 + 70 + 2;
                    std::vector<int32_t> start = {0, 1, 10, 80, 80}, lens = {600, 9, 333, 0};
                    std::vector<int32_t> blocks(reqs * max_blocks);
                    for (int32_t& block : blocks) block = static_cast<int32_t>(below(50));
                    Typed k(type, 50 * kv_heads * block_size * dim), v = k;
                    k.randomize(), v.randomize();
                    const int64_t block_bytes = kv_heads * block_size * dim * int64_t(k.size());
                    const KvCache cache{k.bytes.data(), v.bytes.data(), CacheType(type),
                                        block_bytes, kv_heads, block_size, dim};
                    const auto q = normals(rows * heads * dim), sinks = normals(heads);
                    const auto run = [&](const Kernels& kernels, Pool& pool) {
                        auto out = poisoned(rows * heads * dim);
                        const int64_t bytes =
                            paged_attention_scratch(heads, cache, reqs, 600, pool.num_threads());
                        std::vector<uint8_t> scratch(static_cast<size_t>(bytes) + 64, 0xff);
                        uint8_t* aligned = scratch.data() + 64 -
                                           reinterpret_cast<uintptr_t>(scratch.data()) % 64;
                        kernels.paged_attention(
                            {q.data(), heads * dim, heads, cache, blocks.data(), max_blocks,
                             start.data(), lens.data(), reqs, 0.3f, window > 0 ? window : 0,
                             group == 1 && window > 0, group == 3 ? sinks.data() : nullptr,
                             window < 0, out.data(), aligned, bytes}, rows, pool);
                        return out;
                    };
                    test.compare("paged_attention", run(test.kernels, test.pool),
                                 run(test.generic, test.single), 2e-6);
                }
}

void test_elementwise(Test& test) {
    for (int64_t size : {1, 16, 37})
        for (int64_t rows : {0, 1, 6}) {
            auto x = normals(rows * 2 * size);
            for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 5 ? 3.0f : 60.0f;
            if (rows == 6) x[2] = std::nanf(""), x[3] = INFINITY, x[4] = -INFINITY;
            auto y = poisoned(rows * size), y2 = y;
            for (Activation kind : {Activation::kSilu, Activation::kGeluTanh}) {
                ActivateAndMul op{x.data(), 2 * size, x.data() + size, 2 * size, y.data(), size,
                                  kind};
                test.kernels.activate_and_mul(op, rows, test.pool);
                op.y = y2.data();
                test.generic.activate_and_mul(op, rows, test.single);
                test.compare("activate_and_mul", y, y2, 1e-6);
            }
            test.kernels.soft_cap({x.data(), y.data(), size, 30.0f}, rows, test.pool);
            test.generic.soft_cap({x.data(), y2.data(), size, 30.0f}, rows, test.single);
            test.compare("soft_cap", y, y2, 1e-5);
            const float* own = x.data();
            const auto shares = normals(rows * 2);
            MixStreams mixed{shares.data(), 1, 2, {own}, {own, own}, {y.data()}, size, 0.5f};
            test.kernels.mix_streams(mixed, rows, test.pool);
            mixed.y[0] = y2.data();
            test.generic.mix_streams(mixed, rows, test.single);
            test.compare("mix_streams", y, y2, 1e-5);
            test.kernels.scale_columns({own, own, y.data(), size}, rows, test.pool);
            test.generic.scale_columns({own, own, y2.data(), size}, rows, test.single);
            test.compare("scale_columns", y, y2, 1e-6);
            test.kernels.match_rms({own, own + rows * size, y.data(), size, 1e-5f}, rows,
                                   test.pool);
            test.generic.match_rms({own, own + rows * size, y2.data(), size, 1e-5f}, rows,
                                   test.single);
            test.compare("match_rms", y, y2, 4e-6);
            for (bool tanh : {false, true}) {
                test.kernels.gelu({x.data(), y.data(), size, tanh}, rows, test.pool);
                test.generic.gelu({x.data(), y2.data(), size, tanh}, rows, test.single);
                test.compare("gelu", y, y2, 1e-6);
            }
            const auto even = normals(rows * size), weight = normals(size), bias = normals(size);
            for (const float* residual : {static_cast<const float*>(nullptr), even.data()}) {
                test.kernels.layer_norm({even.data(), residual, weight.data(), bias.data(),
                                         y.data(), size, 1e-3f}, rows, test.pool);
                test.generic.layer_norm({even.data(), residual, weight.data(), bias.data(),
                                         y2.data(), size, 1e-3f}, rows, test.single);
                test.compare("layer_norm", y, y2, 4e-6);
            }
            std::copy(even.begin(), even.end(), y.begin());
            y2 = y;
            test.kernels.cut_columns({y.data(), size, size, 0.3f}, rows, test.pool);
            test.generic.cut_columns({y2.data(), size, size, 0.3f}, rows, test.single);
            test.compare("cut_columns", y, y2, 4e-6);
        }
    for (FloatType type : kTypes)
        for (int64_t size : {3, 8, 50}) {
            Typed table(type, 7 * size);
            for (size_t i = 0; i + kMargin < table.bytes.size(); ++i)
                table.bytes[i] = static_cast<uint8_t>(generator());
            const std::vector<int64_t> ids = {6, 0, 3};
            auto y = poisoned(3 * size), y2 = y;
            test.kernels.embed_rows({ids.data(), table.bytes.data(), type, y.data(), size}, 3,
                                    test.pool);
            test.generic.embed_rows({ids.data(), table.bytes.data(), type, y2.data(), size}, 3,
                                    test.single);
            test.compare("embed_rows", y, y2, 0);
        }
}

void test_logits(Test& test) {
    for (int64_t size : {1, 40, 1000, 70000})
        for (int form = 0; form < 3; ++form) {
            const int64_t rows = 3, count = std::min<int64_t>(size, 20);
            auto logits = normals(rows * size);
            if (form == 1)  // many equals
                for (float& x : logits) x = std::round(x);
            if (form == 2) logits[static_cast<size_t>(below(size))] = std::nanf("");
            auto values = poisoned(rows), values2 = values;
            std::vector<int64_t> ids(rows, -7), ids2 = ids;
            test.kernels.argmax({logits.data(), size, values.data(), ids.data()}, rows, test.pool);
            test.generic.argmax({logits.data(), size, values2.data(), ids2.data()}, rows,
                                test.single);
            test.compare("argmax", values, values2, 0);
            test.compare_whole("argmax's ids", ids, ids2);
            auto top = poisoned(rows * count), top2 = top;
            std::vector<int64_t> top_ids(static_cast<size_t>(rows * count), -7), top_ids2 = top_ids;
            test.kernels.top_k({logits.data(), size, count, top.data(), top_ids.data()}, rows,
                               test.pool);
            test.generic.top_k({logits.data(), size, count, top2.data(), top_ids2.data()}, rows,
                               test.single);
            test.compare("top_k", top, top2, 0);
            test.compare_whole("top_k's ids", top_ids, top_ids2);
        }
}

}  // namespace

int main(int count, char** names) {
    if (count == 1)
        for (const Kernels* kernels : runnable_kernels()) std::printf("%s\n", kernels->name);
    fill_grids();
    int failures = 0;
    for (int i = 1; i < count; ++i) {
        const Kernels* kernels = choose_kernels(names[i]);
        if (kernels == nullptr || std::strcmp(kernels->name, names[i]) != 0) {
            std::printf("%s does not run here\n", names[i]);
            return 2;
        }
        Test test{*kernels, *choose_kernels("generic")};
        test_rms_norm(test);
        test_matmul(test);
        test_experts(test);
        test_rotary_store(test);
        test_attention(test);
        test_elementwise(test);
        test_logits(test);
        std::printf("%s: %d cases, %d failures\n", names[i], test.cases, test.failures);
        failures += test.failures;
    }
    return failures != 0;
}
