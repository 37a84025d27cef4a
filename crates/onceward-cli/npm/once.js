#!/usr/bin/env node
// Starts the `once` program of this platform, which is in a package of its own (`@onceward/linux-x64`, …).
// The program gets stdin, stdout and stderr themselves, so nothing that passes through it passes through here.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const { isatty } = require("node:tty");

const platform = `${process.platform}-${process.arch}`;

function program() {
  try {
    return require.resolve(`@onceward/${platform}/bin/once`);
  } catch {
    console.error(
      `onceward: there is no program for ${platform}: the package @onceward/${platform} is not installed. ` +
        "It is an optional dependency: install without --omit=optional, or build `once` with cargo.",
    );
    process.exit(127);
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`onceward: the program could not be started: ${error.message}`);
  process.exit(126);
});

// A terminal sends Ctrl-C to the program too: passing it on would be a second one.
const onTerminal = [0, 1, 2].some((stream) => isatty(stream));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  const sentToBoth = onTerminal && (signal === "SIGINT" || signal === "SIGQUIT");
  process.on(signal, () => sentToBoth || child.kill(signal));
}

child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  // Ends as the program did, so that a waiting process sees the same.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  // A signal that cannot end this process still has the exit code of a shell.
  setTimeout(() => process.exit(128 + constants.signals[signal]), 100);
});
