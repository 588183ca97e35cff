// A mixture of experts: who goes where, and each expert's products with its tokens.
//
// Pairs of a token and an expert are sorted by expert, so that a step reads each expert's weights
// once however many tokens chose it, or once for each round or segment of a prompt that it is in.
// A token's sums run over its experts by rising id, whatever the batch.
#pragma once

#include <algorithm>
#include <cmath>

#include "activation.h"
#include "adapters.h"
#include "matmul.h"

namespace pagoda {
namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

inline float exp_sum(const float* x, int64_t count, float top) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - top);
    return sum;
}

// Puts i among the `count` experts found so far, whose keys fall; the lower ids first of equals.
inline void insert(const Route& op, int64_t i, float key, int64_t* ids, float* keys,
                   int64_t& count) {
    if (count == op.top_k && !(key > keys[count - 1])) return;
    int64_t at = count < op.top_k ? count++ : count - 1;
    for (; at > 0 && key > keys[at - 1]; --at) {
        keys[at] = keys[at - 1];
        ids[at] = ids[at - 1];
    }
    keys[at] = key;
    ids[at] = i;
}

inline void choose_largest(const Route& op, const float* logits, int64_t* ids, float* weights) {
    int64_t count = 0;
    for (int64_t i = 0; i < op.experts; ++i) insert(op, i, logits[i], ids, weights, count);
    if (op.scoring == Scoring::kSigmoid) {
        for (int64_t k = 0; k < count; ++k) weights[k] = sigmoid(weights[k]);
        return;
    }
    const bool all = op.scoring == Scoring::kSoftmax;
    const float top = weights[0];
    const float sum = all ? exp_sum(logits, op.experts, top) : exp_sum(weights, op.top_k, top);
    for (int64_t k = 0; k < count; ++k) weights[k] = std::exp(weights[k] - top) / sum;
}

// The groups open to choice, a bit each; `key` gives an expert's.
template <typename Key>
uint64_t open_groups(const Route& op, const Key& key) {
    const int64_t size = op.experts / op.groups;
    float sums[kMaxGroups];
    for (int64_t group = 0; group < op.groups; ++group) {
        float best = -INFINITY, second = -INFINITY;
        for (int64_t i = group * size; i < (group + 1) * size; ++i) {
            const float found = key(i);
            second = std::max(second, std::min(best, found));
            best = std::max(best, found);
        }
        sums[group] = op.group_best == 1 ? best : best + second;
    }
    uint64_t open = 0;
    for (int64_t taken = 0; taken < op.top_groups; ++taken) {
        int64_t best = -1;
        for (int64_t group = 0; group < op.groups; ++group)
            if (!((open >> group) & 1) && (best < 0 || sums[group] > sums[best])) best = group;
        open |= uint64_t{1} << best;
    }
    return open;
}

inline void choose_corrected(const Route& op, const float* logits, int64_t* ids, float* weights) {
    float top = 0, sum = 1;
    if (op.scoring == Scoring::kSoftmax) {
        top = *std::max_element(logits, logits + op.experts);
        sum = exp_sum(logits, op.experts, top);
    }
    const auto score = [&](int64_t i) {
        if (op.scoring == Scoring::kSigmoid) return sigmoid(logits[i]);
        return std::exp(logits[i] - top) / sum;
    };
    const auto key = [&](int64_t i) { return score(i) + op.correction[i]; };
    const bool grouped = op.groups > op.top_groups;
    const uint64_t open = grouped ? open_groups(op, key) : 0;
    const int64_t size = op.experts / op.groups;
    int64_t count = 0;
    for (int64_t i = 0; i < op.experts; ++i)
        if (!grouped || ((open >> (i / size)) & 1)) insert(op, i, key(i), ids, weights, count);
    for (int64_t k = 0; k < count; ++k) weights[k] = score(ids[k]);
}

void route_row(const Route& op, int64_t row) {
    const float* logits = op.logits + row * op.stride;
    int64_t* ids = op.ids + row * op.top_k;
    float* weights = op.weights + row * op.top_k;
    (op.correction == nullptr ? choose_largest : choose_corrected)(op, logits, ids, weights);
    if (op.renormalize) {
        float sum = 0;
        for (int64_t k = 0; k < op.top_k; ++k) sum += weights[k];
        for (int64_t k = 0; k < op.top_k; ++k) weights[k] /= sum;
    }
    if (op.scales == nullptr) return;
    for (int64_t k = 0; k < op.top_k; ++k) weights[k] *= op.scales[ids[k]];
}

void route(const Route& op, int64_t rows, Pool& pool) {
    // A logit takes about as long as 8 floats that are streamed.
    run_rows(pool, rows, 8 * op.experts, [&](int64_t row) { route_row(op, row); });
}

