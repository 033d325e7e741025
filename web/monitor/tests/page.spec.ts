import { AxeBuilder } from "@axe-core/playwright";
import { expect, request as http, test, type Locator, type Page } from "@playwright/test";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

import { Environment } from "./environment";

let environment: Environment;
test.beforeEach(() => {
  environment = new Environment();
});
test.afterEach(async () => {
  await environment.end();
});

const shots = process.env["SCREENSHOTS"];
async function shot(page: Page, name: string): Promise<void> {
  if (shots) await page.screenshot({ path: join(shots, `${name}.png`) });
}

test("requests without the token, for another host or from another origin are rejected", async () => {
  const url = await environment.ui();
  const { origin, searchParams } = new URL(url);
  const client = await http.newContext();
  expect((await client.get(origin)).status()).toBe(401);
  expect((await client.get(`${origin}/api/sessions`)).status()).toBe(401);
  expect((await client.get(`${origin}/?token=wrong`)).status()).toBe(401);
  const bearer = { authorization: `Bearer ${searchParams.get("token")}` };
  expect((await client.get(`${origin}/api/sessions`, { headers: bearer })).status()).toBe(200);
  expect((await client.get(`${origin}/api/sessions`, { headers: { ...bearer, host: "evil.example" } })).status()).toBe(421);
  const kill = `${origin}/api/sessions/none/kill`;
  expect((await client.post(kill, { headers: bearer })).status()).toBe(403);
  expect((await client.post(kill, { headers: { ...bearer, origin: "http://evil.example" } })).status()).toBe(403);
  expect((await client.post(kill, { headers: { ...bearer, origin } })).status()).toBe(404);
  const page = await client.get(url);
  expect(page.headers()["content-security-policy"]).not.toContain("unsafe");
  await client.dispose();
});

test("the first load removes the token from the URL and shows an empty list", async ({ page, context }) => {
  const problems: string[] = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(error.message));
  await page.goto(await environment.ui());
  await expect(page.getByRole("heading", { name: "No sessions yet" })).toBeVisible();
  expect(page.url()).not.toContain("token");
  const [cookie] = await context.cookies();
  expect(cookie).toMatchObject({ httpOnly: true, sameSite: "Strict" });
  await page.reload();
  await expect(page.getByRole("heading", { name: "No sessions yet" })).toBeVisible();
  await shot(page, "empty");
  expect(problems).toEqual([]);
});

test("a session's traffic can be viewed, searched and paused", async ({ page }) => {
  await page.goto(await environment.ui());
  const target = await environment.target();
  await environment.session(target);
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await expect(page.getByText(/^median/)).toBeVisible();
  await expect(page.getByText("failed in the program")).toBeVisible();
  const absent = page.getByRole("listitem").filter({ hasText: /These \d+ files were read remotely and do not exist there/ });
  await absent.getByText(/^Show \d+/).click();
  await expect(absent.getByText("/srv/shop/missing-3")).toBeVisible();
  await shot(page, "overview");

  await page.getByRole("tab", { name: /Events/ }).click();
  const events = page.getByRole("list", { name: "Events" });
  await expect(events.locator('[data-type="IncomingRequest"]').first()).toContainText("stolen");
  await expect(events.locator('[data-type="OutgoingConnection"]').first()).toBeVisible();
  await shot(page, "events");
  await page.getByRole("checkbox", { name: /Requests/ }).uncheck();
  await expect(events.locator('[data-type="IncomingRequest"]')).toHaveCount(0);
  await page.getByRole("checkbox", { name: /Requests/ }).check();
  await page.keyboard.press("Escape");

  // Moves the focus out of the field first, in which keys would be typed text.
  await page.getByRole("tab", { name: /Requests/ }).click();
  const requests = page.getByRole("list", { name: "Requests" });
  await expect(requests).toBeVisible();
  await page.keyboard.press("/");
  await page.keyboard.type("/broken");
  await expect(requests.locator(".event").first()).toContainText("GET /broken");
  await expect(requests.locator(".event", { hasText: "/cart/" })).toHaveCount(0);
  await requests.locator(".event > button").first().click();
  await expect(requests.getByText("Client")).toBeVisible();
  await expect(requests.locator("dd", { hasText: "503" })).toBeVisible();
  await shot(page, "request");

  await page.getByRole("button", { name: "Pause" }).click();
  const shown = await requests.locator(".event").count();
  await expect(page.getByRole("button", { name: /Resume \(\d+ new\)/ })).toBeVisible();
  expect(await requests.locator(".event").count()).toBe(shown);
  await page.getByRole("button", { name: /Resume/ }).click();
  await expect.poll(() => requests.locator(".event").count()).toBeGreaterThan(shown);
});

