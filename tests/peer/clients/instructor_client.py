"""instructor: its modes with OpenAI's and Anthropic's SDK. See `questions.py`."""

import anthropic
import instructor
import openai
import questions as q
from instructor import Mode

OPENAI = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON)
ANTHROPIC = (Mode.ANTHROPIC_TOOLS, Mode.ANTHROPIC_JSON)
BY_WISH = {Mode.JSON, Mode.MD_JSON, Mode.ANTHROPIC_JSON}
"""Ways that leave the form up to the model: asked of the one that says what it is asked for."""


def wrapped(mode, base=None):
    """Return a client in a mode. base: of the server, where it does not go by the mode."""
    base = base or (q.QUOTING if mode in BY_WISH else q.BASE)
    if mode in ANTHROPIC:
        return instructor.from_anthropic(anthropic.Anthropic(base_url=base, api_key="none", max_retries=0), mode=mode)
    return instructor.from_openai(openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0), mode=mode)


def ask(mode, question=q.FRANCE):
    """What every call says."""
    model, text = (q.QUOTED, q.FORM) if mode in BY_WISH else (q.MODEL, question)
    if mode is Mode.MD_JSON:
        text = text.replace("«", "«```json\n").replace("»", "\n```»")
    return {
        "model": model,
        "messages": [q.user(text)],
        "max_tokens": 60,
        "max_retries": 0,
        "extra_body": {"temperature": 0},
    }


def api(modes, first, read):
    """Text, and the forms of each mode. read: the text of an answer without a form."""
    create = {mode: wrapped(mode).chat.completions.create for mode in modes}
    forms = {mode.name: create[mode](response_model=q.City, **ask(mode)).model_dump() for mode in modes}
    client = wrapped(first).chat.completions
    *_, last = client.create_partial(response_model=q.City, **ask(first))
    turns = ask(first)
    france = read(client.create(response_model=None, **turns))
    turns["messages"] += [{"role": "assistant", "content": france}, q.user(q.ITALY)]
    italy = read(client.create(response_model=None, **turns))
    thinker = wrapped(first, q.QUOTING).chat.completions
    call, whole = thinker.create_with_completion(response_model=q.GetWeather, **ask(first, q.THINK))
    return {
        "turns": [france, italy],
        "forms": forms | {"partial": last.model_dump()},
        "thought_tool": [thought(whole), call.model_dump()],
    }


def thought(whole):
    """The thought of an answer, which instructor leaves as its SDK has it."""
    return whole.content[0].thinking if hasattr(whole, "content") else whole.choices[0].message.reasoning_content


q.write(
    ["instructor"],
    {
        "openai": api(OPENAI, Mode.TOOLS, lambda answer: answer.choices[0].message.content),
        "anthropic": api(ANTHROPIC, Mode.ANTHROPIC_TOOLS, lambda answer: answer.content[0].text),
    },
)
