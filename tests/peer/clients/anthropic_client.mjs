// Anthropic's SDK in Node: messages. See questions.py.

import Anthropic from "@anthropic-ai/sdk"
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod"
import * as q from "./questions.mjs"

const at = (base) => new Anthropic({ baseURL: base, apiKey: "none", maxRetries: 0 })
const client = at(q.BASE), thinker = at(q.QUOTING)
const schema = { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] }
const tools = [{ name: "get_weather", description: q.DESCRIPTION, input_schema: schema }]
const forced = { tools, tool_choice: { type: "any", disable_parallel_tool_use: true } }
const assistant = (message) => ({ role: "assistant", content: message.content })
const called = (message) => [message.content.at(-1).name, message.content.at(-1).input]
const parts = (message) => message.content.map((block) => block.thinking ?? block.text)

/** The message that a stream ends with; its deltas add up to it. */
async function ofStream(stream) {
  let text = "", thought = ""
  stream.on("text", (delta) => (text += delta)).on("thinking", (delta) => (thought += delta))
  const message = await stream.finalMessage()
  const found = message.content.map((block) => block.thinking ?? block.text ?? "").join("")
  if (thought + text !== found) throw Error(`${thought + text} is not ${found}`)
  return message
}

async function messages() {
  const ask = { model: q.MODEL, max_tokens: 60, temperature: 0 }
  const answer = (turns, more) => client.messages.create({ ...ask, messages: turns, ...more })
  const stream = (turns, more) => ofStream(client.messages.stream({ ...ask, messages: turns, ...more }))
  const first = await answer([q.user(q.FRANCE)])
  const second = await answer([q.user(q.FRANCE), assistant(first), q.user(q.ITALY)])
  const call = await answer([q.user(q.ROME)], forced)
  const result = { type: "tool_result", tool_use_id: call.content[0].id, content: q.SUNNY }
  const after = await answer([q.user(q.ROME), assistant(call), q.user([result])], { tools })
  const form = { output_config: { format: zodOutputFormat(q.City) } }
  const whole = await client.messages.parse({ ...ask, messages: [q.user(q.FRANCE)], ...form })
  return {
    turns: [first.content[0].text, second.content[0].text],
    stream: (await stream([q.user(q.FRANCE)])).content[0].text,
    tool: [...called(call), after.content[0].text],
    tool_stream: called(await stream([q.user(q.ROME)], forced)),
    forms: { parse: whole.parsed_output, stream: (await stream([q.user(q.FRANCE)], form)).parsed_output },
    ...(await thoughts()),
  }
}

async function thoughts() {
  const ask = { model: q.QUOTED, max_tokens: 60, thinking: { type: "enabled", budget_tokens: 40 } }
  const answer = (turns, more) => thinker.messages.create({ ...ask, messages: turns, ...more })
  const first = await answer([q.user(q.THINK)])
  const call = await answer([q.user(q.THINK)], forced)
  return {
    thought: parts(first),
    thought_stream: parts(await ofStream(thinker.messages.stream({ ...ask, messages: [q.user(q.THINK)] }))),
    again: parts(await answer([q.user(q.THINK), assistant(first), q.user(q.AGAIN)])),
    thought_tool: [call.content[0].thinking, called(call)[1]],
  }
}

q.write("@anthropic-ai/sdk", { messages: await messages() })
