// A web server that says who asked.
require("http").createServer((request, response) => {
  const { remoteAddress, localAddress, localPort } = request.socket;
  response.end(`${remoteAddress} ${localAddress}:${localPort}`);
}).listen(0, "127.0.0.1");
