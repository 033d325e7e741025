// The program: reads the ports, serves, and ends at SIGTERM.

import { Storefront, start } from './storefront.mjs';

const DRAIN_MS = 1000;

const { HTTP_PORT, H2_PORT } = process.env;
const { ports, close } = await start(new Storefront(), Number(HTTP_PORT || 8080), Number(H2_PORT || 8081));
console.log(`storefront is up: HTTP/1 ${ports.http}, HTTP/2 ${ports.http2}`);

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, () => {
    // Connections that are still open after this are closed.
    setTimeout(() => process.exit(0), DRAIN_MS).unref();
    close().then(() => process.exit(0));
  });
}