// Pairs that are worked on at once: their activations take 20 to 50 KiB each.
constexpr int64_t kRoundPairs = 512;

// Pairs of one expert that follow each other, places [first, last) in the round.
struct ExpertRun {
    int64_t expert, first, last;
    int64_t first_tile;
};

constexpr int64_t num_tiles(int64_t tokens) { return (tokens + kMaxTile - 1) / kMaxTile; }

// How a step's pairs are sorted, and the memory that a round works in.
class ExpertPlan {
   public:
    ExpertPlan(const Experts& op, int64_t rows) : op_(op) {
        const int64_t pairs = rows * op.top_k;
        round = std::min(pairs, kRoundPairs);
        const auto take = [&](int64_t bytes) {
            uint8_t* const from = op.scratch + bytes_;
            bytes_ += aligned(bytes);
            return from;
        };
        sorted_ = reinterpret_cast<int32_t*>(take(pairs * 4));
        places_ = reinterpret_cast<int32_t*>(take(pairs * 4));
        held_ = reinterpret_cast<int32_t*>(take(rows * 4));
        starts_ = reinterpret_cast<int64_t*>(take((op.count + 1) * 8));
        runs_ = reinterpret_cast<ExpertRun*>(
            take((op.count + round / Chunks::kSegmentTokens + 1) * int64_t{sizeof(ExpertRun)}));
        hidden = reinterpret_cast<float*>(take(round * hidden_size() * 4));
        inner = reinterpret_cast<float*>(take(round * inner_size() * 4));
        if (op.slots != nullptr) slots = reinterpret_cast<int32_t*>(take(round * 4));
        blocks = op.scratch + bytes_;
        const int64_t up = matmul_scratch_bytes(product(op.up, nullptr, 0), round);
        const int64_t down = matmul_scratch_bytes(product(op.down, nullptr, 0), round);
        bytes_ += std::max({up, down, adapter_bytes(op.up_adapters),
                            adapter_bytes(op.down_adapters)});
    }

    int64_t bytes() const { return bytes_; }
    int64_t hidden_size() const { return std::max(op_.up.columns, op_.down.rows); }
    int64_t inner_size() const { return op_.up.num_parts * op_.up.rows; }

    // A counting sort; pairs of other ranks' experts are left out.
    void sort(int64_t rows) {
        std::fill_n(starts_, op_.count + 1, 0);
        for (int64_t pair = 0; pair < rows * op_.top_k; ++pair)
            if (is_here(pair)) ++starts_[expert(pair) + 1];
        for (int64_t e = 0; e < op_.count; ++e) starts_[e + 1] += starts_[e];
        num_pairs = starts_[op_.count];
        for (int64_t pair = rows * op_.top_k - 1; pair >= 0; --pair)
            if (is_here(pair)) sorted_[--starts_[expert(pair) + 1]] = static_cast<int32_t>(pair);
        // Each start has become its predecessor's: starts_[e + 1] is where e begins.
        std::fill_n(held_, rows, 0);
        for (int64_t place = 0; place < num_pairs; ++place) {
            const int64_t row = token(place);
            places_[row * op_.top_k + held_[row]++] = static_cast<int32_t>(place);
        }
    }

    // Cuts the next round's runs, from place `begin` on; returns where it ends.
    int64_t next_round(int64_t begin) {
        num_runs = num_tiles_ = 0;
        int64_t at = begin;
        while (at < num_pairs && at - begin < round) {
            const int64_t e = expert(sorted_[at]);
            const int64_t end = e + 1 < op_.count ? starts_[e + 2] : num_pairs;
            const int64_t stop =
                std::min({end, at + Chunks::kSegmentTokens, begin + round});
            runs_[num_runs++] = {e, at - begin, stop - begin, num_tiles_};
            num_tiles_ += pagoda::num_tiles(stop - at);
            at = stop;
        }
        return at;
    }

    int64_t token(int64_t place) const { return sorted_[place] / op_.top_k; }
    float weight(int64_t place) const { return op_.weights[sorted_[place]]; }
    // Which of the adapters' places the pair has.
    int32_t adapter(int64_t place) const {
        const int32_t slot = op_.slots[token(place)];
        return slot < 0 ? slot : static_cast<int32_t>(slot * op_.count + expert(sorted_[place]));
    }
    float input_weight(int64_t place) const { return op_.weighs_inputs ? weight(place) : 1.0f; }
    float output_weight(int64_t place) const { return op_.weighs_inputs ? 1.0f : weight(place); }
    const ExpertRun& run(int64_t index) const { return runs_[index]; }

    // The products of one expert, x being the round's rows; bias apart.
    MatMul product(const ExpertMatrices& experts, const float* x, int64_t ldx) const {
        return {x, ldx, experts.columns, experts.parts, experts.num_parts, nullptr, nullptr, 0,
                blocks};
    }

