// Prints the addresses of names, one line for each name: as the C library resolves them, and as c-ares does, which
// ignores search lists.
const dns = require("node:dns").promises;

const shown = (addresses) =>
  addresses.length > 8 ? `${addresses.length} addresses` : addresses.sort().join(" ");
const failed = (error) =>
  ["ENOTFOUND", "ENODATA"].includes(error.code) ? "none" : "again";

async function main() {
  for (const argument of process.argv.slice(2)) {
    const [kind, name] = argument.includes("=") ? argument.split("=") : ["", argument];
    let text;
    try {
      if (kind === "") {
        const found = await dns.lookup(name, { all: true });
        text = shown(found.map((each) => each.address));
      } else {
        const found = await dns.resolve(name, kind);
        text = ["A", "AAAA"].includes(kind) ? shown(found) : JSON.stringify(found);
      }
    } catch (error) {
      text = failed(error);
    }
    console.log(`${argument}: ${text}`);
  }
}

main();
