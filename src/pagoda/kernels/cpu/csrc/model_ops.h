// The operations of a model besides its matrix products: what each reads and writes.
//
// Activations are fp32. Pointers stay fixed while a recorded step is replayed; `rows` (the step's
// tokens) and what the index arrays hold change.
#pragma once

#include <cstdint>

namespace pagoda {

enum class FloatType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

enum class CacheType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kInt8 = 3, kQ4_0 = 4 };

// One layer's paged K [num_blocks, kv_heads, dim, block_size], so that a vector of keys lies in one
// piece, and V [num_blocks, kv_heads, block_size, dim]. In int8 K's fp32 scales [block_size] lie
// behind each [dim, block_size], and V's behind each row; q4_row.h says how q4_0 lies. Blocks lie
// `block_bytes` apart: between them are those of other layers. Where v is k, values are the keys as
// they are stored.
struct KvCache {
    void* k;
    void* v;
    CacheType type;
    int64_t block_bytes;
    int64_t kv_heads;
    int64_t block_size;
    int64_t dim;
};

// Per row of [heads of q, kv_heads of k, kv_heads of v] x dim: normalises each head of q and k
// (where weights are given), rotates both in place (arXiv 2104.09864, pairs half of rotary_dim
// apart), and writes k and v, rounded to nearest even, to their slots. With `values_are_keys` a
// row has no v: it is k as it came, unless the cache has no place for it (KvCache).
struct RotaryStore {
    float* qkv;                // [rows, stride]
    int64_t stride;
    int64_t heads;
    KvCache cache;
    const int64_t* slots;      // [rows], block * block_size + offset
    const int64_t* positions;  // [rows]
    const float* cos_sin;      // [positions, rotary_dim], cosines then sines; null: no rotation
    int64_t rotary_dim;        // even; dimensions from here on pass through
    const float* q_norm;       // [dim] or null
    const float* k_norm;       // [dim] or null
    float eps;
    const float* q_scales;     // [positions], what q is multiplied with at last, or null
    bool norm_values = false;  // v / rms(v), without weights
    bool values_are_keys = false;
};

// Turns heads in place, without a cache.
struct Rotary {
    float* x;                  // [rows, heads, dim], rows and heads any distance apart
    int64_t stride;
    int64_t head_stride;
    int64_t heads;
    const int64_t* positions;  // [rows]
    const float* cos_sin;      // [positions, rotary_dim], as above
    int64_t rotary_dim;
};

// Attention over the cached tokens of each request: causal, or with `both_ways` every query sees
// all of them (an encoder's). Request i owns the rows from query_start[i] to query_start[i + 1],
// its last tokens of kv_lens[i]. Requests from the first
// that starts at `rows` on are not looked at; rows behind the last request become zero.
struct PagedAttention {
    const float* q;              // [rows, q_stride], heads of dim
    int64_t q_stride;
    int64_t heads;
    KvCache cache;
    const int32_t* block_table;  // [max_reqs, table_stride]
    int64_t table_stride;
    const int32_t* query_start;  // [max_reqs + 1]
    const int32_t* kv_lens;      // [max_reqs]
    int64_t max_reqs;
    float scale;
    int64_t window;              // keys that a query sees, itself included; 0: all
    bool chunked;                // the window begins at the last multiple of its size
    const float* sinks;          // [heads], a logit of each beside its keys', or null
    bool both_ways;              // without a window
    float* out;                  // [rows, heads * dim]
    void* scratch;               // see paged_attention_scratch
    int64_t scratch_bytes;
    // [rows] or null: how many of the request's keys a query sees, if not just those up to its
    // own; never falling within a request, and at most its kv_lens.
    const int32_t* sees_until = nullptr;
    float cap = 0;  // c, if a logit x becomes c * tanh(x / c); 0: it stays
    // [rows, num_chosen] or null: what a query sees whose position is `num_chosen` or more, as
    // block * block_size + offset. Those before it see all up to themselves.
    const int32_t* chosen = nullptr;
    int64_t num_chosen = 0;
};

// The `num_chosen` keys of each query's request that score highest: sum over heads of weight *
// max(0, q . key), of those up to the query's own. Earlier ones come before equals.
struct ChooseKeys {
    const float* q;              // [rows, heads, cache.dim]
    int64_t q_stride;
    const float* weights;        // [rows, heads]
    int64_t weights_stride;
    int64_t heads;
    KvCache cache;               // of one KV head; k is read
    const int32_t* block_table;  // [max_reqs, table_stride]
    int64_t table_stride;
    const int32_t* query_start;  // [max_reqs + 1]
    const int32_t* kv_lens;      // [max_reqs]
    int64_t max_reqs;
    int64_t max_kv_len;
    int64_t num_chosen;
    int32_t* chosen;             // as `PagedAttention::chosen`; rows before that many stay
    char* scratch;               // see choose_keys_scratch
};

