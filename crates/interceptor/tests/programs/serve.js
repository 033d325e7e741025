// A web server that returns the address of its client.
require("http").createServer((request, response) => {
  const { remoteAddress, localAddress, localPort } = request.socket;
  response.end(`${remoteAddress} ${localAddress}:${localPort}`);
}).listen(0, "127.0.0.1");