    // Calls body(first row, end) for each tile of the round.
    template <typename Body>
    void run_tiles(Pool& pool, const Body& body) const {
        pool.run(num_tiles_, [&](int64_t tile) {
            int64_t r = 0;
            while (r + 1 < num_runs && runs_[r + 1].first_tile <= tile) ++r;
            const int64_t first = runs_[r].first + (tile - runs_[r].first_tile) * kMaxTile;
            body(first, std::min(first + kMaxTile, runs_[r].last));
        });
    }

    // Places of a token's pairs, by rising expert.
    const int32_t* begin(int64_t row) const { return places_ + row * op_.top_k; }
    const int32_t* end(int64_t row) const { return begin(row) + held_[row]; }

    int64_t round;  // pairs that there is memory for
    int64_t num_pairs = 0;
    int64_t num_runs = 0;
    float* hidden;    // [round, hidden_size]
    float* inner;     // [round, inner_size]
    int32_t* slots = nullptr;  // [round], as `adapter` gives them
    uint8_t* blocks;  // of converted activations, and then what adapters work in

   private:
    int64_t adapter_bytes(const AddAdapters& adapters) const {
        return op_.slots == nullptr ? 0 : add_adapters_scratch_bytes(adapters, round);
    }
    int64_t expert(int64_t pair) const { return op_.ids[pair] - op_.first; }
    bool is_here(int64_t pair) const { return expert(pair) >= 0 && expert(pair) < op_.count; }

    const Experts& op_;
    int32_t *sorted_, *places_, *held_;
    int64_t* starts_;
    ExpertRun* runs_;
    int64_t num_tiles_ = 0;
    int64_t bytes_ = 0;
};

int64_t experts_scratch_bytes(const Experts& op, int64_t rows) {
    return ExpertPlan(op, rows).bytes();
}

inline Floats gated(const Experts& op, Floats gate, Floats up) {
    if (op.limit == 0.0f) {
        if (op.activation == Activation::kSilu) return silu(gate) * up;
        if (op.activation == Activation::kGeluTanh) return gelu_tanh(gate) * up;
        return max(Floats::zero(), gate) * up;  // NaN stays NaN
    }
    const Floats limit = Floats::all(op.limit);  // first: NaN is then what stays
    gate = min(limit, gate);
    up = max(Floats::all(-op.limit), min(limit, up));
    const Floats scaled = gate * Floats::all(-op.alpha);
    return gate / (Floats::all(1.0f) + exp(scaled)) * (up + Floats::all(1.0f));
}

// Of x = [gate, up], in the gate's place; of one part, which is both, in its own.
inline void gate_inner(const Experts& op, float* x) {
    const int64_t size = op.up.rows, whole = size - size % Floats::kSize;
    const float* up = op.up.num_parts == 1 ? x : x + size;
    for (int64_t i = 0; i < whole; i += Floats::kSize)
        gated(op, Floats::load(x + i), Floats::load(up + i)).store(x + i);
    if (whole == size) return;
    float lanes[Floats::kSize];
    gated(op, load_first(x + whole, size - whole), load_first(up + whole, size - whole))
        .store(lanes);
    for (int64_t i = whole; i < size; ++i) x[i] = lanes[i - whole];
}

// Rows [first, end) of a tile, which are `op`'s, as its matrices take them.
inline void convert_rows(const MatMul& op, int64_t first, int64_t end, const Prepared& to) {
    for (int64_t row = first; row < end;) {
        const int size = tile_size(end - row);
        convert_some<Q8Block>(op, row, size, 0, num_blocks(op), to.of[0]);
        convert_some<FloatBlock>(op, row, size, 0, num_blocks(op), to.of[1]);
#if defined(__AVX512BF16__) || PAGODA_BYTE_PAIRS
        convert_some<ShortBlock>(op, row, size, 0, num_blocks(op), to.of[2]);
#endif
        row += size;
    }
}

// One expert's part as a matrix of its own.
inline MatrixView matrix_of(const ExpertMatrices& experts, int64_t expert, int64_t part) {
    MatrixView view = experts.parts[part];
    view.rows = experts.rows;
    view.panels += expert * num_panels(view) * view.panel_bytes;
    return view;
}

