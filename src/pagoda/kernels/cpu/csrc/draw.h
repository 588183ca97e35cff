// Choosing tokens at random: the exponential race of `kernels/ref/draw.py`, row by row.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "isa.h"
#include "logits.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// As `ref/draw.py`: one heat among blocks of tokens, one inside the winner.
constexpr int64_t kRaceBlock = 128;

// SplitMix64, as `ref/noise.py`: numbers that depend on (seed, position, index) alone.
class Noise {
   public:
    Noise(uint64_t seed, uint64_t position) : stream_(mixed(mixed(seed, 0), position)) {}

    // Number `index` of the exponential distribution.
    double operator()(int64_t index) const {
        const uint64_t bits = mixed(stream_, static_cast<uint64_t>(index));
        const double uniform = static_cast<double>((bits >> 11) + 1) * 0x1p-53;
        return std::max(-std::log(uniform), 1e-300);
    }

   private:
    static uint64_t mixed(uint64_t seed, uint64_t index) {
        uint64_t x = seed + (index + 1) * 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }

    uint64_t stream_;
};

// The fastest of some runners; the first of equals. -1 while nobody has weight.
struct Race {
    double best = 0;
    int64_t winner = -1;

    void run(int64_t id, double weight, double noise) {
        const double speed = weight / noise;
        if (speed > best) {
            best = speed;
            winner = id;
        }
    }
};

// A row's logits as (x - top) / temperature.
struct ScaledRow {
    const float* logits;
    int64_t size;
    Floats top, temperature;

    // From `at` on; what lies behind the row is -infinity.
    Floats load(int64_t at) const {
        if (at + Floats::kSize <= size) return (Floats::load(logits + at) - top) / temperature;
        float lanes[Floats::kSize];
        for (int64_t i = 0; i < Floats::kSize; ++i)
            lanes[i] = at + i < size ? logits[at + i] : kNone;
        return (Floats::load(lanes) - top) / temperature;
    }
};

inline int64_t draw_any(const ScaledRow& row, const Noise& noise) {
    const int64_t blocks = (row.size + kRaceBlock - 1) / kRaceBlock;
    Race heat;
    for (int64_t block = 0; block < blocks; ++block) {
        Floats total = Floats::zero();
        for (int64_t i = 0; i < kRaceBlock; i += Floats::kSize)
            total = total + exp(row.load(block * kRaceBlock + i));
        heat.run(block, sum(total), noise(block));
    }
    if (heat.winner < 0) return -1;
    Race final;
    for (int64_t i = 0; i < kRaceBlock; i += Floats::kSize) {
        float weights[Floats::kSize];
        exp(row.load(heat.winner * kRaceBlock + i)).store(weights);
        for (int64_t lane = 0; lane < Floats::kSize; ++lane)
            final.run(i + lane, weights[lane], noise(blocks + i + lane));
    }
    return heat.winner * kRaceBlock + final.winner;
}

struct Candidate {
    float scaled;
    float weight;
    int32_t id;
};

inline bool more_likely(const Candidate& a, const Candidate& b) {
    return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
}

// Tokens from `floor` on, in the order of their ids.
inline void collect(const ScaledRow& row, float floor, std::vector<Candidate>& found) {
    found.clear();
    const Floats below = Floats::all(std::nextafter(floor, kNone));
    for (int64_t at = 0; at < row.size; at += Floats::kSize) {
        const Floats scaled = row.load(at);
        if (!any_greater(scaled, below)) continue;
        float values[Floats::kSize], weights[Floats::kSize];
        scaled.store(values);
        exp(scaled).store(weights);
        for (int64_t lane = 0; lane < Floats::kSize; ++lane)
            if (values[lane] >= floor && weights[lane] > 0)
                found.push_back({values[lane], weights[lane], static_cast<int32_t>(at + lane)});
    }
}

inline double mass(const std::vector<Candidate>& tokens) {
    double total = 0;
    for (const Candidate& token : tokens) total += token.weight;
    return total;
}

// Sum of exp over the tokens from `floor` on.
inline double mass_from(const ScaledRow& row, float floor) {
    double total = 0;
    for (int64_t at = 0; at < row.size; at += kRaceBlock) {
        Floats part = Floats::zero();
        for (int64_t i = 0; i < kRaceBlock; i += Floats::kSize) {
            const Floats scaled = row.load(at + i);
            part = part + zero_below(exp(scaled), scaled, Floats::all(floor));
        }
        total += sum(part);
    }
    return total;
}

