"""Templates of chats as publishers write them, and the texts that their formats say."""

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nBe of help.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
LLAMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- 'Year: ' + strftime_now('%Y')[:2] + '\n\n' }}
{{- system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
# The system's words stand before the user's.
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
        {%- continue %}
    {%- endif %}
    {% generation %}{{- " " + message["content"] + eos_token}}{% endgeneration %}
{%- endfor %}
"""
# Documents have a place of their own.
GRANITE = """{%- for document in documents or [] %}
{{- '<|document ' + loop.index | string + '|>\n' + document['text'] + '<|end|>\n' }}
{%- endfor %}
{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
COMMAND = """{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}\
{% endfor %}{{ documents | tojson(indent=1) }}<assistant>"""
# As Qwen's: tools and calls have places of their own.
TOOLS = """{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
    {{- '\n' + (tool | tojson) }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{ '\n' + message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
MARKS = {"bos_token": "<s>", "eos_token": "</s>"}

SYSTEM = {"role": "system", "content": "Be brief."}
# What is said repeats the templates' own words, and ends in white space.
USER = {"role": "user", "content": "user "}
TALK = [
    USER,
    {"role": "assistant", "content": "\nuser"},
    {"role": "user", "content": "What is {{ 7 * 7 }}?\n"},
]
ASIDE = [SYSTEM, *TALK]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather <|im_end|> of a "city".',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo, N."}}}
CALLS = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abc123def", "name": "get_weather", "content": "12 °C, sun"},
]

TEXTS = {
    "ChatML": (
        CHATML,
        TALK,
        "<|im_start|>system\nBe of help.<|im_end|>\n<|im_start|>user\nuser <|im_end|>\n"
        "<|im_start|>assistant\n\nuser<|im_end|>\n"
        "<|im_start|>user\nWhat is {{ 7 * 7 }}?\n<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Llama 3": (
        LLAMA,
        ASIDE,
        "<s><|start_header_id|>system<|end_header_id|>\n\nYear: 20\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nuser<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nuser<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is {{ 7 * 7 }}?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Gemma": (
        GEMMA,
        TALK,
        "<s><start_of_turn>user\nuser<end_of_turn>\n<start_of_turn>model\nuser<end_of_turn>\n"
        "<start_of_turn>user\nWhat is {{ 7 * 7 }}?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "Mistral": (
        MISTRAL,
        ASIDE,
        "<s>[INST] user [/INST] \nuser</s>[INST] Be brief.\n\nWhat is {{ 7 * 7 }}?\n[/INST]",
    ),
}
