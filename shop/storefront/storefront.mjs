// Storefront is where the shop's customers arrive: JSON over HTTP/1 and HTTP/2, and events as they happen.

import { EventEmitter } from 'node:events';
import http from 'node:http';
import http2 from 'node:http2';

import { IDENTITY_HEADER, apiKey, config, identity } from './shop.mjs';

const CHECKOUT_TIMEOUT_MS = 10_000;
const LARGEST_BODY = 64 * 1024;

// What travels with a request through the whole shop, so that one caller's requests can be told from another's.
const TRACE_HEADERS = ['traceparent', 'tracestate', 'baggage'];

class Problem extends Error {
  constructor(status, body) {
    super(body.error);
    this.status = status;
    this.body = body;
  }
}

export class Storefront {
  constructor(env = process.env) {
    this.env = env;
    this.me = identity('storefront', env);
    this.checkout = env.CHECKOUT_URL || 'http://checkout:8080';
    // Emits `order` for each order that passes, and `close` when open event streams should end.
    this.happenings = new EventEmitter().setMaxListeners(0);
  }

  // Serves HTTP/1 and HTTP/2 alike: Node gives both the same request and response.
  handle = async (request, response) => {
    try {
      await this.route(request, response);
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error);
      const { status, body } = error instanceof Problem ? error : { status: 500, body: { error: error.message } };
      if (!response.headersSent) this.answer(response, status, body);
    }
  };

  async route(request, response) {
    const { pathname } = new URL(request.url, 'http://storefront');
    switch (`${request.method} ${pathname}`) {
      case 'GET /': {
        const { greeting, currency } = await config(this.env);
        return this.answer(response, 200, { greeting, currency, items: ['book', 'lamp', 'mug', 'pen'] });
      }
      case 'GET /health':
        return this.answer(response, 200, { healthy: true });
      case 'GET /whoami':
        return this.answer(response, 200, {});
      case 'GET /config': {
        const stage = this.env.SHOP_STAGE || 'local';
        return this.answer(response, 200, { ...(await config(this.env)), stage, api_key: await apiKey(this.env) });
      }
      case 'GET /events':
        return this.streamEvents(response);
      case 'GET /orders':
        return this.forward(request, response, '/orders');
      case 'POST /order': {
        const answer = await this.forward(request, response, '/order', await readBody(request));
        if (answer.id) this.happenings.emit('order', answer);
        return;
      }
      default:
        throw new Problem(404, { error: `nothing at ${request.method} ${pathname}` });
    }
  }

  // Asks checkout, and answers what it answered with this service added to the ones that were passed through.
  async forward(request, response, path, body) {
    const { status, answer } = await this.askCheckout(request, path, body);
    const here = { ...this.me, over: request.httpVersionMajor === 2 ? 'http/2' : 'http/1.1' };
    const whole = { ...answer, answered_by: [here, ...(answer.answered_by ?? [])] };
    this.answer(response, status, whole);
    return whole;
  }

  async askCheckout(request, path, body) {
    const headers = { 'content-type': 'application/json' };
    for (const name of TRACE_HEADERS) {
      if (request.headers[name]) headers[name] = request.headers[name];
    }
    try {
      const answer = await fetch(this.checkout + path, {
        method: body === undefined ? 'GET' : 'POST',
        headers,
        body,
        signal: AbortSignal.timeout(CHECKOUT_TIMEOUT_MS),
      });
      return { status: answer.status, answer: await answer.json() };
    } catch (error) {
      const reason = error.cause?.message || error.cause?.code || error.message;
      throw new Problem(502, { error: `checkout at ${this.checkout}: ${reason}`, neighbour: 'checkout' });
    }
  }

  streamEvents(response) {
    response.writeHead(200, {
      'content-type': 'text/event-stream',
      'cache-control': 'no-store',
      [IDENTITY_HEADER]: JSON.stringify(this.me),
    });
    let count = 0;
    const send = (event, data) => {
      response.write(`event: ${event}\nid: ${count}\ndata: ${JSON.stringify({ ...data, identity: this.me })}\n\n`);
      count += 1;
    };
    const onOrder = (order) => send('order', { order });
    const onClose = () => response.end();
    const interval = Number(this.env.EVENTS_INTERVAL_MS || 1000);
    const timer = setInterval(() => send('tick', { time: new Date().toISOString() }), interval);
    this.happenings.on('order', onOrder).once('close', onClose);
    response.on('close', () => {
      clearInterval(timer);
      this.happenings.off('order', onOrder).off('close', onClose);
    });
    send('hello', {});
  }

  answer(response, status, body) {
    const content = Buffer.from(JSON.stringify({ ...body, identity: this.me }) + '\n');
    response.writeHead(status, {
      'content-type': 'application/json',
      'content-length': content.length,
      [IDENTITY_HEADER]: JSON.stringify(this.me),
    });
    response.end(content);
  }
}

async function readBody(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > LARGEST_BODY) throw new Problem(413, { error: `a body has at most ${LARGEST_BODY} bytes` });
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

// Listens on both ports. The result has the ports, and a `close` that ends what is open.
export async function start(storefront, httpPort, http2Port) {
  const http1 = http.createServer(storefront.handle);
  const h2c = http2.createServer(storefront.handle);
  const sessions = new Set();
  h2c.on('session', (session) => {
    sessions.add(session);
    session.on('close', () => sessions.delete(session));
  });
  const listen = (server, port) =>
    new Promise((resolve, reject) => server.once('error', reject).listen(port, () => resolve(server.address().port)));
  const ports = { http: await listen(http1, httpPort), http2: await listen(h2c, http2Port) };
  const close = async () => {
    const closed = [http1, h2c].map((server) => new Promise((resolve) => server.close(resolve)));
    storefront.happenings.emit('close');
    http1.closeIdleConnections();
    for (const session of sessions) session.close();
    await Promise.all(closed);
  };
  return { ports, close };
}
