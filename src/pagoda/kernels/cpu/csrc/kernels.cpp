// All kernels of one instruction set; compiled once per set with PAGODA_ISA its name. Those that
// products.cpp has are a file of their own, so that two cores compile a set.
#include "isa.h"

#include "activation.h"
#include "attention.h"
#include "choose_keys.h"
#include "delta_net.h"
#include "draw.h"
#include "patch_attention.h"
#include "products.h"
#include "logits.h"
#include "norm.h"
#include "rope.h"
#include "state_space.h"
#include "streams.h"

#define PAGODA_JOIN_(a, b) a##b
#define PAGODA_JOIN(a, b) PAGODA_JOIN_(a, b)
#define PAGODA_TEXT_(a) #a
#define PAGODA_TEXT(a) PAGODA_TEXT_(a)

namespace pagoda {

extern const Kernels PAGODA_JOIN(kernels_, PAGODA_ISA);
const Kernels PAGODA_JOIN(kernels_, PAGODA_ISA) = {
    PAGODA_TEXT(PAGODA_ISA),
    rms_norm,
    PAGODA_ISA::matmul,
    PAGODA_ISA::matmul_scratch_bytes,
    PAGODA_ISA::experts,
    PAGODA_ISA::experts_scratch_bytes,
    PAGODA_ISA::head_products,
    PAGODA_ISA::head_products_scratch_bytes,
    PAGODA_ISA::add_adapters,
    PAGODA_ISA::add_adapters_scratch_bytes,
    PAGODA_ISA::route,
    rotary_store,
    rotary,
    paged_attention,
    patch_attention,
    patch_attention_scratch,
    choose_keys,
    choose_keys_scratch,
    activate_and_mul,
    sigmoid_mul,
    add_gated,
    gated_rms_norm,
    causal_conv,
    gated_delta_rule,
    state_space,
    gelu,
    scale,
    soft_cap,
    layer_norm,
    mix_streams,
    scale_columns,
    match_rms,
    cut_columns,
    embed_rows,
    argmax,
    top_k,
    draw,
    mask_logits,
    PAGODA_ISA::probe_read,
    PAGODA_ISA::probe_floats,
    PAGODA_ISA::probe_dots,
};

}  // namespace pagoda
