import { defineConfig } from "@playwright/test";

// The browser is the distribution's; nothing is downloaded.
export default defineConfig({
  testDir: "tests",
  timeout: 60_000,
  expect: { timeout: 20_000 },
  workers: 1,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    launchOptions: { executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] },
    viewport: { width: 1280, height: 860 },
  },
});
