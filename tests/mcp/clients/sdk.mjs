// sdk.mjs 1|2 SPEC: lists the tools of a server and calls some with that generation of the TypeScript SDK. Prints all.
// The second generation detects the protocol revision of the server with an extra process.
// It runs in the folder of its packages, so it loads them by their full path.
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const [generation, text] = process.argv.slice(2);
const packages = {
  1: ['@modelcontextprotocol/sdk/client/index.js', '@modelcontextprotocol/sdk/client/stdio.js'],
  2: ['@modelcontextprotocol/client', '@modelcontextprotocol/client/stdio'],
}[generation];
const { Client } = require(packages[0]);
const { StdioClientTransport } = require(packages[1]);

const spec = JSON.parse(text);
// A busy machine may take longer than the minute that is the default.
const patience = { timeout: 600_000 };
const [command, ...args] = spec.command;
const client = new Client({ name: 'rig', version: '1' }, { versionNegotiation: { mode: 'auto' } });
await client.connect(new StdioClientTransport({ command, args, env: spec.env, stderr: 'ignore' }), patience);
const tools = await client.listTools(undefined, patience);
const results = [];
for (const [name, wish] of spec.calls) {
  // The first generation has the schema of the result in between.
  const options = generation === '1' ? [undefined, patience] : [patience];
  results.push(await client.callTool({ name, arguments: wish }, ...options));
}
const hello = { server: client.getServerVersion(), capabilities: client.getServerCapabilities() };
await client.close();
console.log(JSON.stringify({ hello, tools, results }));
