// The environment of a test: real targets, sessions and `standin ui`. All processes end with the test.

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const testFolder = dirname(fileURLToPath(import.meta.url));
const programs = process.env["STANDIN_PROGRAMS"] ?? join(testFolder, "../../../target/debug");
const OUTPUT_TIMEOUT_MS = 30_000;

export interface Session {
  child: ChildProcess;
  ended: Promise<void>;
}

export class Environment {
  readonly folder = mkdtempSync(join(tmpdir(), "standin-page-"));
  readonly sessions = join(this.folder, "sessions");
  private readonly children: ChildProcess[] = [];

  /** Starts a service in a network namespace of its own, and returns its process id. */
  async target(): Promise<number> {
    const child = this.start("unshare", ["--net", "python3", join(testFolder, "target.py")], { SHOP_REGION: "eu", SHOP_PASSWORD: "hunter2" });
    await outputLine(child, "ready");
    return child.pid ?? 0;
  }

  /** Starts a session that stands in for the service and steals its traffic. */
  async session(target: number, options: string[] = []): Promise<Session> {
    const config = join(this.folder, "standin.json");
    writeFileSync(config, JSON.stringify({ feature: { hostname: false } }));
    const all = ["exec", "-t", `process/${target}`, "--steal", "-f", config, ...options, "--", "python3", join(testFolder, "program.py")];
    const child = this.start(join(programs, "standin"), all, { STANDIN_SESSIONS_DIR: this.sessions });
    const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    await outputLine(child, "everything goes to the program");
    return { child, ended };
  }

  /** Starts the server of the page, and returns its address with the token. */
  async ui(options: string[] = []): Promise<string> {
    const child = this.start(join(programs, "standin"), ["ui", "--no-open", "--sessions-dir", this.sessions, ...options], { KUBECONFIG: join(this.folder, "no-kubeconfig") });
    const line = await outputLine(child, "Session Monitor: ");
    return line.replace("Session Monitor: ", "").trim();
  }

  async end(): Promise<void> {
    for (const child of this.children.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const gone = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await gone;
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  private start(program: string, options: string[], variables: Record<string, string> = {}): ChildProcess {
    const own = Object.entries(process.env).filter(([name]) => !name.startsWith("STANDIN_"));
    const env = { ...Object.fromEntries(own), ...variables, STANDIN_AGENT_PROGRAM: join(programs, "standind") };
    const child = spawn(program, options, { env, cwd: this.folder, stdio: ["ignore", "pipe", "pipe"] });
    this.children.push(child);
    return child;
  }
}

/** Waits for a line in the output of a program. */
function outputLine(child: ChildProcess, expected: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let all = "";
    const timer = setTimeout(() => reject(new Error(`timed out waiting for "${expected}": ${all}`)), OUTPUT_TIMEOUT_MS);
    const listen = (piece: Buffer): void => {
      all += piece.toString();
      const line = all.split("\n").find((line) => line.includes(expected));
      if (line !== undefined) {
        clearTimeout(timer);
        resolve(line);
      }
    };
    child.stdout?.on("data", listen);
    child.stderr?.on("data", listen);
    child.once("exit", (code) => {
      clearTimeout(timer);
      reject(new Error(`the program ended with ${code}: ${all}`));
    });
  });
}
