// Prints how many milliseconds after the navigation a browser has painted the page, once for each new browser.
/* global console, performance, process */

import { chromium } from "@playwright/test";

const [address, rounds] = process.argv.slice(2);
const paints = [];
for (let round = 0; round < Number(rounds); round += 1) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu"],
  });
  try {
    const page = await browser.newPage();
    await page.goto(address);
    await page.getByRole("heading", { name: "No sessions yet" }).waitFor();
    const paint = await page.evaluate(() => {
      const entries = performance.getEntriesByName("first-contentful-paint");
      return entries[0]?.startTime ?? null;
    });
    if (paint === null) throw new Error("the browser reports no paint");
    paints.push(paint);
  } finally {
    await browser.close();
  }
}
console.log(JSON.stringify(paints));