test("files, DNS, connections, variables and settings are listed, and values stay hidden", async ({ page }) => {
  const target = await environment.target();
  await environment.session(target);
  await page.goto(await environment.ui());
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await page.getByRole("tab", { name: "Files" }).click();
  await expect(page.getByRole("row", { name: /missing-0 remote .*ENOENT/ })).toBeVisible();
  await shot(page, "files");
  await page.getByRole("tab", { name: "DNS" }).click();
  await expect(page.getByRole("row", { name: /nowhere\.invalid/ })).toBeVisible();
  await page.getByRole("tab", { name: "Connections" }).click();
  await expect(page.getByRole("row", { name: /127\.0\.0\.1:9 .*ECONNREFUSED/ })).toBeVisible();
  await page.getByRole("tab", { name: "Environment" }).click();
  await expect(page.getByRole("row", { name: /SHOP_PASSWORD hidden/ })).toBeVisible();
  await page.getByRole("tab", { name: "Configuration" }).click();
  await expect(page.getByRole("row", { name: /feature\.hostname false .*standin\.json:1:/ })).toBeVisible();
  await expect(page.getByRole("row", { name: /feature\.network\.incoming\.mode "steal" --steal/ })).toBeVisible();
  await expect(page.getByRole("row", { name: /feature\.fs\.mapping.*added by magic\.aws/ })).toBeVisible();
  await expect(page.getByRole("region", { name: "What magic has added" })).toContainText("magic.aws: false");
  await shot(page, "configuration");
  const all = await page.evaluate(async (id) => (await fetch(`/api/sessions/${id}`)).text(), idOf(page));
  expect(all).toContain("SHOP_PASSWORD");
  expect(all).not.toContain("hunter2");
});

test("values are shown with --show-env-values", async ({ page }) => {
  const target = await environment.target();
  await environment.session(target);
  await page.goto(await environment.ui(["--show-env-values"]));
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await page.getByRole("tab", { name: "Environment" }).click();
  await expect(page.getByText("hunter2")).toHaveCount(0);
  await page.getByRole("button", { name: "Show the value of SHOP_PASSWORD" }).click();
  await expect(page.getByText("hunter2")).toBeVisible();
});

test("one of two sessions is ended from the page, and the other one ends by itself", async ({ page }) => {
  const [first, second] = [await environment.target(), await environment.target()];
  const ended = await environment.session(first);
  const other = await environment.session(second);
  await page.goto(await environment.ui());
  await expect(page.getByRole("status").first()).toContainText("2 sessions");
  await page.getByRole("link", { name: new RegExp(`process/${first}`) }).click();
  await page.getByRole("button", { name: "End session" }).click();
  const dialog = page.getByRole("dialog", { name: "End this session?" });
  await shot(page, "kill");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  expect(ended.child.exitCode).toBeNull();
  await page.getByRole("button", { name: "End session" }).click();
  await dialog.getByRole("button", { name: "End session" }).click();
  await ended.ended;
  await expect(page.getByRole("article")).toContainText("ended");
  await expect(page.getByRole("status").first()).toContainText("1 session");
  other.child.kill("SIGTERM");
  await other.ended;
  await expect(page.getByRole("status").first()).toContainText("0 sessions");
  await expect(page.getByRole("link", { name: new RegExp(`process/${second}.*ended`, "s") })).toBeVisible();
  await page.getByRole("button", { name: `Remove process/${second} from the list` }).click();
  await expect(page.getByRole("link", { name: new RegExp(`process/${second}`) })).toHaveCount(0);
});