// Drops all but the k largest and their equals.
inline void keep_top_k(std::vector<Candidate>& tokens, int64_t k) {
    if (static_cast<int64_t>(tokens.size()) <= k) return;
    std::nth_element(tokens.begin(), tokens.begin() + (k - 1), tokens.end(), more_likely);
    const float least = tokens[static_cast<size_t>(k - 1)].scaled;
    const auto dropped = std::remove_if(tokens.begin() + k, tokens.end(),
                                        [&](const Candidate& x) { return x.scaled < least; });
    tokens.erase(dropped, tokens.end());
}

// Drops all but the most likely tokens that reach `goal` together. Few are kept as a rule: they
// are sorted from the top, four times as many each time.
inline void keep_top_p(std::vector<Candidate>& tokens, double goal) {
    double before = 0;
    size_t done = 0;
    for (size_t next = 64; done < tokens.size(); next *= 4) {
        const size_t end = std::min(next, tokens.size());
        const auto from = tokens.begin() + static_cast<int64_t>(done);
        const auto to = tokens.begin() + static_cast<int64_t>(end);
        if (end < tokens.size()) std::nth_element(from, to, tokens.end(), more_likely);
        std::sort(from, to, more_likely);
        for (; done < end; ++done) {
            if (before >= goal) return tokens.resize(done);
            before += tokens[done].weight;
        }
    }
}

// The tokens that min-p, top-k and top-p keep, one after the other. Few rows need more than their
// most likely tokens; those that do are looked at again.
inline void keep(const ScaledRow& row, int64_t top_k, double top_p, float min_p,
                 std::vector<Candidate>& tokens) {
    const float least = min_p > 0 ? std::log(min_p) : kNone;
    const bool by_mass = top_p < 1;
    double total = by_mass && top_k == 0 ? mass_from(row, least) : 0;
    for (float reach : {-5.0f, -10.0f, kNone}) {
        const float floor = std::max(reach, least);
        const bool all = floor == least;
        collect(row, floor, tokens);
        if (top_k > 0) {
            if (!all && static_cast<int64_t>(tokens.size()) < top_k) continue;
            keep_top_k(tokens, top_k);
            total = mass(tokens);
        }
        if (by_mass) {
            if (!all && mass(tokens) < top_p * total) continue;
            keep_top_p(tokens, top_p * total);
        }
        if (all || top_k > 0 || by_mass) return;
    }
}

// A type of this file alone, so that vectors of it are, too: the linker keeps one of all files'
// std::vector<double>, which may be one for other CPUs.
struct Sum {
    double weight = 0;
};

inline int64_t draw_kept(const ScaledRow& row, int64_t top_k, double top_p, float min_p,
                         const Noise& noise) {
    // A thread's own, since rows are worked on side by side; they grow to one row.
    static thread_local std::vector<Candidate> tokens;
    static thread_local std::vector<Sum> sums;
    keep(row, top_k, top_p, min_p, tokens);
    const int64_t blocks = (row.size + kRaceBlock - 1) / kRaceBlock;
    sums.assign(static_cast<size_t>(blocks), Sum{});
    for (const Candidate& token : tokens)
        sums[static_cast<size_t>(token.id / kRaceBlock)].weight += token.weight;
    Race heat;
    for (int64_t block = 0; block < blocks; ++block)
        if (const double weight = sums[static_cast<size_t>(block)].weight; weight > 0)
            heat.run(block, weight, noise(block));
    Race final;
    for (const Candidate& token : tokens)
        if (token.id / kRaceBlock == heat.winner)
            final.run(token.id, token.weight, noise(blocks + token.id % kRaceBlock));
    return final.winner;
}

inline void draw_row(const Draw& op, int64_t row) {
    if (!(op.temperature[row] > 0)) return;
    const ScaledRow scaled{op.logits + row * op.size, op.size, Floats::all(op.top[row]),
                           Floats::all(op.temperature[row])};
    const Noise noise(op.seed[row], static_cast<uint64_t>(op.position[row]));
    const bool limited = op.top_k[row] > 0 || op.top_p[row] < 1 || op.min_p[row] > 0;
    const int64_t token = limited ? draw_kept(scaled, op.top_k[row], op.top_p[row],
                                              op.min_p[row], noise)
                                  : draw_any(scaled, noise);
    if (token >= 0) op.tokens[row] = token;
}

void draw(const Draw& op, int64_t rows, Pool& pool) {
    pool.run(rows, [&](int64_t row) { draw_row(op, row); });
}

}  // namespace
}  // namespace pagoda
