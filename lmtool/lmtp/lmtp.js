// A client of LMTP for pages and Node 22; SPEC.md says what requests and entries have.
export async function connect(url = "ws://127.0.0.1:8080/", key = "") {
  const shown = btoa(key).replace(/[+/=]/g, (sign) => ({ "+": "-", "/": "_" })[sign] ?? "");
  const socket = new WebSocket(url, key ? ["lmtp", `lmtp.key.${shown}`] : []), waiting = new Map();
  await new Promise((opened, failed) => {
    socket.onopen = opened;
    socket.onerror = () => failed(new Error(`no connection to ${url}: is a server there, and does it allow this page and key?`));
  });
  const send = (command, request) => socket.send(`${command} ${JSON.stringify(request)}`);
  socket.onclose = ({ code, reason }) =>
    waiting.forEach((take) => take({ error: `the connection has ended (${code} ${reason})` }));
  socket.onmessage = ({ data }) =>
    [JSON.parse(data.slice(data.indexOf(" ") + 1))].flat().forEach((entry) => waiting.get(entry.stream_id)?.(entry));
  let count = 0;
  async function* answers(command, request) {
    if (socket.readyState !== WebSocket.OPEN) throw new Error("the connection has ended");
    const stream_id = `js${++count}`, entries = [];
    let wake = () => {}, last = command === "MODEL_INFO";
    waiting.set(stream_id, (entry) => (entries.push(entry), wake()));
    send(command, { lmtp: 1, ...request, stream_id });
    try {
      do {
        if (!entries.length) await new Promise((more) => (wake = more));
        const entry = entries.shift();
        if (entry.error) throw ((last = true), new Error(entry.error));
        last ||= Boolean(entry.finish_reason);
        if (!entry.ignored) yield entry;
      } while (!last);
    } finally {
      waiting.delete(stream_id);
      if (!last && socket.readyState === WebSocket.OPEN) send("CANCEL", { model: request.model, stream_id });
    }
  }
  return {
    generate: (request) => answers("GENERATE", request), // { messages or prompt, model, max_tokens, temperature, ... }
    score: (request) => answers("SCORE", { text: true, ...request }), // { prompt, scored, ... }
    info: async (model) => (await answers("MODEL_INFO", { model }).next()).value.model_info,
    close: () => socket.close(),
  };
}
