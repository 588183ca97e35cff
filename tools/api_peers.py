"""Which routes and fields vLLM 0.32 and llama-server (llama.cpp 0c1e570) know, for docs/api.md."""

VLLM, LLAMA = "vLLM", "llama-server"

_BOTH = """
/health /metrics /tokenize /detokenize /v1/models /v1/completions /v1/chat/completions
/v1/embeddings /rerank /v1/rerank /v1/responses /v1/messages /v1/messages/count_tokens
/v1/audio/transcriptions
"""
_VLLM = """
/ping /version /load /invocations /kv_event_sources /v1/systemone /generative_scoring
/v1/chat/completions/batch /v1/chat/completions/render /v1/completions/render
/v1/messages/render /v1/responses/render /v1/responses/{response_id}
/v1/responses/{response_id}/cancel
/v1/chat/completions/derender /v1/completions/derender /inference/v1/generate
/inference/v1/abort_requests /abort_requests /v2/embed /cohere/v2/chat /pooling /classify /score
/v1/score /v2/rerank /v1/audio/translations /v1/realtime /tokenizer_info /server_info
/reset_prefix_cache /reset_mm_cache /reset_encoder_cache /collective_rpc /sleep /wake_up
/is_sleeping /release_kv_cache_memory /pause /resume /is_paused /init_weight_transfer_engine
/start_weight_update /update_weights /finish_weight_update /get_world_size /start_profile
/stop_profile /scale_elastic_ep /is_scaling_elastic_ep /v1/load_lora_adapter
/v1/unload_lora_adapter
"""
_LLAMA = """
/v1/health /models /models/load /models/unload /models/sse /completion /completions /infill
/apply-template /chat/completions
/v1/chat/completions/input_tokens /chat/completions/input_tokens /v1/chat/completions/control
/embedding /embeddings /reranking /v1/reranking /props /slots /slots/{id_slot} /lora-adapters
/v1/stream /v1/streams/lookup /tools /cors-proxy /audio/transcriptions /responses
/responses/input_tokens /v1/responses/input_tokens
"""
_NEITHER = """
/health/live /health/ready /v1/usage /models/library /models/plan /models/remove
/v1/models/{name} /v1/responses/{response_id}/input_items /v1/audio/speech
/v1/images/generations /v1/images/edits /v1/images/variations /v1/moderations /v1/files
/v1/batches /v1/fine_tuning/jobs
/api/chat /api/embed /api/embeddings /api/generate /api/ps /api/pull /api/show /api/tags
/api/version /api/create /api/blobs/{digest} /api/copy /api/delete /api/push
/api/v0/models /api/v0/models/{name} /api/v1/models /api/v1/models/{name} /api/v1/models/load
/api/v1/models/unload /api/v1/models/download /api/v1/chat /api/v0/chat/completions
/api/v0/completions /api/v0/embeddings
/extract-text /mcp/servers /mcp/tools /mcp/call
"""
ROUTES: dict[str, set[str]] = {
    **{path: {VLLM, LLAMA} for path in _BOTH.split()},
    **{path: {VLLM} for path in _VLLM.split()},
    **{path: {LLAMA} for path in _LLAMA.split()},
    **{path: set() for path in _NEITHER.split()},
}

