// OpenAI's SDK in Node: chat completions and responses. See questions.py.

import OpenAI from "openai"
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod"
import * as q from "./questions.mjs"

const at = (base) => new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 })
const client = at(q.BASE), thinker = at(q.QUOTING)

/** The message that a stream of chat completions ends with, and the thought of its deltas. */
async function ofStream(stream) {
  let text = "", thought = ""
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ""
    thought += chunk.choices[0]?.delta.reasoning_content ?? ""
  }
  const message = await stream.finalMessage()
  if (text !== (message.content ?? "")) throw Error(`${text} is not ${message.content}`)
  return [message, thought]
}

const called = (message) => [message.tool_calls[0].function.name, message.tool_calls[0].function.parsed_arguments]

async function chat() {
  const ask = { model: q.MODEL, temperature: 0, max_tokens: 60 }
  const { completions } = client.chat
  const answer = async (messages, more) => (await completions.parse({ ...ask, messages, ...more })).choices[0].message
  const stream = (messages, more) => ofStream(completions.stream({ ...ask, messages, ...more }))
  const first = await answer([q.user(q.FRANCE)])
  const second = await answer([q.user(q.FRANCE), first, q.user(q.ITALY)])
  const tools = [zodFunction({ name: "get_weather", description: q.DESCRIPTION, parameters: q.Weather })]
  const forced = { tools, tool_choice: "required", parallel_tool_calls: false }
  const call = await answer([q.user(q.ROME)], forced)
  const result = { role: "tool", tool_call_id: call.tool_calls[0].id, content: q.SUNNY }
  const after = await answer([q.user(q.ROME), call, result], { tools })
  const form = { response_format: zodResponseFormat(q.City, "city") }
  return {
    turns: [first.content, second.content],
    stream: (await stream([q.user(q.FRANCE)]))[0].content,
    tool: [...called(call), after.content],
    tool_stream: called((await stream([q.user(q.ROME)], forced))[0]),
    forms: {
      parse: (await answer([q.user(q.FRANCE)], form)).parsed,
      stream: (await stream([q.user(q.FRANCE)], form))[0].parsed,
    },
    ...(await chatThoughts(forced)),
  }
}

async function chatThoughts(forced) {
  const ask = { model: q.QUOTED, temperature: 0, max_tokens: 60, reasoning_effort: "low" }
  const { completions } = thinker.chat
  const answer = async (messages, more) => (await completions.parse({ ...ask, messages, ...more })).choices[0].message
  const first = await answer([q.user(q.THINK)])
  const again = await answer([q.user(q.THINK), first, q.user(q.AGAIN)])
  const [streamed, thought] = await ofStream(completions.stream({ ...ask, messages: [q.user(q.THINK)] }))
  const call = await answer([q.user(q.THINK)], forced)
  return {
    thought: [first.reasoning_content, first.content],
    thought_stream: [thought, streamed.content],
    again: [again.reasoning_content, again.content],
    thought_tool: [call.reasoning_content, called(call)[1]],
  }
}

/** The last response of a stream, and its deltas of this kind. */
async function ofEvents(stream, kind) {
  let text = ""
  for await (const event of stream) if (event.type === `response.${kind}.delta`) text += event.delta
  return [await stream.finalResponse(), text]
}

async function responses() {
  const ask = { model: q.MODEL, temperature: 0, max_output_tokens: 60 }
  const answer = (input, more) => client.responses.parse({ ...ask, input, ...more })
  const stream = (input, kind, more) => ofEvents(client.responses.stream({ ...ask, input, ...more }), kind)
  const first = await answer(q.FRANCE)
  const second = await answer([q.user(q.FRANCE), ...first.output, q.user(q.ITALY)])
  const kept = await answer(q.ITALY, { previous_response_id: first.id })
  if (kept.output_text !== second.output_text) throw Error(kept.output_text)
  const tools = [zodResponsesFunction({ name: "get_weather", description: q.DESCRIPTION, parameters: q.Weather })]
  const forced = { tools, tool_choice: "required", parallel_tool_calls: false }
  const call = (await answer(q.ROME, forced)).output[0]
  const result = { type: "function_call_output", call_id: call.call_id, output: q.SUNNY }
  const after = await answer([q.user(q.ROME), call, result], { tools })
  const streamed = (await stream(q.ROME, "", forced))[0].output[0]
  const form = { text: { format: zodTextFormat(q.City, "city") } }
  return {
    turns: [first.output_text, second.output_text],
    stream: (await stream(q.FRANCE, "output_text"))[1],
    tool: [call.name, call.parsed_arguments, after.output_text],
    tool_stream: [streamed.name, JSON.parse(streamed.arguments)],
    forms: {
      parse: (await answer(q.FRANCE, form)).output_parsed,
      stream: (await stream(q.FRANCE, "", form))[0].output_parsed,
    },
    ...(await responsesThoughts(forced)),
  }
}

async function responsesThoughts(forced) {
  const ask = { model: q.QUOTED, temperature: 0, max_output_tokens: 60, reasoning: { effort: "low" } }
  const answer = (input, more) => thinker.responses.parse({ ...ask, input, ...more })
  const first = await answer(q.THINK)
  const again = await answer([q.user(q.THINK), ...first.output, q.user(q.AGAIN)])
  const [last, thought] = await ofEvents(thinker.responses.stream({ ...ask, input: q.THINK }), "reasoning_text")
  const [item, call] = (await answer(q.THINK, forced)).output
  return {
    thought: [first.output[0].content[0].text, first.output_text],
    thought_stream: [thought, last.output_text],
    again: [again.output[0].content[0].text, again.output_text],
    thought_tool: [item.content[0].text, call.parsed_arguments],
  }
}

q.write("openai", { "chat completions": await chat(), responses: await responses() })