test("a reconnecting client gets the missing events, and none twice", async ({ page }) => {
  const target = await environment.target();
  await environment.session(target);
  await page.goto(await environment.ui());
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await page.getByRole("tab", { name: /Requests/ }).click();
  await expect(page.locator(".event").nth(5)).toBeVisible();
  const numbers = await page.evaluate(async (id) => {
    const listen = (after: number, count: number): Promise<number[]> =>
      new Promise((resolve) => {
        const received: number[] = [];
        const socket = new WebSocket(`ws://${location.host}/ws/${id}?after=${id}:${after}`);
        socket.onmessage = (message) => {
          const update = JSON.parse(String(message.data)) as { type: string; data: { seq: number } };
          if (update.type === "event") received.push(update.data.seq);
          if (received.length === count) {
            socket.close();
            resolve(received);
          }
        };
      });
    const before = await listen(0, 20);
    return [...before, ...(await listen(before.at(-1) ?? 0, 20))];
  }, idOf(page));
  expect(numbers).toEqual(numbers.map((_, index) => (numbers[0] ?? 0) + index));
});

test("a recording is replayed", async ({ page }) => {
  const recording = join(environment.folder, "recording.jsonl");
  const target = await environment.target();
  const session = await environment.session(target, ["--record", recording]);
  await expect.poll(() => readFileSync(recording, "utf8")).toContain("/broken");
  session.child.kill("SIGTERM");
  await session.ended;
  expect(readFileSync(recording, "utf8")).not.toContain("hunter2");
  await page.goto(await environment.ui(["--replay", recording]));
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await page.getByRole("tab", { name: /Requests/ }).click();
  await expect(page.getByText("GET /broken").first()).toBeVisible();
  await page.getByRole("tab", { name: "Files" }).click();
  await expect(page.getByRole("row", { name: /missing-0/ })).toBeVisible();
  await expect(page.getByRole("button", { name: "End session" })).toHaveCount(0);
});

test("the page names what it cannot list or read, and whether there is an operator", async ({ page }) => {
  const omitted = { remote_files: 5, local_files: 1, refused_files: 0, dns: 2, peers: 0 };
  const info = { session_id: "busy", protocol_version: 1, target: "pod/busy", started_at: "2026-01-01T00:00:00Z", command: ["app"] };
  const lines = [
    { line: "begin", protocol_version: 1, info, config: [] },
    { line: "end", time: 1, state: { omitted, files: [{ path: "/etc/shop", side: "remote", operations: 1 }] } },
  ];
  const recording = join(environment.folder, "busy.jsonl");
  writeFileSync(recording, lines.map((line) => JSON.stringify(line)).join("\n"));
  mkdirSync(environment.sessions, { mode: 0o700 });
  const newer = createServer((_, response) => {
    response.end(JSON.stringify({ protocol_version: 99, session_id: "newer", target: "pod/newer", standin_version: "9.9.9" }));
  });
  await new Promise<void>((resolve) => newer.listen(join(environment.sessions, "newer.sock"), resolve));
  await page.goto(await environment.ui(["--replay", recording]));
  await expect(page.locator(".version")).toContainText(/^\d+\.\d+\.\d+ · no cluster is configured$/);

  await page.getByRole("link", { name: /pod\/busy/ }).click();
  await page.getByRole("tab", { name: "Files" }).click();
  await expect(page.getByText("5 operations on further files of the target; 1 operation on further files of this machine.")).toBeVisible();
  await page.getByRole("tab", { name: "DNS" }).click();
  await expect(page.getByText("2 operations on further DNS names.")).toBeVisible();

  await page.getByRole("link", { name: /pod\/newer other version/ }).click();
  await expect(page.getByRole("alert")).toContainText("this session is of release 9.9.9");
  await expect(page.getByRole("tab")).toHaveCount(0);
  newer.close();
});

for (const scheme of ["light", "dark"] as const) {
  test(`a narrow screen needs no sideways scrolling (${scheme})`, async ({ page }) => {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width: 360, height: 740 });
    const target = await environment.target();
    await environment.session(target);
    await page.goto(await environment.ui());
    const fits = async (): Promise<void> => {
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      expect(wide).toBeLessThanOrEqual(room ?? 0);
    };
    const card = page.getByRole("link", { name: new RegExp(`process/${target}`) });
    await expect(card).toBeVisible();
    await fits();
    await shot(page, `narrow-list-${scheme}`);
    await card.click();
    await expect(page.getByText(/^median/)).toBeVisible();
    await fits();
    await shot(page, `narrow-overview-${scheme}`);
    for (const name of [/Events/, /Files/, /Connections/, /Configuration/]) {
      await page.getByRole("tab", { name }).click();
      await fits();
    }
    await page.getByRole("tab", { name: /Events/ }).click();
    await shot(page, `narrow-events-${scheme}`);
    await page.setViewportSize({ width: 1280, height: 860 });
    await page.getByRole("tab", { name: /Overview/ }).click();
    await shot(page, `overview-${scheme}`);
  });
}

