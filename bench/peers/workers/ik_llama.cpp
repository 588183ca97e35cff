// ik_llama.cpp behind functions that take plain numbers and pointers: its own structs grow with
// every version, so only a compiler that sees its header can pass them.
#include <cstdint>

#include "llama.h"

extern "C" {

// nullptr where it cannot be loaded. `repack` is `-rtr`: rows are interleaved while loading, so
// that nothing stays mapped.
llama_model * ik_load(const char * path, bool repack) {
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.repack_tensors = repack;
    params.use_mmap = !repack;
    return llama_model_load_from_file(path, params);
}

int32_t ik_vocab_size(const llama_model * model) { return llama_n_vocab(model); }

const char * ik_system() { return llama_print_system_info(); }

// nullptr where there is no memory for `tokens` of all `requests` together.
llama_context * ik_context(llama_model * model, uint32_t tokens, uint32_t requests,
                           uint32_t batch, uint32_t threads) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = tokens;
    params.n_batch = batch;
    params.n_seq_max = requests;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    return llama_init_from_model(model, params);
}

void ik_free(llama_context * context) { llama_free(context); }

// The status of llama_decode; `wanted` marks the rows that get logits.
int32_t ik_decode(llama_context * context, int32_t rows, const int32_t * ids,
                  const int32_t * positions, const int32_t * requests, const int8_t * wanted) {
    llama_batch batch = llama_batch_init(rows, 0, 1);
    batch.n_tokens = rows;
    for (int32_t i = 0; i < rows; ++i) {
        batch.token[i] = ids[i];
        batch.pos[i] = positions[i];
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = requests[i];
        batch.logits[i] = wanted[i];
    }
    const int32_t status = llama_decode(context, batch);
    llama_synchronize(context);
    llama_batch_free(batch);
    return status;
}

void ik_forget(llama_context * context, int32_t start) {
    llama_kv_cache_seq_rm(context, 0, start, -1);
}

const float * ik_logits(llama_context * context) { return llama_get_logits(context); }
}