// All runs' products into `out` [round, num_parts * rows], of what `prepared` holds.
void multiply_runs(const ExpertPlan& plan, const ExpertMatrices& experts, const Prepared& prepared,
                   float* out, Pool& pool) {
    // Pieces small enough that all threads end together.
    constexpr int64_t kPiecesPerThread = 8;
    const int64_t width = experts.num_parts * experts.rows;
    const int64_t panels = (experts.rows + kPanelRows - 1) / kPanelRows;
    const int64_t all = panels * experts.num_parts;
    int64_t step = all * plan.num_runs / (kPiecesPerThread * pool.num_threads());
    step = std::clamp(step, int64_t{1}, all);
    const int64_t pieces = (all + step - 1) / step;
    MatMul op = plan.product(experts, nullptr, 0);
    op.out = out;
    op.ldo = width;
    // A node's experts are those whose panels it has most of (PackedMatrix::load); runs rise by them.
    const int64_t matrix_panels = num_panels(experts.parts[0]);
    const auto first_chunk = [&](int node) {
        const int64_t first = pool.first_of(node, matrix_panels);
        int64_t run = 0;
        while (run < plan.num_runs && (2 * plan.run(run).expert + 1) * panels <= 2 * first) ++run;
        return run * pieces;
    };
    pool.run(plan.num_runs * pieces, first_chunk, [&](int64_t chunk) {
        const TileScope scope;
        const ExpertRun& run = plan.run(chunk / pieces);
        const int64_t first = chunk % pieces * step;
        MatMul own = op;
        if (experts.bias != nullptr) own.bias = experts.bias + run.expert * width;
        for (int64_t i = first; i < std::min(first + step, all); ++i) {
            const int64_t part = i / panels;
            multiply_panel(own, matrix_of(experts, run.expert, part), part * experts.rows,
                           i % panels, run.first, run.last, prepared);
        }
    });
}

// Adds what the round [begin, end) says of each token.
void add_round(const ExpertPlan& plan, const Experts& op, int64_t begin, int64_t end, int64_t rows,
               Pool& pool) {
    const int64_t size = op.down.rows;
    run_rows(pool, rows, 3 * size, [&](int64_t row) {
        float* out = op.out + row * size;
        for (const int32_t* place = plan.begin(row); place != plan.end(row); ++place) {
            if (*place < begin || *place >= end) continue;
            const Floats weight = Floats::all(plan.output_weight(*place));
            const float* y = plan.hidden + (*place - begin) * size;
            int64_t i = 0;
            for (; i + Floats::kSize <= size; i += Floats::kSize)
                Floats::fma(Floats::load(y + i), weight, Floats::load(out + i)).store(out + i);
            if (i == size) continue;
            float lanes[Floats::kSize];
            Floats::fma(load_first(y + i, size - i), weight, load_first(out + i, size - i))
                .store(lanes);
            for (int64_t k = i; k < size; ++k) out[k] = lanes[k - i];
        }
    });
}

// The input of the pair at `place`, as row `to` of the round.
inline void copy_input(const ExpertPlan& plan, const Experts& op, int64_t place, int64_t to) {
    const int64_t size = op.up.columns;
    const float* x = op.x + plan.token(place) * size;
    const float weight = plan.input_weight(place);
    std::transform(x, x + size, plan.hidden + to * size, [weight](float v) { return v * weight; });
}

// Adds to the round's products of `x` what the tokens' adapters do beside the experts.
inline void adapt_runs(const ExpertPlan& plan, AddAdapters op, const float* x, int64_t ldx,
                       float* out, int64_t count, Pool& pool) {
    if (plan.slots == nullptr) return;
    op.x = x;
    op.ldx = ldx;
    op.out = out;
    op.slots = plan.slots;
    op.scratch = plan.blocks;
    add_adapters(op, count, pool);
}

void experts(const Experts& op, int64_t rows, Pool& pool) {
    ExpertPlan plan(op, rows);
    plan.sort(rows);
    run_rows(pool, rows, op.down.rows, [&](int64_t row) {
        std::fill_n(op.out + row * op.down.rows, op.down.rows, 0.0f);
    });
    const MatMul up = plan.product(op.up, plan.hidden, op.up.columns);
    const MatMul down = plan.product(op.down, plan.inner, plan.inner_size());
    const Prepared up_blocks = lay_out(up, plan.round), down_blocks = lay_out(down, plan.round);
    for (int64_t begin = 0; begin < plan.num_pairs;) {
        const int64_t end = plan.next_round(begin);
        plan.run_tiles(pool, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                copy_input(plan, op, begin + i, i);
                if (plan.slots != nullptr) plan.slots[i] = plan.adapter(begin + i);
            }
            convert_rows(up, first, last, up_blocks);
        });
        multiply_runs(plan, op.up, up_blocks, plan.inner, pool);
        adapt_runs(plan, op.up_adapters, plan.hidden, op.up.columns, plan.inner, end - begin, pool);
        plan.run_tiles(pool, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i)
                gate_inner(op, plan.inner + i * plan.inner_size());
            convert_rows(down, first, last, down_blocks);
        });
        multiply_runs(plan, op.down, down_blocks, plan.hidden, pool);
        adapt_runs(plan, op.down_adapters, plan.inner, plan.inner_size(), plan.hidden, end - begin,
                   pool);
        add_round(plan, op, begin, end, rows, pool);
        begin = end;
    }
}

}  // namespace
}  // namespace pagoda