const TABS = ["Overview", "Events", "Requests", "Files", "DNS", "Connections", "Environment", "Configuration"];

test("the page is accessible and can be used with the keyboard", async ({ page }) => {
  test.slow();
  const target = await environment.target();
  await environment.session(target);
  await page.goto(await environment.ui());
  const card = page.getByRole("link", { name: new RegExp(`process/${target}`) });
  await expect(card).toBeVisible();
  await isAccessible(page, "all sessions");
  await press(page, "Tab", page.getByRole("link", { name: "Skip to content" }));
  await press(page, "Enter", page.getByRole("main"));
  await card.focus();
  await page.keyboard.press("Enter");
  await expect(page.getByText(/^median/)).toBeVisible();
  await page.getByRole("tab", { name: "Overview" }).focus();
  for (const [index, name] of TABS.entries()) {
    if (index > 0) await press(page, "ArrowRight", page.getByRole("tab", { name }));
    await expect(page.getByRole("tab", { name })).toHaveAttribute("aria-selected", "true");
    await expect(page.getByText("Loading…")).toHaveCount(0);
    await isAccessible(page, name);
    await shot(page, `${name.toLowerCase()}-light`);
  }
  await press(page, "Home", page.getByRole("tab", { name: "Overview" }));
  await press(page, "End", page.getByRole("tab", { name: "Configuration" }));

  await page.getByRole("tab", { name: "Requests" }).click();
  const rows = page.getByRole("list", { name: "Requests" }).locator(".event > button");
  await expect(rows.first()).toBeVisible();
  await page.keyboard.press("p");
  // Before that, new rows are added before the first one.
  await expect(page.getByRole("button", { name: /^Resume/ })).toBeVisible();
  await rows.first().focus();
  await press(page, "ArrowDown", rows.nth(1));
  await page.keyboard.press("Enter");
  await expect(rows.nth(1)).toHaveAttribute("aria-expanded", "true");
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog", { name: "Keyboard" })).toBeVisible();
  await isAccessible(page, "details of a request, and the list of keys");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
});

test("the dark theme has enough contrast", async ({ page }) => {
  test.slow();
  await page.emulateMedia({ colorScheme: "dark" });
  const target = await environment.target();
  await environment.session(target);
  await page.goto(await environment.ui());
  await page.getByRole("link", { name: new RegExp(`process/${target}`) }).click();
  await expect(page.getByText(/^median/)).toBeVisible();
  for (const name of TABS) {
    await page.getByRole("tab", { name }).click();
    await expect(page.getByText("Loading…")).toHaveCount(0);
    await isAccessible(page, name, ["color-contrast"]);
    await shot(page, `${name.toLowerCase()}-dark`);
  }
});

/** Presses a key, and checks where the focus is. */
async function press(page: Page, key: string, to: Locator): Promise<void> {
  await page.keyboard.press(key);
  await expect(to).toBeFocused();
}

/** Checks the rules of axe: names, roles, contrast, order. */
async function isAccessible(page: Page, where: string, rules?: string[]): Promise<void> {
  // Only the first ones of similar rows are checked.
  const axe = new AxeBuilder({ page }).exclude(".event:nth-child(n+6)").exclude("tr:nth-child(n+6)");
  const { violations } = await (rules ? axe.withRules(rules) : axe).analyze();
  const found = violations.map(({ id, help, nodes }) => `${where}: ${id}: ${help}: ${nodes.map((node) => node.html).join(" ")}`);
  expect(found).toEqual([]);
}

/** The session that the page shows. */
function idOf(page: Page): string {
  return new URL(page.url()).hash.slice(1).split("/")[0] ?? "";
}
