// What each instruction set offers: one table of functions, filled in by kernels.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "model_ops.h"
#include "packed.h"
#include "pool.h"

namespace pagoda {

// y = x / rms(x) * weight per row; with a residual, x + residual is stored there first and
// normalised; with `added` as well, (x / rms(x) * added + residual) * scale. fp32 throughout.
struct RmsNorm {
    const float* x;         // [rows, size], stride apart
    float* residual;        // [rows, size] or null
    const float* weight;    // [size]
    float* y;               // [rows, size], stride apart; may be x
    int64_t size;
    int64_t stride;
    float eps;
    const float* added = nullptr;  // [size] or null
    float scale = 1.0f;
};

// out[t, :] = the matrices' rows, one matrix after another, times x[t], plus bias. Activations are
// rounded to what the formats' instructions take: 8 bits per 16 columns (quantized formats), bf16
// (BF16 with AVX512_BF16) or not at all.
struct MatMul {
    const float* x;               // [rows, columns], ldx apart
    int64_t ldx;
    int64_t columns;              // of every matrix
    const MatrixView* matrices;
    int num_matrices;
    const float* bias;            // [all matrices' rows] or null
    float* out;                   // [rows, all matrices' rows], ldo apart
    int64_t ldo;
    uint8_t* scratch;             // `matmul_scratch_bytes`, aligned to 64
};

// For each expert `num_parts` matrices [rows, columns] in packed ones that hold all experts'
// parts, each from a whole panel on.
struct ExpertMatrices {
    const MatrixView* parts;
    int num_parts;
    int64_t rows;
    int64_t columns;
    const float* bias;            // [experts, num_parts * rows] or null
};

// out[t] += B(A x[t]) of the adapter in the row's slot, for each of the shards whose outputs lie side
// by side. Rows without an adapter, and slots of rank 0, stay as they are.
struct AddAdapters {
    float* out;                   // [rows, all sizes], ldo apart
    int64_t ldo;
    const float* x;               // [rows, columns], ldx apart
    int64_t ldx;
    int64_t columns;
    const void* a;                // [slots, num_shards, max_rank, columns]
    const void* b;                // [slots, max_rank, all sizes]
    FloatType type;               // of both
    int64_t max_rank;
    const int32_t* ranks;         // [slots], at most max_rank
    const int32_t* slots;         // [rows], negative: none
    const int64_t* sizes;         // [num_shards]
    int64_t num_shards;
    uint8_t* scratch;             // `add_adapters_scratch_bytes`, aligned to 64
};

// out[t] = the sum over t's chosen experts, by rising id, of weight * down(gated(up(x[t]))), where
// `up` has two parts, gate and up, or one that is both. Experts besides those from `first` on add
// nothing: another rank has them. Products are as `MatMul` computes them.
struct Experts {
    const float* x;               // [rows, up.columns]
    const int64_t* ids;           // [rows, top_k], no id twice in a row
    const float* weights;         // [rows, top_k]
    int64_t top_k;
    int64_t first;
    int64_t count;
    ExpertMatrices up;
    ExpertMatrices down;          // one part, its columns are up's rows
    float alpha;                  // (up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`
    float limit;                  // and up within +-limit; 0: activation(gate) * up
    bool weighs_inputs;           // a weight is x's, and not that of what an expert makes of it
    float* out;                   // [rows, down.rows]
    uint8_t* scratch;             // `experts_scratch_bytes`, aligned to 64
    Activation activation = Activation::kSilu;
    const int32_t* slots = nullptr;  // [rows], each token's adapter, negative: none; null: of all
    AddAdapters up_adapters = {};    // each slot has as many places as there are experts here
    AddAdapters down_adapters = {};
};

// out[t, h] = x[t, h, :kept], then head h's matrix times x[t, h, kept:]; what is `behind` row t
// follows the last head. Products are as `MatMul` computes them.
struct HeadProducts {
    const float* x;               // [rows, heads, kept + matrices.columns]
    int64_t ldx;                  // from row to row
    int64_t head_x;               // and from head to head
    int64_t kept;
    int64_t heads;
    ExpertMatrices matrices;      // one part, a head's in an expert's place
    const float* behind;          // [rows, num_behind], ld_behind apart
    int64_t ld_behind;
    int64_t num_behind;
    float* out;                   // [rows, heads * (kept + matrices.rows) + num_behind]
    uint8_t* scratch;             // `head_products_scratch_bytes`, aligned to 64
};

struct Kernels {
    const char* name;
    void (*rms_norm)(const RmsNorm&, int64_t rows, Pool&);
    void (*matmul)(const MatMul&, int64_t rows, Pool&);
    int64_t (*matmul_scratch_bytes)(const MatMul&, int64_t rows);
    void (*experts)(const Experts&, int64_t rows, Pool&);
    int64_t (*experts_scratch_bytes)(const Experts&, int64_t rows);
    void (*head_products)(const HeadProducts&, int64_t rows, Pool&);
    int64_t (*head_products_scratch_bytes)(const HeadProducts&, int64_t rows, int threads);
    void (*add_adapters)(const AddAdapters&, int64_t rows, Pool&);
    int64_t (*add_adapters_scratch_bytes)(const AddAdapters&, int64_t rows);
    void (*route)(const Route&, int64_t rows, Pool&);
    void (*rotary_store)(const RotaryStore&, int64_t rows, Pool&);
    void (*rotary)(const Rotary&, int64_t rows, Pool&);
    void (*paged_attention)(const PagedAttention&, int64_t rows, Pool&);
    void (*patch_attention)(const PatchAttention&, int64_t rows, Pool&);
    int64_t (*patch_attention_scratch)(int64_t runs, int64_t dim, int64_t threads);
    void (*choose_keys)(const ChooseKeys&, int64_t rows, Pool&);
    int64_t (*choose_keys_scratch)(const ChooseKeys&, int64_t rows, int64_t threads);
    void (*activate_and_mul)(const ActivateAndMul&, int64_t rows, Pool&);
    void (*sigmoid_mul)(const SigmoidMul&, int64_t rows, Pool&);
    void (*add_gated)(const AddGated&, int64_t rows, Pool&);
    void (*gated_rms_norm)(const GatedRmsNorm&, int64_t rows, Pool&);
    void (*causal_conv)(const CausalConv&, int64_t rows, Pool&);
    void (*gated_delta_rule)(const GatedDeltaRule&, int64_t rows, Pool&);
    void (*state_space)(const StateSpace&, int64_t rows, Pool&);
    void (*gelu)(const Gelu&, int64_t rows, Pool&);
    void (*scale)(const Scale&, int64_t rows, Pool&);
    void (*soft_cap)(const SoftCap&, int64_t rows, Pool&);
    void (*layer_norm)(const LayerNorm&, int64_t rows, Pool&);
    void (*mix_streams)(const MixStreams&, int64_t rows, Pool&);
    void (*scale_columns)(const ScaleColumns&, int64_t rows, Pool&);
    void (*match_rms)(const MatchRms&, int64_t rows, Pool&);
    void (*cut_columns)(const CutColumns&, int64_t rows, Pool&);
    void (*embed_rows)(const EmbedRows&, int64_t rows, Pool&);
    void (*argmax)(const ArgMax&, int64_t rows, Pool&);
    void (*top_k)(const TopK&, int64_t rows, Pool&);
    void (*draw)(const Draw&, int64_t rows, Pool&);
    void (*mask_logits)(const MaskLogits&, int64_t rows, Pool&);
    // See probes.h.
    void (*probe_read)(const uint8_t* data, int64_t bytes, Pool&);
    int64_t (*probe_floats)(int64_t steps, Pool&);
    int64_t (*probe_dots)(int64_t steps, Pool&);
};

// The tables that this CPU (and the operating system) can run, best first; never empty.
const std::vector<const Kernels*>& runnable_kernels();

// The best set that this CPU runs, if it was not compiled; else empty.
const char* missing_isa();

// The best runnable table; `limit` names the best one that may be chosen, empty for no limit. Null
// when `limit` is no name that this build knows.
const Kernels* choose_kernels(const char* limit);

}  // namespace pagoda
