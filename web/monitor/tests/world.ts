// What the tests are made of: targets, sessions and `standin ui`, all of them real. Everything ends with its test.

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = dirname(fileURLToPath(import.meta.url));
const programs = process.env["STANDIN_PROGRAMS"] ?? join(folder, "../../../target/debug");
const PATIENCE_MS = 30_000;

export interface Session {
  child: ChildProcess;
  ended: Promise<void>;
}

export class World {
  readonly place = mkdtempSync(join(tmpdir(), "standin-page-"));
  readonly sessions = join(this.place, "sessions");
  private readonly children: ChildProcess[] = [];

  /** A service in its own network. Answers its process id. */
  async target(): Promise<number> {
    const child = this.start("unshare", ["--net", "python3", join(folder, "target.py")], { SHOP_REGION: "eu", SHOP_PASSWORD: "hunter2" });
    await said(child, "ready");
    return child.pid ?? 0;
  }

  /** A session that stands in for it, and that gets its traffic. */
  async session(target: number, options: string[] = []): Promise<Session> {
    const config = join(this.place, "standin.json");
    writeFileSync(config, JSON.stringify({ feature: { hostname: false } }));
    const all = ["exec", "-t", `process/${target}`, "--steal", "-f", config, ...options, "--", "python3", join(folder, "program.py")];
    const child = this.start(join(programs, "standin"), all, { STANDIN_SESSIONS_DIR: this.sessions });
    const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    await said(child, "everything goes to the program");
    return { child, ended };
  }

  /** The page's server. Answers its address, with the token. */
  async ui(options: string[] = []): Promise<string> {
    const child = this.start(join(programs, "standin"), ["ui", "--no-open", "--sessions-dir", this.sessions, ...options]);
    const line = await said(child, "Session monitor: ");
    return line.replace("Session monitor: ", "").trim();
  }

  async end(): Promise<void> {
    for (const child of this.children.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const gone = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await gone;
    }
    rmSync(this.place, { recursive: true, force: true });
  }

  private start(program: string, options: string[], variables: Record<string, string> = {}): ChildProcess {
    const own = Object.entries(process.env).filter(([name]) => !name.startsWith("STANDIN_"));
    const env = { ...Object.fromEntries(own), ...variables, STANDIN_AGENT_PROGRAM: join(programs, "standind") };
    const child = spawn(program, options, { env, cwd: this.place, stdio: ["ignore", "pipe", "pipe"] });
    this.children.push(child);
    return child;
  }
}

/** Waits for a line of a program. */
function said(child: ChildProcess, expected: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let all = "";
    const timer = setTimeout(() => reject(new Error(`"${expected}" was never said: ${all}`)), PATIENCE_MS);
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
