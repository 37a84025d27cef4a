// sdk.mjs SPEC: lists a server's tools and calls some, by the TypeScript SDK. Prints all it was told.
// It is run from the folder of its packages, so it asks for them by their full path.
import { createRequire } from 'node:module';

const require = createRequire(`${process.cwd()}/`);
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');

const spec = JSON.parse(process.argv[2]);
const [command, ...args] = spec.command;
const client = new Client({ name: 'rig', version: '1' });
await client.connect(new StdioClientTransport({ command, args, env: spec.env, stderr: 'ignore' }));
const tools = await client.listTools();
const results = [];
for (const [name, wish] of spec.calls) results.push(await client.callTool({ name, arguments: wish }));
const hello = { server: client.getServerVersion(), capabilities: client.getServerCapabilities() };
await client.close();
console.log(JSON.stringify({ hello, tools, results }));
