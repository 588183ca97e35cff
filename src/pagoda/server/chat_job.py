"""From the body of a chat request to all that answering it needs; the bodies of other dialects
are translated into one first."""

from dataclasses import dataclass

from pagoda.engine.constraint import Constraint, chat_constraint
from pagoda.engine.directory import ServedModel
from pagoda.server.context import ReplyHead
from pagoda.server.generation import Generation, ReplyRules
from pagoda.server.messages import final_text, render_prompt
from pagoda.server.metrics import Metrics
from pagoda.server.params import chat_params
from pagoda.server.prompts import encode
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.reading import ReplyReader
from pagoda.server.structure import constrained, is_named, tool_use


@dataclass
class ChatJob:
    """All that answering one chat request needs."""

    body: ChatCompletionRequest
    served: ServedModel
    generation: Generation
    head: ReplyHead
    prompt_text: str
    echoed: str
    """With echo, the final message of the request, which the reply continues."""
    constraint: Constraint

    def reader(self) -> ReplyReader:
        """One for each choice."""
        parser = self.served.parser(self.prompt_text, self.body.offered_tools)
        named = is_named(self.body.tool_choice)
        return ReplyReader(parser, self.body.parallel_tool_calls, named_call=named)


async def chat_job(
    body: ChatCompletionRequest,
    served: ServedModel,
    head: ReplyHead,
    metrics: Metrics,
    *,
    fits_length: bool = False,
) -> ChatJob:
    """With `fits_length` a max_tokens beyond the context's end is lowered, where it is refused
    otherwise."""
    sampling = chat_params(body, served)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    prompt = await render_chat(body, served)
    constraint = Constraint()
    if use.tools or sampling.structured_outputs is not None:
        constraint = await constrained(
            body, lambda: chat_constraint(served.text, prompt, sampling.structured_outputs, use)
        )
    ids = await encode(
        served,
        prompt,
        # Templates write the special tokens themselves; a second BOS would spoil the prompt.
        add_special_tokens=body.add_special_tokens,
        truncates=body.truncate_prompt_tokens is not None,
        param="messages",
    )
    if fits_length and sampling.max_tokens is not None:
        sampling.max_tokens = max(1, min(sampling.max_tokens, served.max_model_len - len(ids)))
    rules = ReplyRules(constraint.grammar, served.text.markup_ids)
    generation = Generation(served, [ids], sampling, body, head.id, metrics, rules)
    echoed = final_text(body.messages) if body.echo else ""
    return ChatJob(body, served, generation, head, prompt, echoed, constraint)


async def render_chat(body: ChatCompletionRequest, served: ServedModel) -> str:
    variables = dict(body.chat_template_kwargs)
    if body.documents is not None:
        variables.setdefault("documents", body.documents)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return await render_prompt(
        served,
        body.messages,
        tools=body.offered_tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=variables,
    )
