"""Why a test of llama-server fails with Pagoda, by a pattern of its name."""

REASONS: dict[str, str] = {
    "test_basic::test_server_props": (
        "`-c` is what one request can have, whatever `--parallel` says; llama-server divides "
        "it among its slots"
    ),
    "test_basic::test_server_slots": (
        "`/slots` is always there, and `-c` is what one request can have"
    ),
    "test_basic::test_server_multiple_addresses": ("`--host` takes one address"),
    "test_basic::test_server_model_aliases_and_tags": (
        "each alias is a card of its own in the list of models, as in vLLM; there are no tags"
    ),
    "test_chat_completion::test_chat_template_assistant_prefill*": (
        "a last message of the assistant is continued where `continue_final_message` says so, "
        "as in vLLM"
    ),
    "test_chat_completion::test_chat_template_continue_final_message_vllm*": (
        "the prompt is shown where the request says `verbose`; the flag is about the log"
    ),
    "test_chat_completion::test_invalid_chat_completion_req*": (
        "two messages of the assistant in a row are taken"
    ),
    "test_chat_completion::test_chat_completion_with_timings_per_token": (
        "the first piece's content is empty, as OpenAI's and vLLM's, not null"
    ),
    "test_chat_completion::test_logprobs_stream": (
        "the first piece's content is empty, as OpenAI's and vLLM's, not null"
    ),
    "test_tool_call::test_completion_without_tool_call_*": (
        "the first piece's content is empty, as OpenAI's and vLLM's, not null"
    ),
    "test_chat_completion::test_context_size_exceeded*": (
        "errors have the types and words of vLLM"
    ),
    "test_embedding::test_embedding_error_prompt_too_long": (
        "errors have the types and words of vLLM"
    ),
    "test_security::test_incorrect_api_key*": ("errors have the types and words of vLLM"),
    "test_chat_completion::test_return_progress*": (
        "a prompt's last block is in the cache too, and there is one piece of progress less"
    ),
    "test_metrics::test_metrics_timings_on_prompt_progress": (
        "steps are larger than the test's prompt, and there is one piece of progress"
    ),
    "test_metrics::test_metrics_disabled": ("`/metrics` is always there"),
    "test_metrics::test_metrics_prompt_processed_and_cached": (
        "counters reach `/metrics` when a request ends, with names of vLLM's beside llama- server's"
    ),
    "test_metrics::*": (
        "the test looks for `Process-Start-Time-Unix` in these very letters; names of headers "
        "are sent in small ones"
    ),
    "test_compat_anthropic::test_anthropic_tool_result_with_image": (
        "a picture in a tool's result is replaced by words where the model takes none, so "
        "that the session goes on"
    ),
    "test_compat_anthropic::test_anthropic_vision_format_accepted": (
        "a picture that the model does not take is the request's fault: 400, not 500"
    ),
    "test_compat_anthropic::test_anthropic_empty_messages": (
        "no messages are refused, as Anthropic does"
    ),
    "test_compat_gcp::*": ("Vertex AI's `/predict` is not served"),
    "test_completion::test_completion_stream_vs_non_stream": (
        "`--seed` seeds the engine, not each request alike"
    ),
    "test_completion::test_completion_parallel_slots*": (
        "with this seed the stand-in ends its reply at once; another generator draws here"
    ),
    "test_completion::test_completion_unified*": (
        "with this seed the stand-in ends its reply early; another generator draws here"
    ),
    "test_embedding::test_embedding_multiple_with_fa": (
        "a context longer than an encoder's learned positions is refused at the start"
    ),
    "test_embedding::test_embedding_pooling_none*": ("vectors of each token come from `/pooling`"),
    "test_ignore_eos::*": ("`ignore_eos` is a rule of its own, and no bias on tokens"),
    "test_kv_keep_only_active::*": ("the test reads a line of llama-server's log"),
    "test_mcp_servers::test_mcp_tools_not_listed_when_not_configured": (
        "`/tools` is 501 while nothing offers any"
    ),
    "test_mcp_servers::test_mcp_slow_tool_call_slot_release": (
        "the server ends within 3.5 s of the signal, not 3"
    ),
    "test_proxy::*": ("there is no `/cors-proxy`: MCP servers are called by the server itself"),
    "test_security::test_cors_proxy*": (
        "there is no `/cors-proxy`: MCP servers are called by the server itself"
    ),
    "test_router::test_router_props": ("`/props` is of a model, where there are several too"),
    "test_router::test_router_chat_completion_stream*": (
        "an unknown model is 404 before the stream begins"
    ),
    "test_router::test_router_delete_model": ("models are removed by `POST /models/remove`"),
    "test_security::test_cors_options*": (
        "pages of other origins get 403 unless `--allowed-origins` names them, with a key too"
    ),
    "test_security::test_cors_origins_localhost_rejects*": (
        "the preflight of a page that may not call gets 403 with the flag that would let it, "
        "not an empty 200"
    ),
    "test_security::test_cors_origins_defaults_to_localhost_with_tools*": (
        "pages of other origins get 403 unless `--allowed-origins` names them"
    ),
    "test_sleep::*": (
        "`/metrics` is computed anew while the model rests, and counting tokens needs no engine"
    ),
    "test_template::test_reasoning*": (
        "llama.cpp tells every template to think; a template's own default holds here, and "
        "these of llama.cpp's own collection have none"
    ),
    "test_template::test_date_inside_prompt*": (
        "the template wants a variable `functions`, which llama.cpp makes of the tools"
    ),
    "test_completion::test_n_probs_stream": "a piece has several tokens where guesses came true",
    "test_compat_oai_responses::test_responses_stream_with_llama_telemetry": (
        "`/v1/responses` tells progress and times as OpenAI does, not as llama-server"
    ),
}
