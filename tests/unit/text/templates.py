"""Chat templates in the manner of well-known models."""

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if tools is not none and tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nFunctions:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\\n\\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

R1 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|User|>' + message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<|tool|>' + call.function.name + '\\n' + call.function.arguments }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|Assistant|><think>\\n' }}
{%- endif %}
"""

VISION = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}
                {{- '<|image|>' }}
            {%- else %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# As Gemma 3 is spoken to: what a system turn says stands in front of the user's first words, and
# roles alternate.
GEMMA3 = (
    "{{ bos_token }}"
    "{% set said = '' %}{% set turns = messages %}"
    "{% if messages[0].role == 'system' %}"
    "{% set said = messages[0].content if messages[0].content is string"
    " else messages[0].content[0].text %}"
    "{% set turns = messages[1:] %}{% endif %}"
    "{% for turn in turns %}"
    "{% if (turn.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "<start_of_turn>{{ 'model' if turn.role == 'assistant' else turn.role }}\n"
    "{{ said + '\n\n' if said and loop.first else '' }}"
    "{% if turn.content is string %}{{ turn.content | trim }}"
    "{% else %}{% for part in turn.content %}"
    "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}"
    "{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}"
    "{{ '<start_of_turn>model\n' if add_generation_prompt else '' }}"
)