_VLLM_SAMPLING = """
frequency_penalty logit_bias n presence_penalty seed stop temperature top_p top_k min_p
repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos
min_tokens skip_special_tokens spaces_between_special_tokens allowed_token_ids prompt_logprobs
logprob_token_ids bad_words repetition_detection thinking_token_budget stream_interval
structured_outputs routed_experts_prompt_start
"""
_VLLM_TEXT = f"""{_VLLM_SAMPLING}
model echo logprobs max_tokens stream stream_options user use_beam_search truncate_prompt_tokens
truncation_side add_special_tokens response_format priority request_id session_id
return_tokens_as_token_ids return_token_ids return_token_offsets mm_payload return_mm_kwargs
cache_salt kv_transfer_params ec_transfer_params vllm_xargs
"""
_VLLM_CHAT = f"""{_VLLM_TEXT}
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
_LLAMA_SAMPLING = """
verbose timings_per_token stream cache_prompt return_tokens return_progress sse_ping_interval
n_predict max_tokens max_completion_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse
t_max_predict_ms response_fields top_k top_p min_p top_n_sigma xtc_probability xtc_threshold
typical_p temperature dynatemp_range dynatemp_exponent repeat_last_n repeat_penalty
frequency_penalty presence_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
dry_sequence_breakers mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed
n_probs min_keep backend_sampling post_sampling_probs lora json_schema grammar grammar_lazy
grammar_triggers preserved_tokens chat_format reasoning_format generation_prompt parse_tool_calls
reasoning_budget_tokens logit_bias ignore_eos stop samplers id_slot model
"""
_LLAMA_CHAT = f"""{_LLAMA_SAMPLING}
messages tools tool_choice parallel_tool_calls response_format chat_template_kwargs
add_generation_prompt continue_final_message logprobs top_logprobs stream_options reasoning_effort
"""
_VLLM_POOLING = """
model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs
cache_salt use_activation
"""
_VLLM_INPUT = f"""{_VLLM_POOLING}
input messages add_special_tokens add_generation_prompt continue_final_message chat_template
chat_template_kwargs media_io_kwargs
"""
_VLLM_VECTORS = f"{_VLLM_INPUT} encoding_format embed_dtype endianness dimensions"
_VLLM_SCORING = f"""{_VLLM_POOLING}
max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs
"""
_LLAMA_RERANK = "model query documents texts top_n return_text"
_ANTHROPIC = "model messages system thinking tool_choice tools"

# A path of a route -> the fields of its body.
FIELDS: dict[str, dict[str, str]] = {
    "/v1/chat/completions": {VLLM: _VLLM_CHAT, LLAMA: _LLAMA_CHAT},
    "/v1/chat/completions/batch": {
        VLLM: """model messages frequency_penalty logit_bias logprobs top_logprobs
        logprob_token_ids max_tokens max_completion_tokens n presence_penalty response_format seed
        stop temperature top_p user tool_choice include_reasoning best_of use_beam_search top_k
        min_p repetition_penalty watermarking length_penalty structured_outputs request_id
        add_generation_prompt continue_final_message chat_template chat_template_kwargs
        media_io_kwargs mm_processor_kwargs priority cache_salt include_stop_str_in_output echo
        return_tokens_as_token_ids return_token_ids""",
    },
    "/v1/completions": {
        VLLM: f"{_VLLM_TEXT} prompt suffix prompt_embeds",
        LLAMA: f"{_LLAMA_SAMPLING} prompt logprobs",
    },
    "/completion": {LLAMA: f"{_LLAMA_SAMPLING} prompt"},
    "/infill": {LLAMA: f"{_LLAMA_SAMPLING} input_prefix input_suffix input_extra prompt"},
    "/inference/v1/generate": {
        VLLM: """request_id token_ids token_offsets features content_parts sampling_params model
        reasoning_ended reasoning_parser_kwargs return_token_ids output_mode stream stream_options
        cache_salt priority kv_transfer_params ec_transfer_params""",
    },
    "/inference/v1/abort_requests": {VLLM: "request_ids"},
    "/v1/embeddings": {VLLM: _VLLM_VECTORS, LLAMA: "input content encoding_format model"},
    "/embedding": {LLAMA: "content input embd_normalize encoding_format model"},
    "/pooling": {VLLM: f"{_VLLM_VECTORS} task"},
    "/classify": {VLLM: _VLLM_INPUT},
    "/score": {
        VLLM: f"{_VLLM_SCORING} text_1 text_2 data_1 data_2 queries documents items",
    },
    "/rerank": {VLLM: f"{_VLLM_SCORING} query documents top_n", LLAMA: _LLAMA_RERANK},
    "/tokenize": {
        VLLM: """model prompt messages add_special_tokens add_generation_prompt
        continue_final_message return_token_strs chat_template chat_template_kwargs media_io_kwargs
        mm_processor_kwargs tools""",
        LLAMA: "content add_special parse_special with_pieces",
    },
    "/detokenize": {VLLM: "model tokens", LLAMA: "tokens"},
    "/v1/messages": {
        VLLM: f"""{_ANTHROPIC} max_tokens metadata output_config stop_sequences stream temperature
        top_k top_p cache_salt kv_transfer_params ec_transfer_params vllm_xargs
        chat_template_kwargs""",
        LLAMA: f"{_ANTHROPIC} max_tokens stop_sequences stream temperature top_k top_p",
    },
    "/v1/messages/count_tokens": {
        VLLM: f"{_ANTHROPIC} output_config chat_template_kwargs", LLAMA: _ANTHROPIC,
    },
    "/v1/responses": {
        VLLM: """background include input instructions max_output_tokens max_tool_calls metadata
        model logit_bias parallel_tool_calls previous_response_id prompt reasoning
        include_reasoning service_tier store stream temperature text tool_choice tools top_logprobs
        top_p top_k min_p truncation user skip_special_tokens include_stop_str_in_output
        presence_penalty frequency_penalty prompt_cache_key request_id session_id priority
        cache_salt previous_input_messages structured_outputs repetition_penalty seed stop
        stop_token_ids ignore_eos vllm_xargs kv_transfer_params chat_template_kwargs""",
        LLAMA: "model input instructions max_output_tokens reasoning stream temperature text tools "
        "tool_choice top_p",
    },
}  # fmt: skip
"""Nested fields are not listed."""
