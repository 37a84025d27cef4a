// sdk.mjs 1|2 SPEC: lists a server's tools and calls some, by the TypeScript SDK of that generation. Prints all it was
// told. The second one finds out by itself which era the server speaks, with a process of its own to ask.
// It is run from the folder of its packages, so it asks for them by their full path.
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
const [command, ...args] = spec.command;
const client = new Client({ name: 'rig', version: '1' }, { versionNegotiation: { mode: 'auto' } });
await client.connect(new StdioClientTransport({ command, args, env: spec.env, stderr: 'ignore' }));
const tools = await client.listTools();
const results = [];
for (const [name, wish] of spec.calls) results.push(await client.callTool({ name, arguments: wish }));
const hello = { server: client.getServerVersion(), capabilities: client.getServerCapabilities() };
await client.close();
console.log(JSON.stringify({ hello, tools, results }));
