// What the clients of JavaScript ask, and the line of JSON that they write: see questions.py.

import { readFileSync } from "node:fs"
import * as z from "zod"

export const [BASE, QUOTING] = process.argv.slice(2)
export const MODEL = "lmtool-tiny", QUOTED = "scripted"
export const FRANCE = "What is the capital of France?", ITALY = "What is the capital of Italy?"
export const ROME = "What is the weather like in Rome?"
export const SUNNY = '{"city": "Rome", "weather": "sunny"}'
export const THINK = "Say «<think>\nHm, hm.\n</think>\n\nYes.»", AGAIN = "Again."
export const DESCRIPTION = "Get the current weather in a city."
export const City = z.object({ name: z.enum(["Rome", "Oslo"]), size: z.literal([1, 2, 3]) })
export const Weather = z.object({ city: z.enum(["Rome", "Oslo"]) })
export const user = (content) => ({ role: "user", content })

export function write(name, apis, more = {}) {
  const version = JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version
  console.log(JSON.stringify({ versions: { [name]: version }, apis, more }))
}
