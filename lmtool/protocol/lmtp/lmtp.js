// A client of LMTP for pages and Node 22; SPEC.md says what requests and entries have.
// limits, in seconds: open, for a connection; silence, without an entry or a notice for a request.
export async function connect(url = "ws://127.0.0.1:8080/", key = "", { open = 10, silence = 600 } = {}) {
  const shown = btoa(key).replace(/[+/=]/g, (sign) => ({ "+": "-", "/": "_" })[sign] ?? "");
  const socket = new WebSocket(url, key ? ["lmtp", `lmtp.key.${shown}`] : []), waiting = new Map();
  const timer = (seconds, late) => setTimeout(late, 1000 * seconds);
  await new Promise((opened, failed) => {
    const late = timer(open, () => (failed(new Error(`no connection to ${url} within ${open} s`)), socket.close()));
    socket.onopen = () => (clearTimeout(late), opened());
    socket.onerror = () => (clearTimeout(late),
      failed(new Error(`no connection to ${url}: is a server there, and does it allow this page and key?`)));
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
        if (!entries.length) {
          const late = timer(silence, () => (entries.push({ error: `nothing came within ${silence} s`, late: true }), wake()));
          await new Promise((more) => (wake = more));
          clearTimeout(late);
        }
        const entry = entries.shift();
        if (entry.error) throw ((last = !entry.late), new Error(entry.error));
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