// Attention of the patches of each run to all of that run; no cache. Runs lie one after the other.
struct PatchAttention {
    const float* q;              // [rows, heads, dim], rows and heads any distance apart
    int64_t q_stride;
    int64_t q_head_stride;
    const float* k;              // [heads, rows, dim]
    const float* v;              // likewise
    int64_t heads;
    int64_t dim;
    const int32_t* query_start;  // [runs + 1], from 0 to rows
    int64_t runs;
    float scale;
    float* out;                  // [rows, heads, dim]
    char* scratch;               // see patch_attention_scratch
};

enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1, kRelu = 2, kIdentity = 3 };

// y = activation(gate) * x.
struct ActivateAndMul {
    const float* gate;  // [rows, size], gate_stride apart
    int64_t gate_stride;
    const float* x;     // [rows, size], x_stride apart
    int64_t x_stride;
    float* y;           // [rows, size]
    int64_t size;
    Activation activation;
};

// y = x * sigmoid(gate).
struct SigmoidMul {
    const float* x;     // [rows, size]
    const float* gate;  // [rows, size], gate_stride apart
    int64_t gate_stride;
    float* y;           // [rows, size]
    int64_t size;
};

// y = x + added, which is multiplied by the sigmoid of its row's gate, if there is one.
struct AddGated {
    const float* x;      // [rows, size]
    const float* added;  // [rows, size]
    const float* gate;   // [rows], gate_stride apart, or null
    int64_t gate_stride;
    float* y;            // [rows, size]
    int64_t size;
};

// y = x / rms(x) * weight * silu(gate) per head; without a gate that factor is 1.
struct GatedRmsNorm {
    const float* x;       // [rows, heads, size]
    const float* gate;    // [rows, heads, size], rows gate_stride apart, or null
    int64_t gate_stride;
    const float* weight;  // [size]
    float* y;             // [rows, heads, size]
    int64_t heads;
    int64_t size;
    float eps;
};

// Which slots of a recurrent state a step's requests read and write. Request i owns the rows from
// query_start[i] to query_start[i + 1], its last tokens of kv_lens[i]; with all of them it starts
// from zeros. Requests from the first that starts at `rows` on are not looked at; rows behind the
// last request become zero. Of a request's slots that are written, only the first may be the one
// that it reads.
struct StateSlots {
    const int32_t* read;         // [max_reqs]
    const int32_t* write;        // [rows], of the state behind each; 0: it is not kept
    const int32_t* query_start;  // [max_reqs + 1]
    const int32_t* kv_lens;      // [max_reqs]
    int64_t max_reqs;
};

// y[t] = bias + sum over i of weight[i] * x[t - width + 1 + i] per channel, or silu of that.
struct CausalConv {
    const float* x;       // [rows, channels], stride apart
    int64_t stride;
    const float* weight;  // [width, channels]
    int64_t width;
    int64_t channels;
    float* state;         // [slots, width - 1, channels], slot_stride apart: x before the next token
    int64_t slot_stride;
    StateSlots slots;
    float* y;             // [rows, channels]
    const float* bias;    // [channels], or null
    bool silu;
};

constexpr int64_t kMaxKeyDim = 256;
constexpr int64_t kValueDimUnit = 16;  // of which value_dim is a multiple

// The gated delta rule (arXiv 2412.06464), per value head and token, with k and q at lengths 1 and
// 1 / sqrt(key_dim): S *= exp(rate * softplus(decay + bias)), S += k (sigmoid(strength) (v - S^T
// k))^T, out = S^T q.
struct GatedDeltaRule {
    float* qkv;             // [rows, q and k of key_heads, v of value_heads]; q and k change
    const float* strength;  // [rows, value_heads], gate_stride apart
    const float* decay;     // [rows, value_heads], gate_stride apart
    int64_t gate_stride;
    const float* rate;      // [value_heads]
    const float* bias;      // [value_heads]
    int64_t key_heads;
    int64_t value_heads;
    int64_t key_dim;        // at most kMaxKeyDim
    int64_t value_dim;
    bool tiled;             // value head i has key head i % key_heads; else runs of them share one
    float* state;           // [slots, value_heads, key_dim, value_dim], slot_stride apart
    int64_t slot_stride;
    StateSlots slots;
    float* out;             // [rows, value_heads, value_dim]
    float* scratch;         // [rows, value_heads, 2]
};

// Mamba-2's state space (arXiv 2405.21060), per head and token, with dt = softplus(decay + bias):
// S = exp(rate * dt) * S + b (dt x)^T, out = S^T c + skip * x.
struct StateSpace {
    const float* xbc;    // [rows, x of heads, b of groups, c of groups]
    const float* decay;  // [rows, heads], decay_stride apart
    int64_t decay_stride;
    const float* rate;   // [heads]
    const float* bias;   // [heads]
    const float* skip;   // [heads]
    int64_t groups;      // equal runs of heads share one
    int64_t heads;
    int64_t state_size;  // at most kMaxKeyDim
    int64_t head_dim;    // a multiple of kValueDimUnit
    float* state;        // [slots, heads, state_size, head_dim], slot_stride apart
    int64_t slot_stride;
    StateSlots slots;
    float* out;          // [rows, heads, head_dim]
};

