// Conversations of Action Engine's TypeScript client with an Evergreen server: node THIS BUNDLE URL, prompts as JSON on
// stdin, answers as JSON on stdout. It closes an output only where the output's id is its name, so the ids of outputs are.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { createRequire } from 'node:module';

const [bundle, url] = process.argv.slice(2);
const require = createRequire(pathToFileURL(bundle));
globalThis.WebSocket ??= require('ws');
const { actions, content, sessions } = await import(pathToFileURL(bundle));
const { action, GENERATE, Options, setBackend } = actions.evergreen;
setBackend(url);
const { connectionFactory } = action('', GENERATE).options;  // the default one, which is not exported
console.info = () => {};
const BY_TEXT = { name: 'GENERATE', inputs: [{ name: 'text' }], outputs: [{ name: 'text' }] };

async function turn(session, schema, prompt) {
  const [input, output] = [schema.inputs[0].name, schema.outputs[0].name];
  let outputs = 0;
  const ids = { generateStreamId: (name) => (name === output && outputs++ === 0 ? name : crypto.randomUUID()) };
  const generate = action('', schema, new Options(url, ids, connectionFactory));
  const pipe = session.createPipe();
  const answers = session.run(generate, { [input]: pipe }, [output]);
  for (const word of prompt) await pipe.write(content.textChunk(word));
  await pipe.close();
  const decoder = new TextDecoder();
  let text = '';
  for await (const chunk of answers[output]) text += chunk.data ? decoder.decode(chunk.data, { stream: true }) : '';
  return text;
}

async function conversation([first, second]) {
  const session = sessions.local();
  const answer = await turn(session, GENERATE, first);
  return [answer, await turn(session, BY_TEXT, [...first, answer, ...second])];
}

const prompts = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(await Promise.all(prompts.map(conversation))) + '\n', () => process.exit(0));
