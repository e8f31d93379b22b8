"""LlamaIndex: `OpenAILike`, `OpenAIResponses`, `Anthropic`. See `questions.py`."""

import questions as q
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike

WEATHER = FunctionTool.from_defaults(
    fn=lambda city: f"{city}: sunny", name="get_weather", description=q.DESCRIPTION, fn_schema=q.GetWeather
)


def api(model, thinker, stream_form=None):
    """All of one API. stream_form: the model of a streamed form, and what it is asked; None where there is none."""
    first = model.chat([ChatMessage(q.FRANCE)]).message
    second = model.chat([ChatMessage(q.FRANCE), first, ChatMessage(q.ITALY)]).message
    text = "".join(part.delta or "" for part in model.stream_chat([ChatMessage(q.FRANCE)]))
    call = model.chat_with_tools([WEATHER], user_msg=q.ROME, tool_required=True)
    [selected] = model.get_tool_calls_from_response(call)
    result = ChatMessage(role="tool", content=q.SUNNY, additional_kwargs={"tool_call_id": selected.tool_id})
    after = model.chat_with_tools([WEATHER], chat_history=[ChatMessage(q.ROME), call.message, result])
    *_, last = model.stream_chat_with_tools([WEATHER], user_msg=q.ROME, tool_required=True)
    [streamed] = model.get_tool_calls_from_response(last)
    return {
        "turns": [first.content, second.content],
        "stream": text,
        "tool": [selected.tool_name, selected.tool_kwargs, after.message.content],
        "tool_stream": [streamed.tool_name, streamed.tool_kwargs],
        "forms": {"structured_predict": model.structured_predict(q.City, PromptTemplate(q.FRANCE)).model_dump()}
        | (streamed_form(*stream_form) if stream_form else {}),
        **thoughts(thinker),
    }


def streamed_form(model, question):
    """The last object of a stream."""
    *_, form = model.stream_structured_predict(q.City, PromptTemplate("{question}"), question=question)
    return {"stream": form.model_dump()}


def thoughts(thinker):
    """Blocks of type `thinking`."""
    first = thinker.chat([ChatMessage(q.THINK)]).message
    again = thinker.chat([ChatMessage(q.THINK), first, ChatMessage(q.AGAIN)]).message
    *_, last = thinker.stream_chat([ChatMessage(q.THINK)])
    return {"thought": parts(first), "thought_stream": parts(last.message), "again": parts(again)}


def parts(message):
    """Thought and answer."""
    found = [block.content for block in message.blocks if block.block_type == "thinking"]
    return ["".join(text or "" for text in found), message.content]


def pair(made, **more):
    """The model of both servers."""
    return [
        made(model=q.MODEL, api_key="none", temperature=0, api_base=f"{q.BASE}/v1", **more),
        made(model=q.QUOTED, api_key="none", api_base=f"{q.QUOTING}/v1", **more),
    ]


NAMED = {"model": q.CLAUDE, "api_key": "none", "max_tokens": 60}
THINKING = {"type": "enabled", "budget_tokens": 40}
ANTHROPIC = [
    Anthropic(**NAMED, base_url=q.BASE, temperature=0),
    Anthropic(**NAMED, base_url=q.QUOTING, thinking_dict=THINKING, temperature=1),
]
LIKE = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 512, "max_tokens": 60}
like = pair(OpenAILike, **LIKE)
q.write(
    ["llama-index-llms-openai-like", "llama-index-llms-openai", "llama-index-llms-anthropic"],
    {
        "OpenAILike": api(*like, (like[1], q.FORM_CALL)),  # it does not say that the streamed form must be called
        "OpenAIResponses": api(*pair(OpenAIResponses, context_window=512, max_output_tokens=60)),
        "Anthropic": api(*ANTHROPIC, (ANTHROPIC[0], q.FRANCE)),
    },
)