// y = x / 2 * (1 + erf(x / sqrt 2)) (arXiv 1606.08415), or with `tanh` the formula of that paper
// that approximates it by a hyperbolic tangent.
struct Gelu {
    const float* x;  // [rows, size]
    float* y;        // [rows, size]
    int64_t size;
    bool tanh;
};

// y = x * factor.
struct Scale {
    const float* x;  // [rows, size]
    float* y;        // [rows, size]
    int64_t size;
    float factor;
};

// y = cap * tanh(x / cap).
struct SoftCap {
    const float* x;  // [rows, size]
    float* y;        // [rows, size]
    int64_t size;
    float cap;
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias per row, of x + residual where there is
// one (arXiv 1607.06450).
struct LayerNorm {
    const float* x;         // [rows, size]
    const float* residual;  // [rows, size] or null
    const float* weight;    // [size]
    const float* bias;      // [size]
    float* y;               // [rows, size]
    int64_t size;
    float eps;
};

constexpr int64_t kMaxStreams = 8;

// y[i] = x[i] + sum over j of (weights[i, j] + plus) * adds[j].
struct MixStreams {
    const float* weights;            // [rows, streams, added]
    int64_t streams;                 // up to kMaxStreams
    int64_t added;                   // up to kMaxStreams
    const float* x[kMaxStreams];     // [rows, size] each
    const float* adds[kMaxStreams];  // [rows, size] each
    float* y[kMaxStreams];           // [rows, size] each
    int64_t size;
    float plus;
};

// y = x * weight.
struct ScaleColumns {
    const float* x;       // [rows, size]
    const float* weight;  // [size]
    float* y;             // [rows, size]
    int64_t size;
};

// y = x * rms(like) / sqrt(max(mean square of x, least)) per row.
struct MatchRms {
    const float* x;     // [rows, size]
    const float* like;  // [rows, size]
    float* y;           // [rows, size]
    int64_t size;
    float least;
};

// x = max(0, x - (mean + cut * standard deviation)) per row, in place.
struct CutColumns {
    float* x;  // [rows, size], stride apart
    int64_t stride;
    int64_t size;
    float cut;
};

// Rows of a table, as fp32.
struct EmbedRows {
    const int64_t* ids;  // [rows]
    const void* table;   // [entries, size]
    FloatType type;
    float* y;            // [rows, size]
    int64_t size;
};

// The largest logit of each row, the lowest id of equals; the value is NaN where the row has one.
struct ArgMax {
    const float* logits;  // [rows, size]
    int64_t size;
    float* values;        // [rows]
    int64_t* ids;         // [rows]
};

// The `count` largest logits of each row, falling, the lower ids first of equals. NaN is skipped;
// places without a logit hold -infinity and the id -1.
struct TopK {
    const float* logits;  // [rows, size]
    int64_t size;
    int64_t count;        // 1 to kMaxTopK
    float* values;        // [rows, count]
    int64_t* ids;         // [rows, count]
};

constexpr int64_t kMaxTopK = 64;

enum class Scoring : int32_t { kSoftmax = 0, kTopKSoftmax = 1, kSigmoid = 2 };

// The `top_k` experts of the largest logits of each row, falling, the lower ids first of equals,
// and their weights: shares of a softmax over all experts or over these, or sigmoids.
struct Route {
    const float* logits;  // [rows, experts], stride apart
    int64_t stride;
    int64_t experts;
    int64_t top_k;        // 1 to `experts`
    Scoring scoring;
    bool renormalize;     // weights are divided by their sum
    int64_t* ids;         // [rows, top_k]
    float* weights;       // [rows, top_k]
    const float* scales = nullptr;  // [experts], by which weights are multiplied at last, or null
    // [experts], added to softmax or sigmoid where experts are chosen, and nowhere else, or null.
    const float* correction = nullptr;
    // With a correction: of so many equal groups of experts, those are open to choice whose two
    // best (or whose best) add up to most.
    int64_t groups = 1;      // up to kMaxGroups
    int64_t top_groups = 1;
    int64_t group_best = 2;  // 1 or 2
};

constexpr int64_t kMaxGroups = 64;

// Logits of tokens whose bit is not set become -infinity.
struct MaskLogits {
    float* logits;          // [any, size]
    int64_t size;
    const int64_t* index;   // [rows]: which row of the logits
    const uint32_t* masks;  // [rows, words]: bit i % 32 of word i / 32 is token i's
    int64_t words;
};

// Draws tokens[i] from softmax(logits[i] / temperature[i]) among the tokens that min-p, top-k and
// top-p keep, by noise made of (seed, position). Rows with temperature 0 or without a token that
// has weight are left as they are.
struct Draw {
    const float* logits;       // [rows, size]
    int64_t size;
    const float* top;          // [rows], each row's largest logit
    const float* temperature;  // [rows]
    const int32_t* top_k;      // [rows]; 0 keeps all
    const double* top_p;       // [rows]; 1 keeps all
    const float* min_p;        // [rows]; 0 keeps all
    const uint64_t* seed;      // [rows]
    const int64_t* position;   // [rows]
    int64_t* tokens;           // [rows]
};

}  // namespace pagoda
