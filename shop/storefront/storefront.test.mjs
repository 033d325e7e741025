import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import http2 from 'node:http2';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { Storefront, start } from './storefront.mjs';

const ENV = { POD_NAME: 'storefront-7d9f-x2x4z', CLUSTER_NAME: 'east', EVENTS_INTERVAL_MS: '60000' };
const ME = { service: 'storefront', cluster: 'east', pod: 'storefront-7d9f-x2x4z', replica: 'x2x4z' };

// Runs `body` against a storefront whose checkout is `checkout`, a function from request to [status, answer].
async function withStorefront(checkout, body) {
  const fake = http.createServer((request, response) => {
    const [status, answer] = checkout(request);
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer));
  });
  await once(fake.listen(0), 'listening');
  const env = { ...ENV, CHECKOUT_URL: `http://127.0.0.1:${fake.address().port}` };
  const running = await start(new Storefront(env), 0, 0);
  try {
    await body({ url: `http://127.0.0.1:${running.ports.http}`, ports: running.ports, fake, env });
  } finally {
    fake.closeAllConnections();
    fake.close();
    await running.close();
  }
}

const order = (url, headers) =>
  fetch(`${url}/order`, { method: 'POST', headers, body: '{"item":"book","quantity":2}' });

test('an order passes through checkout with its trace headers', async () => {
  let baggage;
  const checkout = (request) => {
    baggage = request.headers.baggage;
    return [200, { id: 7, answered_by: [{ service: 'checkout' }] }];
  };
  await withStorefront(checkout, async ({ url }) => {
    const response = await order(url, { baggage: 'user=ada' });
    const body = await response.json();
    assert.equal(response.status, 200);
    assert.equal(baggage, 'user=ada');
    assert.deepEqual(JSON.parse(response.headers.get('shop-identity')), ME);
    assert.deepEqual(body.answered_by, [{ ...ME, over: 'http/1.1' }, { service: 'checkout' }]);
  });
});

test('an error of checkout keeps its status and its words', async () => {
  const checkout = () => [502, { error: 'inventory: gone', neighbour: 'inventory' }];
  await withStorefront(checkout, async ({ url }) => {
    const response = await order(url);
    const body = await response.json();
    assert.equal(response.status, 502);
    assert.equal(body.neighbour, 'inventory');
  });
});

test('a checkout that is away is named', async () => {
  await withStorefront(() => [200, {}], async ({ url, fake }) => {
    fake.close();
    const response = await order(url);
    const body = await response.json();
    assert.equal(response.status, 502);
    assert.equal(body.neighbour, 'checkout');
    assert.deepEqual(body.identity, ME);
  });
});

test('events tell of orders, and end when the service ends', async () => {
  await withStorefront(() => [200, { id: 7 }], async ({ url }) => {
    const events = (await fetch(`${url}/events`)).body.pipeThrough(new TextDecoderStream()).getReader();
    assert.match((await events.read()).value, /^event: hello\n/);
    await order(url);
    assert.match((await events.read()).value, /^event: order\nid: 1\ndata: {"order":{"id":7,/);
  });
});

test('HTTP/2 with prior knowledge serves the same pages', async () => {
  await withStorefront(() => [200, {}], async ({ ports }) => {
    const session = http2.connect(`http://127.0.0.1:${ports.http2}`);
    const request = session.request({ ':path': '/whoami' });
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    const [headers] = await once(request, 'response');
    await once(request, 'end');
    assert.equal(headers[':status'], 200);
    assert.deepEqual(JSON.parse(Buffer.concat(chunks)), { identity: ME });
    session.close();
  });
});

test('the config follows its file, and the secret stays secret', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'storefront-'));
  await withStorefront(() => [200, {}], async ({ url, env }) => {
    Object.assign(env, { SHOP_CONFIG: join(folder, 'shop.json'), SHOP_API_KEY_FILE: join(folder, 'api-key') });
    const config = async () => (await fetch(`${url}/config`)).json();
    const before = await config();
    assert.equal(before.greeting, 'Welcome');
    assert.equal(before.api_key.present, false);
    await writeFile(env.SHOP_CONFIG, '{"greeting":"Hello"}');
    await writeFile(env.SHOP_API_KEY_FILE, 'abc');
    const after = await config();
    assert.equal(after.greeting, 'Hello');
    assert.deepEqual(after.api_key, { present: true, fingerprint: 'sha256:ba7816bf8f01' });
  });
  await rm(folder, { recursive: true });
});
