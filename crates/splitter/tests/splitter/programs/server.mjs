// A server of Node's standard library whose responses contain its name. Arguments: its name, and `http` or `http2`.
import http from 'node:http';
import http2 from 'node:http2';

const [name, kind] = process.argv.slice(2);

async function handle(request, response) {
  if (request.url === '/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let count = 0; count < 3; count += 1) {
      response.write(`data: ${name} ${count}\n\n`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    return response.end();
  }
  let length = 0;
  for await (const chunk of request) length += chunk.length;
  response.end(`${name} ${request.method} ${request.url} ${length}\n`);
}

const server = kind === 'http2' ? http2.createServer(handle) : http.createServer(handle);
// Echoes upgraded connections.
server.on('upgrade', (request, socket, head) => {
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n${name}:`);
  socket.write(head);
  socket.pipe(socket);
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
