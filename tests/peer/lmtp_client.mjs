// Uses lmtp.js as a program would: its path, a server's URL and its key are the arguments; writes what it got as JSON.
const [, , file, url, key] = process.argv;
const { connect } = await import(file);
const model = await connect(url, key);
const request = { messages: [{ role: "user", content: "Hello there" }], max_tokens: 8, temperature: 0 };
const got = { info: (await model.info()).model, texts: [], many: [], errors: [] };
for await (const entry of model.generate(request)) got.texts.push(entry);
const some = ["Once upon", "The cat", "One, two,"].map(async (prompt) => {
  const pieces = [];
  for await (const entry of model.generate({ prompt, max_tokens: 6, temperature: 0 })) pieces.push(entry.text ?? "");
  return pieces.join("");
});
got.many = await Promise.all(some);
for await (const _ of model.generate({ prompt: "Once", max_tokens: 400, ignore_eos: true })) break; // sends CANCEL
got.scored = [];
for await (const entry of model.score({ prompt: "Once upon a", scored: " time," })) got.scored.push(entry.logprob);
for (const wrong of [{ prompt: "x", max_tokens: -1 }, { prompt: "x", model: "nobody" }]) {
  try { for await (const _ of model.generate(wrong)); } catch (error) { got.errors.push(error.message); }
}
model.close();
await connect(url).catch((error) => got.errors.push(error.message));
await connect("ws://127.0.0.1:9/").catch((error) => got.errors.push(error.message));
console.log(JSON.stringify(got));
